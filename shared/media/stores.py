"""Open the object store that `CONTRAFACT_OBJECT_STORE` names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shared.media.storage import DirectoryStore

if TYPE_CHECKING:
    from shared.media.s3_store import S3Store


def store_at(
    place: str, url: str, endpoint: str, access_key: str, secret_key: str, secure: bool
) -> DirectoryStore | S3Store:
    """Open the store at `place`: `directory:PATH`, whose links lead to `url`, or `s3:BUCKET` at `endpoint`.

    Raises ValueError for another form, and if the S3 client library is not installed.
    """
    kind, _, name = place.partition(":")
    if kind == "directory" and name:
        return DirectoryStore(Path(name), url)
    if kind != "s3" or not name:
        raise ValueError(f"CONTRAFACT_OBJECT_STORE must be directory:PATH or s3:BUCKET: {place!r}")
    endpoint = endpoint.rstrip("/")
    if "/" in endpoint:
        raise ValueError(
            "CONTRAFACT_S3_ENDPOINT must be HOST or HOST:PORT, without http:// and without a path; "
            "CONTRAFACT_S3_SECURE=true says https"
        )
    try:
        from shared.media.s3_store import S3Store
    except ImportError as error:
        raise ValueError(
            f"the client of S3 servers cannot be imported ({error}): install the packages of the extra `gateway`"
        ) from error
    return S3Store(endpoint, name, access_key, secret_key, secure)
