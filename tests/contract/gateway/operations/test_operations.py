"""Health, readiness, metrics, and settings with which a gateway refuses to start."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
import typer
from fastapi import FastAPI
from prometheus_client import REGISTRY, CollectorRegistry
from sqlalchemy import create_engine, delete, text
from typer.testing import CliRunner

from contrafact.system_commands import replace_process
from embedded.serving import ListeningPort
from gateway.app import create_app
from gateway.auth.keys import create_key
from gateway.commands import app as command_line
from gateway.context import open_context
from gateway.database.sessions import Sessions, open_sessions
from gateway.database.tables import ApiKey
from gateway.operations.startup import refuse_unsafe_start, refuse_wrong_schema
from gateway.settings import Settings
from shared.media.storage import DirectoryStore
from shared.problems import NotReady
from shared.service.asgi import AccessLog
from shared.service.batch_metrics import BatchMetrics
from shared.service.probes import operations_port
from shared.service.server_replies import UNUSABLE_REPLIES
from tests.support.databases import ON_SQLITE
from tests.support.extras import run
from tests.support.gateway_under_test import serve_gateway
from tests.support.paths import REPOSITORY
from tests.support.rows import add_job


def sample(exposed: str, name: str, **labels: str) -> float:
    """A sample's value; fails where there is none."""
    for line in exposed.splitlines():
        if line.startswith(f"{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.split()[-1])
    raise AssertionError(f"no {name} {labels} in\n{exposed}")


def test_the_gateway_exports_metrics_of_its_work_and_its_replies(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as gateway:
        add_job(gateway.context.sessions, "job", images=3)
        assert gateway.client.get("/jobs").status_code == 200
        assert gateway.client.get("/jobs/none").status_code == 404
        assert gateway.client.get("/models").status_code == 200
        text = gateway.client.get("/metrics").text
        assert sample(text, "contrafact_jobs", state="running") == 1
        assert sample(text, "contrafact_source_images", state="pending") == 3
        assert sample(text, "contrafact_source_images", state="failed") == 0
        requests = "contrafact_http_request_seconds_count"
        assert sample(text, requests, route="/jobs/{job}", method="GET", status="404", service="gateway") == 1
        assert sample(text, "contrafact_service_call_seconds_count", path="/v1/models", outcome="200") >= 1
        assert "process_resident_memory_bytes" in text
        names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
        assert len(names) == len(set(names))
        assert gateway.client.get("/readyz").json() == {"status": "ready"}
        gateway.context.stopping.set()
        assert gateway.client.get("/readyz").status_code == 503
        assert gateway.client.get("/healthz").status_code == 200


def test_the_port_for_the_machinery_asks_no_key_and_reports_the_truth() -> None:
    ill = threading.Event()

    def check() -> None:
        if ill.is_set():
            raise NotReady("out of order")

    with (
        operations_port(0, check, check, CollectorRegistry()) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        assert client.get("/healthz").json() == {"status": "alive"}
        assert client.get("/readyz").json() == {"status": "ready"}
        assert "contrafact_step_seconds" in client.get("/metrics").text
        assert client.get("/jobs").status_code == 404
        ill.set()
        for path in ("/healthz", "/readyz"):
            reply = client.get(path)
            assert (reply.status_code, reply.json()["detail"]) == (503, "out of order")
        with pytest.raises(OSError, match="in use"), operations_port(port, check, check, CollectorRegistry()):
            pass
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=60)


def refusal(sessions: Sessions, **settings: object) -> str:
    with pytest.raises(SystemExit) as end:
        refuse_unsafe_start(Settings.model_validate(settings), sessions)
    return str(end.value)


@ON_SQLITE
def test_a_deployment_does_not_start_without_keys(sessions: Sessions) -> None:
    refuse_unsafe_start(Settings(), sessions)
    deployed = {"broker_url": "redis://cache:6379/0"}
    assert "CONTRAFACT_AUTHENTICATION" in refusal(sessions, **deployed)
    assert "contrafact keys create" in refusal(sessions, authentication=True, **deployed)
    assert "contrafact keys create" in refusal(sessions, authentication=True)
    with sessions.begin() as session:
        create_key(session, "ann")
    refuse_unsafe_start(Settings(authentication=True, broker_url="redis://cache:6379/0"), sessions)
    with sessions.begin() as session:
        session.execute(delete(ApiKey))
        session.execute(text("UPDATE alembic_version SET version_num = '0000'"))
    assert "revision 0000" in refusal(sessions)


@ON_SQLITE
def test_a_gateway_whose_broker_cannot_be_used_is_not_ready_and_says_why(sessions: Sessions, tmp_path: Path) -> None:
    with sessions.begin() as session:
        key = create_key(session, "ann")
    places = {"database_url": f"sqlite:///{tmp_path / 'contrafact.db'}", "object_store": f"directory:{tmp_path}/o"}

    def readiness(broker: str) -> tuple[int, str]:
        settings = Settings.model_validate({**places, "broker_url": broker, "authentication": True})
        port = ListeningPort()
        try:
            port.serve(create_app(open_context(settings)))
            with httpx.Client(base_url=port.base_url, headers={"Authorization": f"Bearer {key}"}) as client:
                assert client.get("/healthz").status_code == 200
                assert client.get("/jobs").status_code == 200
                reply = client.get("/readyz")
                return reply.status_code, reply.json().get("detail", "")
        finally:
            port.close()

    assert readiness("redis://:secret@127.0.0.1:1/0") == (200, "")  # who is away for a while comes back
    status, reason = readiness("reddis://:secret@127.0.0.1:1/0")
    assert (status, "No such transport: reddis" in reason, "secret" in reason) == (503, True, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "without", "reason"),
    [
        ("redis://:secret@127.0.0.1:none/0", "", "CONTRAFACT_BROKER_URL"),
        ("redis://:secret@127.0.0.1:1/0", "packaging", "extra `gateway`"),
        ("redis://:secret@127.0.0.1:1/0", "redis", "extra `gateway`"),
    ],
)
def test_a_gateway_is_not_ready_and_a_worker_ends_where_the_broker_cannot_be_used(
    tmp_path: Path, url: str, without: str, reason: str
) -> None:
    ask = "from gateway import context, settings\nfrom gateway.operations import startup\n"
    ask += "startup.refuse_unready(context.open_context(settings.read_settings()))"
    for code in (ask, "from gateway.worker import worker\nworker.main()"):
        ended = run("gateway", code, tmp_path, without, CONTRAFACT_BROKER_URL=url)
        assert ended.returncode == 1
        assert reason in ended.stderr
        assert "secret" not in ended.stderr


def test_a_database_without_a_free_connection_refuses_the_start_in_a_sentence(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'contrafact.db'}"
    engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    with engine.connect(), pytest.raises(SystemExit, match=r"contrafact\.db does not answer: QueuePool"):
        refuse_wrong_schema(Settings(database_url=url), open_sessions(engine))
    engine.dispose()


@ON_SQLITE
def test_keys_are_made_listed_and_revoked_from_the_command_line(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTRAFACT_DATABASE_URL", f"sqlite:///{tmp_path / 'contrafact.db'}")
    monkeypatch.setenv("CONTRAFACT_AUTHENTICATION", "true")

    def run(*arguments: str, code: int = 0, stdin: str | None = None) -> str:
        result = CliRunner().invoke(command_line, ["keys", *arguments], input=stdin)
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    with pytest.raises(SystemExit, match="no API key yet"):
        create_app()
    key = run("create", "ann", "--name", "laptop", "--scope", "review").strip()
    create_app()
    own_key = "cf_" + "f" * 64
    assert run("create", "ci", "--scope", "admin", "--stdin", stdin=own_key + "\n") == ""
    assert own_key not in run("list")
    assert key not in run("list", "--json")
    assert [word in run("list") for word in ("laptop", "review", "admin", "ci")] == [True] * 4
    (row,) = [line for line in run("list").splitlines() if "laptop" in line]
    run("revoke", row.split()[0])
    assert "no such key" in run("revoke", "nonsense", code=2)
    assert "'root'" in run("create", "ann", "--scope", "root", code=2)


@pytest.mark.slow
@ON_SQLITE
def test_the_command_line_of_users_starts_that_of_operators(sessions: Sessions, tmp_path: Path) -> None:
    variables = {"CONTRAFACT_DATABASE_URL": f"sqlite:///{tmp_path / 'contrafact.db'}"}

    def contrafact(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from contrafact.cli import main; main()", *arguments]
        return subprocess.run(command, env=os.environ | variables, input=stdin, text=True, capture_output=True)

    key = "cf_" + "f" * 64
    assert contrafact("keys", "create", "ann", "--stdin", "--name=laptop", stdin=key).returncode == 0
    listed = contrafact("keys", "list", "--json")
    assert [row["name"] for row in json.loads(listed.stdout)] == ["laptop"]
    assert contrafact("keys", "revoke", "nonsense").returncode == 2
    assert "keys create [OPTIONS]" in contrafact("keys", "create", "--help").stdout


@ON_SQLITE
def test_housekeeping_from_the_command_line_says_what_it_removed(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path / "objects")
    store.put("reports/of-no-job.html", b"a report")
    monkeypatch.setenv("CONTRAFACT_DATABASE_URL", f"sqlite:///{tmp_path / 'contrafact.db'}")
    monkeypatch.setenv("CONTRAFACT_OBJECT_STORE", f"directory:{tmp_path / 'objects'}")
    result = CliRunner().invoke(command_line, ["housekeeping", "--no-grace"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["reports"] == 1
    assert not store.exists("reports/of-no-job.html")


def test_a_command_whose_package_is_not_installed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as exit_request:
        replace_process("contrafact_of_nobody.commands", [])
    assert exit_request.value.exit_code == 2
    assert "contrafact_of_nobody" in capsys.readouterr().err


def test_every_metric_is_described_and_every_described_one_exists() -> None:
    docs = REPOSITORY / "docs"
    page = (docs / "how-to" / "operations.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`(contrafact_\w+?)(?:_total)?(?:\{[^}]*\})?`", page))
    registry = CollectorRegistry()
    AccessLog(FastAPI(), "none", registry)
    BatchMetrics("none", registry)
    registry.register(UNUSABLE_REPLIES)
    counted = [metric.name for source in (registry, REGISTRY) for metric in source.collect()]
    exported = {name for name in counted if name.startswith("contrafact_")} | {
        "contrafact_jobs",
        "contrafact_source_images",
    }
    # Those of batches are in docs/reference/services.md.
    assert described == {name for name in exported if not name.startswith("contrafact_batch_")}
