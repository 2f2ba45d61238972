"""The commands in the README run as written, apart from the port and the folder of the executable."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from embedded.run import run_embedded
from shared.schemas.service import SERVICES
from tests.support.gateway_under_test import picture
from tests.support.paths import REPOSITORY
from tests.support.small_services import SmallServices, serve

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (.+)$", README.split("## Use it")[1].split("##")[0], re.MULTILINE)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_readmes_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "here"
    for number, label in enumerate(["bus", "bus", "car"]):
        path = folder / "testset" / label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    (folder / "a.png").write_bytes(picture(7))
    (folder / "b.png").write_bytes(picture(8))
    submit, report, curl = COMMANDS
    with (
        serve(SmallServices()) as services,
        run_embedded(tmp_path / "data", service_urls=dict.fromkeys(SERVICES, services)) as system,
    ):
        monkeypatch.setenv("CONTRAFACT_URL", system.base_url)
        job = _run(submit, folder, system.base_url).splitlines()[0]
        _run(report.replace("JOB", job), folder, system.base_url)
        posted = _run(curl, folder, system.base_url)
        view = httpx.get(f"{system.base_url}/jobs/{job}", timeout=120).json()
    assert len(list(folder.glob("*.html"))) == 1
    assert view["state"] == "done"
    assert view["progress"]["images"]["done"] == 3
    assert '"id"' in posted


def _run(command: str, folder: Path, url: str) -> str:
    """What a command prints, run in `folder` against the system at `url`."""
    executable = f"{Path(sys.executable).parent}/contrafact"
    command = command.replace(".venv/bin/contrafact", executable).replace("http://127.0.0.1:8000", url)
    result = subprocess.run(command, cwd=folder, shell=True, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout
