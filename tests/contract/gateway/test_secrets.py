"""Secrets appear in no log line, no reply and no message: each is set to a canary value."""

from __future__ import annotations

import asyncio
import io
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest
from fastapi import Request, Response
from pydantic import SecretStr, ValidationError
from typer.testing import CliRunner

from gateway.app import create_app
from gateway.auth.keys import create_key, hash_of
from gateway.auth.middleware import COOKIE
from gateway.commands import app as command_line
from gateway.operations.doctor import examine
from gateway.queue.celery_tasks import wake_worker
from gateway.settings import Settings, read_settings
from shared.service.celery_app import open_celery
from shared.service.model_service import ModelService
from shared.service.settings import ServiceSettings
from tests.support.gateway_under_test import Gateway
from tests.support.log_lines import Nothing
from tests.support.serving import serving

CANARY = "tweet-Tweet-0123456789"
KEY = f"cf_{CANARY}-and-as-long-as-keys-are-and-longer"
ENVIRONMENT = {
    "CONTRAFACT_DATABASE_URL": f"postgresql+psycopg://ann:{CANARY}@127.0.0.1:1/contrafact",
    "CONTRAFACT_BROKER_URL": f"redis://:{CANARY}@127.0.0.1:1/0",
    "CONTRAFACT_OBJECT_STORE": "s3:bucket",
    "CONTRAFACT_S3_ENDPOINT": "127.0.0.1:1",
    "CONTRAFACT_S3_ACCESS_KEY": "ann",
    "CONTRAFACT_S3_SECRET_KEY": CANARY,
    "CONTRAFACT_CAPTION_URL": f"http://ann:{CANARY}@127.0.0.1:1",
    "CONTRAFACT_AUTHENTICATION": "true",
    "HF_TOKEN": CANARY,
}


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def test_settings_tell_nothing(secrets: None, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings()
    assert settings.s3_secret_key == SecretStr(CANARY)
    assert CANARY not in repr(settings) + str(settings)
    monkeypatch.setenv("CONTRAFACT_AUTHENTICATION", CANARY)
    with pytest.raises(ValidationError) as error:
        Settings()
    assert CANARY not in str(error.value)
    with pytest.raises(SystemExit) as end:
        read_settings()
    assert CANARY not in str(end.value)
    assert "CONTRAFACT_AUTHENTICATION" in str(end.value)


def test_errors_of_an_incomplete_deployment_reveal_no_secret(secrets: None, log: io.StringIO) -> None:
    with pytest.raises(SystemExit) as end:
        create_app()
    assert "does not answer" in str(end.value)
    answers = [answer for answer in examine(read_settings()) if not answer.fine]
    assert {answer.part for answer in answers} >= {"database", "broker", "object store", "caption_service"}
    wake_worker(open_celery(ENVIRONMENT["CONTRAFACT_BROKER_URL"]))
    result = CliRunner().invoke(command_line, ["keys", "list"])
    assert result.exit_code != 0
    everything = [str(end.value), log.getvalue(), result.output, *(str(asdict(answer)) for answer in answers)]
    assert CANARY not in "".join(everything)
    assert "wake-up" in log.getvalue()


def test_keys_and_cookies_are_in_no_answer_log_or_row(log: io.StringIO, locked: Gateway, tmp_path: Path) -> None:
    client, ours = locked.client, {"Origin": str(locked.client.base_url).rstrip("/")}
    with locked.context.sessions.begin() as session:
        create_key(session, "ann", ["admin"], key=KEY)
    wrong = KEY.replace("and", "AND")
    bearer = {"Authorization": f"Bearer {KEY}"}
    replies = [
        client.get("/jobs", headers=bearer),
        client.get("/metrics", headers=bearer),
        client.get("/openapi.json"),
        client.get("/jobs", headers={"Authorization": f"Bearer {wrong}"}),
        client.get("/jobs", headers={"Authorization": f"Basic {KEY}"}),
        client.get("/jobs", headers={"X-API-Key": KEY, "X-Request-ID": KEY[:70]}),
        client.post("/jobs", headers=bearer | {"Content-Type": "application/json"}, content=f'{{"key": "{KEY}"}}'),
        client.post("/login", data={"key": wrong}, headers=ours),
        client.post("/login", data={"key": KEY}, headers=ours),
    ]
    cookie = client.cookies[COOKIE]
    replies += [client.get("/", headers={"Accept": "text/html"}), client.post("/jobs", headers=ours)]
    client.get(f"/jobs/{KEY}", headers=bearer)  # a user's slip: answered to the same user only, masked in the log
    client.get(f"/jobs?key={KEY}", headers=bearer)
    assert [reply.status_code for reply in replies] == [200, 200, 200, 401, 401, 401, 422, 401, 303, 200, 403]
    assert CANARY not in "".join(reply.text + str(reply.headers.get("Location")) for reply in replies)
    assert cookie not in "".join(reply.text for reply in replies)
    lines = log.getvalue()
    assert "GET /jobs/***" in lines
    for secret in (CANARY, cookie, hash_of(KEY), hash_of(cookie)):
        assert secret not in lines
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("contrafact.db*"))
    assert hash_of(KEY).encode() in stored
    assert CANARY.encode() not in stored
    assert cookie.encode() not in stored


def test_an_unexpected_error_is_not_quoted_and_its_traceback_is_masked(locked: Gateway, log: io.StringIO) -> None:
    def broken(_: Request) -> Response:
        raise RuntimeError(f"cannot reach postgresql://ann:{CANARY}@db/contrafact with {KEY}")

    locked.app.router.add_route("/broken", broken)
    with locked.context.sessions.begin() as session:
        create_key(session, "ann", key=KEY)
    reply = locked.client.get("/broken", headers={"Authorization": f"Bearer {KEY}"})
    assert reply.status_code == 500
    assert reply.json()["request_id"]
    assert CANARY not in reply.text
    assert "RuntimeError" in log.getvalue()
    assert reply.json()["request_id"] in log.getvalue()
    assert CANARY not in log.getvalue()


def test_a_model_service_reveals_nothing_of_its_environment(secrets: None, log: io.StringIO) -> None:
    async def look() -> list[httpx.Response]:
        service = ModelService("nothing", "1", ServiceSettings(), Nothing)
        async with serving(service.app) as client:
            bearer = {"Authorization": f"Bearer {KEY}"}
            paths = ("/v1/info", "/metrics", "/healthz", "/readyz", "/openapi.json", "/none")
            return [await client.get(path, headers=bearer) for path in paths]

    replies = asyncio.run(look())
    assert [reply.status_code for reply in replies] == [200, 200, 200, 200, 200, 404]
    assert CANARY not in "".join(reply.text for reply in replies) + log.getvalue()
