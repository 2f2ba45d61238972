"""The layout of the tests: folders mirror the packages, and modules share code through `tests/support` and conftest."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.support.paths import REPOSITORY

TESTS = REPOSITORY / "tests"
MIRRORS = (TESTS / "unit", TESTS / "contract", TESTS / "integration")
WHOLE_GATEWAY = {"test_openapi.py", "test_request_ids.py", "test_secrets.py"}
"""Test modules that cover all packages of the gateway at once."""


def imported(path: Path) -> set[str]:
    """The modules that a file's import statements name, by their full names."""
    return set(re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_tracked_tree_stays_small() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    sizes = {
        name: (REPOSITORY / name).stat().st_size for name in listed.stdout.split("\0") if (REPOSITORY / name).is_file()
    }
    assert max(sizes.values()) <= 15_000_000
    assert sum(sizes.values()) <= 62 * 2**20


def test_no_test_module_imports_another() -> None:
    for path in TESTS.rglob("*.py"):
        within = {name for name in imported(path) if name.split(".")[0] == "tests"}
        assert all(name.startswith("tests.support") for name in within), f"{path} imports {within}"


def test_nothing_imports_research_but_itself() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        path = REPOSITORY / name
        if path.is_file() and not name.startswith("research/"):
            assert not {module for module in imported(path) if module.split(".")[0] == "research"}, name


def test_folders_of_tests_are_folders_of_the_code() -> None:
    for mirror in MIRRORS:
        for path in mirror.rglob("test_*.py"):
            folder = path.parent.relative_to(mirror)
            assert (REPOSITORY / folder).is_dir(), f"{path}: there is no folder {folder}"


def test_no_folder_of_tests_is_empty() -> None:
    for mirror in MIRRORS:
        for package in mirror.rglob("__init__.py"):
            assert any(package.parent.rglob("test_*.py")), f"{package.parent} has no tests"


def test_tests_of_gateway_and_tinyworld_lie_in_the_folder_of_their_package() -> None:
    """Directly in the folder lie only tests of top-level modules: `test_settings.py` tests `gateway/settings.py`."""
    for mirror in MIRRORS:
        for package in ("gateway", "tinyworld"):
            modules = {f"test_{path.name}" for path in (REPOSITORY / package).glob("*.py")}
            flat = {path.name for path in (mirror / package).glob("test_*.py")}
            assert flat <= modules | (WHOLE_GATEWAY if package == "gateway" else set()), f"{mirror / package}"
