"""Content Credentials (C2PA) in the generated images of an export, signed on this machine with your certificate.

Needs the extra `c2pa`. Nothing is sent: no time stamp service is asked, and none whether the certificate is revoked.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import IO

import numpy as np
from c2pa import Builder, C2paError, C2paSignerInfo, C2paSigningAlg, Context, Signer
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates

from shared import __version__
from shared.media.images import encode
from shared.media.xmp import SOURCE_TYPES
from shared.schemas.exports import DigitalSource

PROVENANCE = "provenance.jsonl"
_SETTINGS = {"builder": {"thumbnail": {"enabled": False}}, "verify": {"verify_after_sign": False}}


class ImageSigner:
    """Signs PNGs with a certificate chain and its private key, both in PEM."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        """Raises ValueError if either cannot be read, if they do not belong together, or if C2PA refuses them."""
        algorithm = _algorithm(certificate, key)
        try:
            self._context = Context.from_dict(_SETTINGS)
            self._signer = Signer.from_info(C2paSignerInfo(algorithm, certificate, key, None))
        except C2paError as error:
            raise ValueError(f"the certificate cannot sign: {error}") from error
        self.sign(encode(np.zeros((1, 1, 3), np.uint8)), "a first image", "trainedAlgorithmicMedia")

    def sign(self, png: bytes, name: str, source: DigitalSource) -> bytes:
        """The PNG with a manifest: one action, `c2pa.created`, with IPTC's term. Raises ValueError if C2PA refuses."""
        action = {"action": "c2pa.created", "digitalSourceType": f"{SOURCE_TYPES}{source}"}
        manifest = {
            "title": name,
            "claim_generator_info": [{"name": "Contrafact", "version": __version__}],
            "assertions": [{"label": "c2pa.actions", "data": {"actions": [action]}}],
        }
        signed = io.BytesIO()
        try:
            with Builder(json.dumps(manifest), self._context) as builder:
                builder.sign(self._signer, "image/png", io.BytesIO(png), signed)
        except C2paError as error:
            raise ValueError(f"the certificate cannot sign {name}: {error}") from error
        return signed.getvalue()


def sign_export(archive: Path, out: Path, signer: ImageSigner) -> int:
    """Write the tar of an export to `out`, its generated images signed. Returns how many these are.

    Source images stay as they are: Contrafact did not make them. Raises ValueError if the export's images are not files
    of their own, and what `ImageSigner.sign` raises.
    """
    with tarfile.open(archive) as exported, tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as target:
        terms = _terms(exported)
        for member in exported:
            with _open(exported, member.name) as file:
                data = file.read()
            if member.name in terms:
                data = signer.sign(data, Path(member.name).name, terms[member.name])
                member.size = len(data)
            target.addfile(member, io.BytesIO(data))
    return len(terms)


def _terms(exported: tarfile.TarFile) -> dict[str, DigitalSource]:
    """IPTC's term of each generated image, by its path in the archive."""
    if PROVENANCE not in exported.getnames():
        raise ValueError("this format has no image files to sign; export as folders, coco or fiftyone")
    with _open(exported, PROVENANCE) as lines:
        rows = map(json.loads, lines)
        return {row["file"]: row["digital_source_type"] for row in rows if row["digital_source_type"]}


def _open(exported: tarfile.TarFile, name: str) -> IO[bytes]:
    file = exported.extractfile(name)
    assert file is not None, "an export holds files only"
    return file


def _algorithm(certificate: bytes, key: bytes) -> C2paSigningAlg:
    """C2PA's algorithm for the key, which must be the certificate's."""
    try:
        chain = load_pem_x509_certificates(certificate)
    except ValueError as error:
        raise ValueError(f"the certificate chain is not PEM: {error}") from error
    try:
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: the key is encrypted
        raise ValueError(f"the private key is not PEM without a password: {error}") from error
    as_bytes = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*as_bytes) != chain[0].public_key().public_bytes(*as_bytes):
        raise ValueError("the private key is not that of the first certificate; put your own certificate first")
    match private:
        case EllipticCurvePrivateKey(curve=SECP256R1()):
            return C2paSigningAlg.ES256
        case EllipticCurvePrivateKey(curve=SECP384R1()):
            return C2paSigningAlg.ES384
        case Ed25519PrivateKey():
            return C2paSigningAlg.ED25519
        case RSAPrivateKey():
            return C2paSigningAlg.PS256
    raise ValueError("C2PA signs with keys on P-256 or P-384, Ed25519 and RSA; make one of these")
