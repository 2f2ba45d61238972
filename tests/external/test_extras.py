"""Each extra installs every package that its program imports, including late imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.extras import ROOT, packages, run

PROGRAMS = {
    "client": "contrafact contrafact.cli",
    "gateway": (
        "gateway.app gateway.worker.worker contrafact.cli gateway.database.migrations.__main__ kombu.transport.redis "
        "psycopg minio"
    ),
    "evaluator": "evaluator_service.app evaluator_service.repair_worker kombu.transport.redis minio",
    "weights": "shared.profiles.fetch_weights",
    # Everything that it does with the models of the user's included: parquet, ONNX, repairs.
    "embedded": "embedded.demo contrafact.cli gateway.export.huggingface caption_service.app llm_service.app "
    "diffusion_service.app evaluator_service.app evaluator_service.models_under_test.onnx_file "
    "evaluator_service.repair_worker kornia.augmentation.auto accelerate peft",
}

# Each of 20 MB and more: package and module.
LARGE = {
    "torch": "torch",
    "torchvision": "torchvision",
    "transformers": "transformers",
    "diffusers": "diffusers",
    "pyarrow": "pyarrow",
    "scipy": "scipy",
    "pandas": "pandas",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "opencv-python-headless": "cv2",
    "kornia": "kornia",
    "openai": "openai",
}
# The packages of ours in the image that an extra is installed into.
IN_IMAGE = {
    "gateway": ("gateway", "contrafact"),
    "weights": ("shared",),
    "caption": ("caption_service",),
    "llm": ("llm_service",),
    "diffusion": ("diffusion_service",),
    "evaluator": ("evaluator_service",),
}


@pytest.mark.slow
@pytest.mark.parametrize("extra", PROGRAMS)
def test_an_image_has_what_its_programs_import(extra: str, tmp_path: Path) -> None:
    imported = run(extra, f"import {PROGRAMS[extra].replace(' ', ', ')}", tmp_path)
    assert imported.returncode == 0, imported.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(("extra", "service"), [("caption", "caption_service"), ("llm", "llm_service")])
def test_only_the_engine_of_a_server_imports_its_client(extra: str, service: str, tmp_path: Path) -> None:
    assert "openai" in packages(extra)
    without = run(extra, f"import {service}.app", tmp_path / "without", without="openai")
    assert without.returncode == 0, without.stderr[-3000:]
    code = "import shared.service.chat_server"
    process = run(extra, code, tmp_path / "with")
    assert process.returncode == 0, process.stderr[-3000:]
    assert "No module named 'openai'" in run(extra, code, tmp_path / "without", without="openai").stderr


@pytest.mark.slow
def test_an_embedded_system_makes_tables_of_its_outcome(tmp_path: Path) -> None:
    """Whatever the outcome holds: `to_dataframe` imports pandas when it is called."""
    code = (
        "from pathlib import Path\nfrom contrafact import Outcome\n"
        "print(len(Outcome('job', Path(), None, [], [], b'', {}).to_dataframe()))"
    )
    process = run("embedded", code, tmp_path)
    assert (process.stdout, process.returncode) == ("0\n", 0), process.stderr[-3000:]


def imported_modules(package: str) -> Iterator[str]:
    """Top-level names that a package of ours imports, late imports included."""
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (name.name.partition(".")[0] for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


@pytest.mark.slow
@pytest.mark.parametrize("extra", IN_IMAGE)
def test_an_image_has_no_large_library_that_its_code_does_not_import(extra: str) -> None:
    imported = {name for package in IN_IMAGE[extra] for name in imported_modules(package)}
    installed = {module for package, module in LARGE.items() if package in packages(extra)}
    assert installed <= imported


@pytest.mark.slow
def test_an_embedded_system_is_installed_without_clients_of_servers() -> None:
    """None is imported, as the test above shows; each extra of an image has those of the servers that it talks to."""
    clients = {"redis", "minio", "psycopg", "psycopg-binary", "pycryptodome", "argon2-cffi", "cffi"}
    assert not packages("embedded") & clients
    assert clients <= packages("gateway")
    assert {"redis", "minio"} <= packages("evaluator")
    assert packages("embedded") | packages("gateway") | packages("evaluator") <= packages("dev")


@pytest.mark.slow
def test_the_client_alone_says_what_a_test_in_process_needs(tmp_path: Path) -> None:
    code = "import contrafact\ncontrafact.test(len, [], task='classify')"
    process = run("client", code, tmp_path)
    assert "contrafact[embedded]" in process.stderr.splitlines()[-1]
    light = "import sys, contrafact\nassert not {'torch', 'fastapi', 'sqlalchemy', 'pandas'} & set(sys.modules)"
    assert run("client", light, tmp_path).returncode == 0


@pytest.mark.slow
def test_other_packages_are_out_of_sight(tmp_path: Path) -> None:
    assert "torch" not in packages("gateway")
    process = run("gateway", "import importlib.util, numpy\nassert importlib.util.find_spec('torch') is None", tmp_path)
    assert process.returncode == 0, process.stderr
    failed = run("gateway", "import torch", tmp_path)
    assert "No module named 'torch'" in failed.stderr
