"""`/images/{digest}`: upload images before a job, so that a large upload can resume; download your images."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from gateway.api.dependencies import Gateway, Owner, problems
from gateway.context import Context, read_stored
from gateway.database.sessions import reading
from gateway.intake.mask_files import keep_colours, keep_values
from gateway.intake.sources import keep_image
from gateway.results.provenance import packet_of_image
from gateway.storage import images
from shared.media.storage import image_key
from shared.media.xmp import with_xmp, xmp_bytes
from shared.problems import InvalidInput
from shared.schemas.images import ImageView

router = APIRouter(tags=["images"])
DIGEST = r"^[0-9a-f]{64}$"
UploadDigest = Annotated[str, Path(pattern=DIGEST, description="SHA-256 of the file's bytes, in hexadecimal")]
AsMask = Annotated[
    bool,
    Query(description="the file is a segmentation mask (PNG): its indices or grey values are stored with its colours"),
]
ImageDigest = Annotated[str, Path(pattern=DIGEST, description="`digest` or `upload` of an image")]
FILE = {"schema": {"type": "string", "format": "binary"}}
BODY = {"requestBody": {"required": True, "content": {"application/octet-stream": FILE}}}
IMMUTABLE = "private, max-age=31536000, immutable"  # a digest never means other pixels
ONE_HOUR = "private, max-age=3600"  # of a generated image the provenance changes when its job is deleted


@router.put(
    "/images/{digest}",
    openapi_extra=BODY,
    responses=problems(s400="not an image that is decoded, or broken", s413="too many bytes or pixels"),
)
async def upload_image(
    digest: UploadDigest, request: Request, gateway: Gateway, owner: Owner, mask: AsMask = False
) -> ImageView:
    """Upload one image; the body is the file. Sending it again changes nothing, and HEAD says whether it is needed."""
    return await run_in_threadpool(_keep, gateway, owner, digest, await request.body(), mask)


@router.head("/images/{digest}", responses=problems(s404="no such image"))
@router.get(
    "/images/{digest}",
    response_class=Response,
    responses={
        200: {"content": {"image/png": FILE}, "description": "the canonical pixels as lossless PNG"},
        304: {"description": "not modified"},
        **problems(s404="no such image, or not yours"),
    },
)
def download_image(
    digest: ImageDigest,
    request: Request,
    gateway: Gateway,
    owner: Owner,
    mask: AsMask = False,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """An image that you uploaded, or that one of your jobs made; the latter says so in its XMP.

    The ETag covers pixels and XMP: the XMP names a job, and changes if that job is deleted.
    """
    with reading(gateway.sessions) as session:
        image = images.find_mask(session, owner, digest) if mask else images.find(session, owner, digest)
        packet = None if mask else packet_of_image(session, owner, image.digest)
    tag = f'"{image.digest if packet is None else image.digest + hashlib.sha256(packet).hexdigest()}"'
    freshness = IMMUTABLE if mask else ONE_HOUR
    headers = {"ETag": tag, "Cache-Control": freshness, "X-Content-Type-Options": "nosniff"}
    if if_none_match is not None and tag in if_none_match:
        return Response(status_code=304, headers=headers)
    if request.method == "HEAD":
        length = image.bytes + (0 if packet is None else xmp_bytes(packet))
        return Response(media_type="image/png", headers={**headers, "Content-Length": str(length)})
    png = read_stored(gateway, image_key(image.digest))
    return Response(png if packet is None else with_xmp(png, packet), media_type="image/png", headers=headers)


def _keep(gateway: Context, owner: str, digest: str, data: bytes, as_mask: bool) -> ImageView:
    if hashlib.sha256(data).hexdigest() != digest:
        raise InvalidInput("the body's SHA-256 is not the digest in the path; the file changed, or arrived damaged")
    place = images.ProtectedStore(gateway.sessions, gateway.store)
    if as_mask:
        reply = keep_values(place, data, gateway.limits)
        colours = keep_colours(place, data, gateway.limits)
        stored_images = [colours, replace(reply, upload=images.mask_upload(digest))]
    else:
        reply = keep_image(place, data, gateway.limits)
        stored_images = [reply]
    with gateway.sessions.begin() as session:
        images.record_images(session, owner, stored_images)
    return ImageView(
        digest=reply.digest,
        upload=digest,
        width=reply.width,
        height=reply.height,
        bytes=reply.bytes,
        scaled_from=None if reply.file_size == (reply.width, reply.height) else reply.file_size,
    )
