"""Addresses of other servers as people write them: read, or refused by the name of the variable."""

from __future__ import annotations

import pytest

from gateway.settings import Settings, read_settings
from shared.media.stores import store_at
from shared.service.celery_app import broker_fault, open_celery


@pytest.mark.parametrize("kind", ["postgres", "postgresql", "postgresql+psycopg"])
def test_a_database_url_of_a_hosting_service_is_read(kind: str) -> None:
    assert Settings(database_url=f"{kind}://me:p%40w@db/name").database_url == "postgresql+psycopg://me:p%40w@db/name"


@pytest.mark.parametrize("url", ["mysql://me:secret@db/name", "sqllite:///x.db", "x.db"])
def test_another_database_is_refused_without_its_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTRAFACT_DATABASE_URL", url)
    with pytest.raises(SystemExit, match=r"CONTRAFACT_DATABASE_URL: .*sqlite:///PATH") as refusal:
        read_settings()
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("endpoint", ["http://s3.example.org", "s3.example.org/minio"])
def test_an_s3_endpoint_is_a_host(endpoint: str) -> None:
    with pytest.raises(ValueError, match="CONTRAFACT_S3_ENDPOINT must be HOST"):
        store_at("s3:bucket", "", endpoint, "key", "secret", secure=False)


def test_a_broker_s_password_is_quoted() -> None:
    """kombu drops what follows a #, and connects to another server."""
    fault = broker_fault(open_celery("redis://:12#3@127.0.0.1:6379/0"))
    assert "%23" in fault
    assert "12" not in fault
