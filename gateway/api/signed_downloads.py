"""`/stored/{key}`: what a presigned URL is where the object store is a directory. For the evaluator, not for users.

The link is the key: it names one object and its expiry, signed with a secret that only this installation has.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import FileResponse

from gateway.api.dependencies import Gateway
from shared.media.storage import LINK_PATH, DirectoryStore, ObjectMissing
from shared.problems import Forbidden, NotFound

router = APIRouter(include_in_schema=False)


@router.get(LINK_PATH + "{key:path}")
def show_stored(
    gateway: Gateway,
    key: Annotated[str, Path(max_length=512)],
    expires: Annotated[int, Query(ge=0, lt=2**53)],
    signature: Annotated[str, Query(max_length=64)],
) -> FileResponse:
    """The bytes of an object, for a link that has not expired."""
    if not isinstance(gateway.store, DirectoryStore):
        raise NotFound("this installation's object store serves its own links")
    try:
        path = gateway.store.file_of_link(key, expires, signature)
    except ObjectMissing as error:
        raise NotFound("there is no such object") from error
    except PermissionError as error:
        raise Forbidden(str(error)) from error
    return FileResponse(path, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})
