"""`contrafact export --c2pa`: C2PA's own reader finds a valid signature in every generated image, and in no other."""

from __future__ import annotations

import io
import json
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from c2pa import C2paError, Reader
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa_key
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from typer.testing import CliRunner, Result

from contrafact.cli import app
from contrafact.export_command import C2PA_KEY
from shared.media.images import decode, digest
from shared.media.xmp import SOURCE_TYPES
from tests.support.exports import FILES
from tests.support.gateway_under_test import Gateway

FILTERS = ["--where", "class=bus", "--where", "value=night"]
ROOT = generate_private_key(SECP256R1())
KEYS: dict[str, CertificateIssuerPrivateKeyTypes] = {
    "P-256": generate_private_key(SECP256R1()),
    "Ed25519": Ed25519PrivateKey.generate(),
    "RSA": generate_rsa_key(65537, 2048),
}


def certificate(key: CertificateIssuerPrivateKeyTypes, name: str, days: int = 10) -> x509.Certificate:
    """A certificate of our own root; for the root's key, the root's."""

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, text)])

    is_root = key is ROOT
    root_id = x509.SubjectKeyIdentifier.from_public_key(ROOT.public_key())
    uses = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
    )
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named("root"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(is_root, None), True)
        .add_extension(
            x509.KeyUsage(
                **uses, digital_signature=not is_root, key_cert_sign=is_root, crl_sign=is_root, decipher_only=False
            ),
            True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(root_id), False)
    )
    if not is_root:
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), True)
    return builder.sign(ROOT, SHA256())


def chain(folder: Path, key: CertificateIssuerPrivateKeyTypes, days: int = 10) -> Path:
    path = folder / "chain.pem"
    own, root = certificate(key, "Tests", days), certificate(ROOT, "root")
    path.write_bytes(own.public_bytes(Encoding.PEM) + root.public_bytes(Encoding.PEM))
    return path


def pem(key: CertificateIssuerPrivateKeyTypes, password: bytes = b"") -> str:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()


def run_export(gateway: Gateway, out: Path | str, *arguments: Path | str, key: str = "") -> Result:
    command = ["export", "drawn", *FILTERS, *map(str, arguments), "-o", str(out)]
    return CliRunner().invoke(app, [*command, "--url", str(gateway.client.base_url)], env={C2PA_KEY: key})


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        files = {name: archive.extractfile(name) for name in archive.getnames()}
        return {name: file.read() for name, file in files.items() if file is not None}


def manifest_of(png: bytes) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(Reader("image/png", io.BytesIO(png)).json())
    assert report["validation_state"] == "Valid", report["validation_status"]
    # Nobody trusts the root of these tests.
    assert [status["code"] for status in report["validation_status"]] == ["signingCredential.untrusted"]
    manifest: dict[str, Any] = report["manifests"][report["active_manifest"]]
    return manifest


@pytest.mark.parametrize("format_name", FILES)
def test_generated_images_are_signed_and_all_else_is_as_without(
    gateway: Gateway, format_name: str, tmp_path: Path
) -> None:
    key = KEYS["P-256"]
    plain = run_export(gateway, tmp_path / "plain.tar", "--format", format_name)
    assert plain.exit_code == 0, plain.output
    out = tmp_path / "signed.tar"
    signed = run_export(gateway, out, "--format", format_name, "--c2pa", chain(tmp_path, key), key=pem(key))
    assert (signed.exit_code, signed.stdout) == (0, f"{out}\n"), signed.output
    before, after = members(tmp_path / "plain.tar"), members(out)
    assert list(before) == list(after)
    rows = [json.loads(line) for line in after["provenance.jsonl"].splitlines()]
    types = {row["file"]: row["digital_source_type"] for row in rows}
    generated = {name for name, term in types.items() if term}
    assert f"{len(generated)} generated images signed" in signed.stderr
    assert {name.partition("/")[0] for name in generated} == {"counterfactual", "null_arm"}
    assert {name for name in before if before[name] != after[name]} == generated
    for name in generated:
        manifest = manifest_of(after[name])
        (actions,) = (item["data"]["actions"] for item in manifest["assertions"] if "actions" in item["label"])
        assert [(action["action"], action["digitalSourceType"]) for action in actions] == [
            ("c2pa.created", SOURCE_TYPES + types[name])
        ]
        assert manifest["signature_info"]["issuer"] == "Tests"
        assert b"urn:contrafact:provenance:" in after[name], "XMP stays, and is signed with the pixels"
        assert digest(decode(after[name])) == digest(decode(before[name]))
    for name in types.keys() - generated:
        with pytest.raises(C2paError.ManifestNotFound):
            Reader("image/png", io.BytesIO(after[name]))


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_several_kinds_sign(gateway: Gateway, kind: str, tmp_path: Path) -> None:
    key, out = KEYS[kind], tmp_path / "set.tar"
    result = run_export(gateway, out, "--c2pa", chain(tmp_path, key), key=pem(key))
    assert result.exit_code == 0, result.output
    png = next(png for name, png in members(out).items() if name.startswith("counterfactual/"))
    manifest_of(png)
    changed = png[:-13] + bytes([png[-13] ^ 1]) + png[-12:]
    report = json.loads(Reader("image/png", io.BytesIO(changed)).json())
    assert report["validation_state"] == "Invalid"


def test_what_cannot_be_signed_is_said_before_anything_is_written(gateway: Gateway, tmp_path: Path) -> None:
    key, other = KEYS["P-256"], KEYS["Ed25519"]
    path, out = chain(tmp_path, key), tmp_path / "set.tar"
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    refusals = [
        (run_export(gateway, out, "--c2pa", path), C2PA_KEY),
        (run_export(gateway, out, "--c2pa", path, key="junk"), "not PEM without a password"),
        (run_export(gateway, out, "--c2pa", path, key=pem(key, b"secret")), "without a password"),
        (run_export(gateway, out, "--c2pa", path, key=pem(other)), "not that of the first certificate"),
        (run_export(gateway, out, "--c2pa", junk, key=pem(key)), "chain is not PEM"),
        (run_export(gateway, "-", "--c2pa", path, key=pem(key)), "--out FILE"),
        (run_export(gateway, out, "--format", "huggingface", "--c2pa", path, key=pem(key)), "--format folders"),
        (run_export(gateway, out, "--c2pa", chain(tmp_path, key, days=-1), key=pem(key)), "cannot sign a first image"),
    ]
    for result, words in refusals:
        assert (result.exit_code, result.stdout) == (2, ""), result.output
        assert words in result.stderr
        assert "PRIVATE KEY" not in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chain.pem", "junk.pem"], "nothing half is left"
