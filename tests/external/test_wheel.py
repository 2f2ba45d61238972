"""The wheel: built, installed into an environment outside the checkout, and used for a finding."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from docs.execute import code_cells, notebook_paths, read_notebook
from tests.support.paths import REPOSITORY
from tinyworld.objects.demo import write_demo
from wheel_layout import INSIDE, LEARN, PUBLIC

FILES = ("pyproject.toml", "wheel_layout.py", "README.md", "LICENSE")
UNBUILT = shutil.ignore_patterns("__pycache__", "*.pyc")
SCRIPT = """
import json, sys
from contrafact import Client
assert "torch" not in sys.modules, "the client imports torch"
from contrafact import MethodChoice, test
outcome = test(
    sys.argv[1],
    sys.argv[2],
    labels=sys.argv[3],
    task="classify the vehicle in a street photo",
    methods=[MethodChoice(name="corruptions", parameters={"corruptions": ["contrast", "gaussian_noise"]})],
)
outcome.report("report.html")
own = {name.partition(".")[0] for name, module in sys.modules.items() if "site-packages/contrafact" in str(module)}
print(json.dumps({"findings": len(outcome.findings), "failures": len(outcome.failures), "names": [*own]}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that the checkout stays as it is."""
    copy, out = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("dist")
    for name in FILES:
        shutil.copy(REPOSITORY / name, copy)
    for name in (PUBLIC, *INSIDE):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=UNBUILT)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(copy), python=sys.executable)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Python of a fresh environment with the wheel, which sees the packages installed here but not the checkout."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=600)
    python = environment / "bin" / "python"
    pip("install", "--no-deps", "--no-index", str(wheel), python=str(python))
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    yield python
    shutil.rmtree(environment)


def pip(*arguments: str, python: str) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    built = subprocess.run(command, text=True, capture_output=True, timeout=600)
    assert built.returncode == 0, built.stderr[-3000:]


def run(python: Path, *arguments: str, cwd: Path) -> str:
    """What the program prints, run outside the checkout."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([python, *arguments], cwd=cwd, env=variables, text=True, capture_output=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_it_owns_one_name_and_holds_the_weights(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (top_level,) = [name for name in names if name.endswith("dist-info/top_level.txt")]
        assert archive.read(top_level).split() == [PUBLIC.encode()]
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {PUBLIC}
    files = [path for package in (PUBLIC, *INSIDE) for path in (REPOSITORY / package).rglob("*.safetensors")]
    assert not [name for name in names if name.endswith(LEARN)]
    assert len([name for name in names if name.endswith(".safetensors")]) == len(files) > 20
    assert wheel.stat().st_size < 100 * 1000**2  # the package index takes no larger file


@pytest.mark.slow
def test_its_command_starts(python: Path, tmp_path: Path) -> None:
    command = python.parent / "contrafact"
    assert "submit" in run(python, str(command), "--help", cwd=tmp_path)
    assert "--port" in run(python, "-m", "contrafact._system.embedded", "--help", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", notebook_paths())
def test_the_notebooks_start_without_a_checkout(name: str, python: Path, tmp_path: Path) -> None:
    """Their code before they test a model: imports, a method of one's own, the test set."""
    code = "\n".join(cell.source for cell in code_cells(read_notebook(notebook_paths()[name])))
    start = list(takewhile(lambda line: "contrafact.test(" not in line, code.splitlines()))
    assert len(start) < len(code.splitlines())
    run(python, "-c", "\n".join(start), cwd=tmp_path)
    manifests = [manifest.read_text() for manifest in tmp_path.rglob("*.csv")]
    in_class_folder = [picture for folder in tmp_path.rglob("bus") for picture in folder.rglob("*0001.png")]
    assert any("0001.png,bus" in manifest for manifest in manifests) or in_class_folder, "a test set with labels"


@pytest.mark.slow
def test_an_installed_wheel_finds_a_weakness_of_an_uploaded_model(python: Path, tmp_path: Path) -> None:
    manifest = write_demo(tmp_path / "images", ("car", "bus"), 14)
    (tmp_path / "shared.py").write_text("raise ImportError('a module of the user')\n")  # no name of ours is theirs
    (packages,) = python.parent.parent.glob("lib/python*/site-packages/contrafact")
    model = packages / "_system/tinyworld/weights/models_under_test/street-classifier"
    printed = run(python, "-c", SCRIPT, str(model), str(tmp_path / "images"), str(manifest), cwd=tmp_path)
    reply = json.loads(printed.splitlines()[-1])
    assert reply["findings"] > 0
    assert reply["failures"] == 0
    assert reply["names"] == [PUBLIC]
    assert (tmp_path / "report.html").stat().st_size > 0
