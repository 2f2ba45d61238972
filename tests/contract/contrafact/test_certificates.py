"""Servers whose certificate is of a private authority: refused with the remedy, and trusted where the file is named."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from fastapi import FastAPI
from typer.testing import CliRunner

from contrafact.async_client import AsyncClient
from contrafact.cli import app
from contrafact.client import Client, Unreachable
from evaluator_service.models_under_test.endpoint import EndpointModel
from shared.certificates import CA_FILE, trusted
from shared.problems import DependencyFailed
from shared.profiles.evaluator import ModelEndpoint
from shared.profiles.weights import Server
from shared.service.chat_server import ChatServer
from tests.support.language_servers import listening

UNTRUSTED = "its certificate is not trusted .*SSL_CERT_FILE"
site = FastAPI()


@site.get("/jobs")
def jobs() -> dict[str, object]:
    return {"jobs": [], "next": None}


@site.post("/classify")
def classify() -> dict[str, object]:
    return {"probabilities": [[0.25, 0.75]]}


@site.post("/v1/chat/completions")
def complete() -> dict[str, object]:
    return {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of localhost with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    now = datetime.now(UTC)
    signed = (
        builder.not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + signed.public_bytes(pem))
    return path


@pytest.fixture(scope="module")
def url(certificate: Path) -> Iterator[str]:
    with listening(site, certificate) as address:
        yield address


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "")
    monkeypatch.setenv("SSL_CERT_DIR", "")
    monkeypatch.setenv(CA_FILE, "")
    contexts = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", getattr(contexts, "__wrapped__", contexts))  # others share one


def count_jobs(address: str, ca_file: Path | str = "") -> int:
    with closing(Client(address, ca_file=ca_file)) as client:
        return len(client.jobs().jobs)


def test_clients_trust_a_named_file_or_that_of_the_environment(
    url: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unreachable, match=UNTRUSTED):
        count_jobs(url)
    assert count_jobs(url, certificate) == 0

    async def list_jobs() -> int:
        async with AsyncClient(url, ca_file=certificate) as client:
            return len((await client.jobs()).jobs)

    assert asyncio.run(list_jobs()) == 0
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert count_jobs(url) == 0
    with pytest.raises(ValueError, match=r"missing\.pem"):
        count_jobs(url, "missing.pem")


def test_the_command_line_takes_the_file(url: str, certificate: Path) -> None:
    refused = CliRunner().invoke(app, ["list", "--url", url])
    assert refused.exit_code == 4
    assert "--ca-file" in refused.stderr
    assert "nothing answers" not in refused.stderr
    public = trusted().cert_store_stats()["x509_ca"]
    listed = CliRunner().invoke(app, ["--ca-file", str(certificate), "list", "--url", url, "--json"])
    assert (listed.exit_code, listed.stdout.strip()) == (0, '{"jobs":[],"next":null}')
    assert trusted().cert_store_stats()["x509_ca"] == public + 1 > 100, "the public ones are trusted, too"


def test_nothing_answers_only_where_nothing_does(url: str) -> None:
    with pytest.raises(Unreachable, match="nothing answers"):
        count_jobs("http://127.0.0.1:9")
    with listening(site) as plain, pytest.raises(Unreachable, match="http://"):
        count_jobs(plain.replace("http:", "https:"))


def test_servers_of_models_take_the_file(url: str, certificate: Path) -> None:
    server = {"url": f"{url}/v1", "model": "small", "revision": "1", "licence": "none", "gigabytes": 1}
    model = {"url": f"{url}/classify", "classes": ["car", "bus"], "revision": "1", "licence": "none"}

    async def ask(ca_file: str) -> tuple[object, list[float]]:
        deadline = time.monotonic() + 60
        chat = ChatServer(Server.model_validate(server | {"ca_file": ca_file}))
        endpoint = EndpointModel(ModelEndpoint.model_validate(model | {"ca_file": ca_file}))
        yes, _ = await chat.choose([{"role": "user", "content": "Is it a bus?"}], deadline)
        (row,) = await endpoint.outputs([b"png"], deadline)
        return yes, row.tolist()

    assert asyncio.run(ask(str(certificate))) == (1.0, [0.25, 0.75])
    with pytest.raises(DependencyFailed, match=UNTRUSTED):
        asyncio.run(ask(""))
    untrusting = EndpointModel(ModelEndpoint.model_validate(model))
    with pytest.raises(DependencyFailed, match=UNTRUSTED):
        asyncio.run(untrusting.outputs([b"png"], time.monotonic() + 60))
