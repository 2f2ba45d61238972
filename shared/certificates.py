"""Certificates of servers: which authorities are trusted, and why a TLS connection failed.

Trusted are those of `SSL_CERT_FILE` or `SSL_CERT_DIR`, else the public ones that come with httpx, and in addition those
of a `ca_file` and of `CONTRAFACT_CA_FILE`.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import httpx

CA_FILE = "CONTRAFACT_CA_FILE"


def trusted(ca_file: Path | str = "") -> ssl.SSLContext:
    """TLS that trusts these authorities. Raises ValueError for a file that cannot be read."""
    try:
        context = httpx.create_ssl_context()
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(f"the certificates of SSL_CERT_FILE or SSL_CERT_DIR cannot be read: {error}") from error
    for file in [file for file in (os.environ.get(CA_FILE), ca_file) if file]:
        try:
            context.load_verify_locations(cafile=file)
        except OSError as error:
            raise ValueError(f"the certificates of {file} cannot be read ({error}); give a PEM file") from error
    return context


def tls_fault(error: BaseException) -> str:
    """Why a TLS connection failed, with what to do; empty for other errors."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return ""
    if isinstance(cause, ssl.SSLCertVerificationError):
        remedy = "name its authority's PEM file by SSL_CERT_FILE, `ca_file`, or `contrafact --ca-file FILE COMMAND`"
        return f"its certificate is not trusted ({cause.verify_message}); {remedy}"
    return f"TLS failed ({cause.reason or cause}); is its address one of http:// rather than https://?"
