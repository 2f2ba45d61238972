"""The reference is complete: generated pages are current; settings, operations, methods and terms are on a page."""

from __future__ import annotations

import re
from pathlib import Path

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from contrafact.cli import app
from docs.generate import DOCS, PAGES
from gateway.app import openapi_document
from gateway.methods import METHODS
from gateway.settings import Settings
from shared.problems import Problem, problem_types
from shared.service.endpoints import INFO, MODELS, Endpoint, Services
from shared.service.settings import ServiceSettings
from tests.support.paths import REPOSITORY

SETTING = re.compile(r"\bCONTRAFACT_[A-Z0-9_]*[A-Z0-9]\b")
NOT_THE_PRODUCT = {"tests", "docs", "benchmarks", "research"}
TERMS = (
    "job", "task description", "kind", "source image", "ground truth", "group", "method", "edit", "factor", "value",
    "cell", "counterfactual", "null arm", "sham arm", "editor", "verdict", "model under test", "profile", "finding",
    "comparison", "release", "lease", "NFE", "confirmation", "dose", "own image", "mark", "study", "rater", "consensus",
    "control item", "gallery", "note",
)  # fmt: skip


def page(name: str) -> str:
    return (DOCS / "reference" / name).read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """The text below each `##` heading."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def python_files() -> list[Path]:
    """The modules of all packages that users run."""
    packages = [path.parent for path in REPOSITORY.glob("*/__init__.py") if path.parent.name not in NOT_THE_PRODUCT]
    return [path for package in packages for path in package.rglob("*.py")]


def command_names(command: object, name: str) -> list[str]:
    if isinstance(command, TyperGroup):
        return [below for word, inner in command.commands.items() for below in command_names(inner, f"{name} {word}")]
    forwards = isinstance(command, TyperCommand) and command.context_settings.get("ignore_unknown_options")
    return [] if forwards else [name]  # another program reads the arguments


def test_generated_pages_are_current() -> None:
    stale = [name for name, written in PAGES.items() if (DOCS / name).read_text(encoding="utf-8") != written()]
    assert stale == [], "run `python -m docs.generate`"


def test_every_setting_is_documented() -> None:
    fields = {f"CONTRAFACT_{name.upper()}" for kind in (Settings, ServiceSettings) for name in kind.model_fields}
    assert fields - set(SETTING.findall(page("settings.md"))) == set()
    named = {name for path in python_files() for name in SETTING.findall(path.read_text(encoding="utf-8"))}
    documented = {name for path in DOCS.rglob("*.md") for name in SETTING.findall(path.read_text(encoding="utf-8"))}
    assert named - documented == set()


def test_every_operation_is_documented() -> None:
    paths = openapi_document()["paths"]
    names = [f"`{verb.upper()} {path}`" for path, verbs in paths.items() for verb in verbs]
    assert [name for name in names if name not in page("http-operations.md")] == []


def test_every_endpoint_of_the_model_services_is_documented() -> None:
    endpoints = [endpoint for endpoint in vars(Services).values() if isinstance(endpoint, Endpoint)]
    names = [f"`POST {endpoint.path}`" for endpoint in endpoints] + [f"`GET {get.path}`" for get in (INFO, MODELS)]
    assert [name for name in names if name not in page("services.md")] == []


def test_every_method_is_documented() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    listed = [name for name, method in METHODS.items() if method.listed]
    assert [name for name in listed if f"| [`{name}`](#{name}) |" not in page("methods.md")] == []
    assert [name for name in listed if f"| `{name}` |" not in readme] == []


def test_every_parameter_is_documented() -> None:
    tables = sections(page("parameters.md"))
    missing = [
        f"{method}.{name}"
        for method, spec in METHODS.items()
        for name in spec.parameters.model_fields
        if f"| `{name}` |" not in tables.get(f"`{method}`", "")
    ]
    assert missing == []


def test_every_command_is_documented() -> None:
    assert (
        set(command_names(get_command(app), "contrafact"))
        - {heading.strip("`") for heading in sections(page("commands.md"))}
        == set()
    )


def test_every_problem_type_has_a_cause_and_a_remedy() -> None:
    types = {(kind.name, str(kind.status)) for kind in problem_types() if kind.__module__ == Problem.__module__}
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| [^|]+ \| [^|]+ \|$", page("problem-types.md"), re.MULTILINE)
    assert set(rows) == types


def test_the_glossary_has_the_terms_of_code_api_and_pages() -> None:
    entries = [line.partition(":")[0] for line in page("glossary.md").splitlines() if line.startswith("* ")]
    assert set(TERMS) - {name for entry in entries for name in re.findall(r"\*\*([^*]+)\*\*", entry)} == set()
