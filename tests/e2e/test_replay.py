"""With the shipped models, `contrafact doctor` passes and `contrafact replay` reproduces a counterfactual exactly."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from embedded.run import run_embedded
from gateway.commands import app
from tests.support.http_jobs import finished
from tests.support.work_site import wait_for
from tinyworld.objects.demo import write_demo

SPEC = {
    "task": "classify the vehicle",
    "models": ["street-classifier"],
    "methods": [{"name": "dillema", "parameters": {"counterfactuals_per_image": 2, "steps": 4}}],
}


@pytest.mark.slow
def test_real_models_make_the_same_counterfactual_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's command works on the system that serves the page, without settings in the environment."""
    monkeypatch.chdir(tmp_path)
    write_demo(tmp_path / "images", ("bus",), 1)
    picture = next((tmp_path / "images").rglob("*.png")).read_bytes()
    with (
        run_embedded(tmp_path / "system", deterministic=True, images_in_flight=1) as system,
        httpx.Client(base_url=system.base_url, timeout=120, limits=httpx.Limits(max_keepalive_connections=0)) as client,
    ):
        environment = {
            "CONTRAFACT_DATABASE_URL": f"sqlite:///{tmp_path / 'system' / 'contrafact.db'}",
            "CONTRAFACT_OBJECT_STORE": f"directory:{tmp_path / 'system' / 'objects'}",
        } | {f"CONTRAFACT_{n.removesuffix('_service').upper()}_URL": url for n, url in system.service_urls.items()}

        def run(*arguments: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
            result = CliRunner().invoke(app, arguments, env=environment)
            return result.exit_code, result.output

        wait_for(lambda: client.get("/models").status_code == 200)
        spec = ("spec.json", json.dumps(SPEC), "application/json")
        created = client.post("/jobs", files={"images": ("bus/1.png", picture), "spec": spec})
        assert created.status_code == 202, created.text
        finished(client, created.headers["Location"])
        views = client.get(f"{created.headers['Location']}/results").json()["counterfactuals"]
        rendered = [view["id"] for view in views if view["image"]]
        code, output = run("doctor", environment=environment)
        assert code == 0, output
        page = client.get(f"{created.headers['Location']}/pairs/{rendered[0]}").text
        command = re.search(r"<pre[^>]*>contrafact (replay [^<]*)</pre>", page)
        assert command
        code, output = run(*shlex.split(command[1]))
        assert code == 0, output
        assert output.startswith("equal")
        assert (tmp_path / "system" / "services.json").exists()
    assert not (tmp_path / "system" / "services.json").exists()
    assert not Path("contrafact.db").exists()
