"""Rows of images and of their owners. The bytes are in the object store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions, insert_missing
from gateway.database.tables import Image, OwnedImage, Table, Upload
from gateway.intake.sources import KeptImage, KeptMask, SourceFile
from shared.chunks import chunks
from shared.media.images import Mode
from shared.media.storage import ObjectStore
from shared.problems import InvalidInput, NotFound
from shared.schemas.jobs import ManifestImage
from shared.seeds import derive_digest

_ROWS_PER_STATEMENT = 1_000
_MISSING_LISTED = 1_000


class ProtectedStore:
    """The object store for intake. `exists` also protects the image from housekeeping until its row is written."""

    def __init__(self, sessions: Sessions, store: ObjectStore) -> None:
        self._sessions = sessions
        self._store = store

    def exists(self, key: str) -> bool:
        """Whether the store has the image. If so, housekeeping keeps it for the grace period."""
        with self._sessions.begin() as session:
            protect(session, [key.rpartition("/")[2].removesuffix(".png")])
        return self._store.exists(key)

    def put(self, key: str, data: bytes) -> None:
        """Store the image."""
        self._store.put(key, data)


def protect(session: Session, digests: Sequence[str]) -> set[str]:
    """Protect images from housekeeping for the grace period from now. Returns the digests that have rows.

    Call it before you check whether an image exists that you will refer to. It waits for a removal in progress, so an
    image that exists afterwards stays.
    """
    digests_with_rows: set[str] = set()
    for chunk in chunks(digests, _ROWS_PER_STATEMENT):
        session.execute(
            update(Image)
            .where(Image.digest.in_(chunk), Image.unreferenced_since.is_not(None))
            .values(unreferenced_since=None)
            .execution_options(synchronize_session=False)
        )
        digests_with_rows |= set(session.scalars(select(Image.digest).where(Image.digest.in_(chunk))))
    return digests_with_rows


def record_images(session: Session, owner: str, uploaded: Sequence[KeptImage]) -> None:
    """Record that the owner has these images. Repeating it changes nothing."""
    by_digest = {image.digest: image for image in uploaded}
    images = [by_digest[digest] for digest in sorted(by_digest)]
    protect(session, [image.digest for image in images])
    _insert_all(
        session,
        Image,
        [{"digest": i.digest, "width": i.width, "height": i.height, "bytes": i.bytes, "mode": i.mode} for i in images],
    )
    _insert_all(session, OwnedImage, [{"owner_id": owner, "digest": image.digest} for image in images])
    uploads = {image.upload: image.digest for image in uploaded}
    _insert_all(
        session,
        Upload,
        [
            {"owner_id": owner, "original_digest": upload, "digest": digest}
            for upload, digest in sorted(uploads.items())
        ],
    )


def record_masks(session: Session, owner: str, uploaded: Sequence[KeptMask]) -> None:
    """Record that the owner has these masks. Repeating it changes nothing."""
    by_digest = {mask.digest: mask for mask in uploaded}
    masks = [by_digest[digest] for digest in sorted(by_digest)]
    protect(session, [mask.digest for mask in masks])
    rows = [{"digest": m.digest, "width": m.width, "height": m.height, "bytes": m.bytes, "mode": "L"} for m in masks]
    _insert_all(session, Image, rows)
    _insert_all(session, OwnedImage, [{"owner_id": owner, "digest": mask.digest} for mask in masks])


def find(session: Session, owner: str, digest: str) -> KeptImage:
    """The owner's image with this digest of its canonical pixels or of the uploaded file. Raises NotFound."""
    image = find_all(session, owner, [digest]).get(digest)
    if image is None:
        raise NotFound(f"you have no image {digest}; PUT /images/{{digest}} uploads one")
    return image


def find_all(session: Session, owner: str, digests: Sequence[str]) -> dict[str, KeptImage]:
    """The owner's images by digest of uploaded files or canonical pixels. Unknown digests are absent."""
    images: dict[str, KeptImage] = {}
    for chunk in chunks(digests, _ROWS_PER_STATEMENT):
        owned = select(Image).join(OwnedImage).where(OwnedImage.owner_id == owner, Image.digest.in_(chunk))
        for image in session.scalars(owned):
            images[image.digest] = _stored_image(image, image.digest)
        uploaded = (
            select(Image, Upload.original_digest)
            .join(Upload, Upload.digest == Image.digest)
            .where(Upload.owner_id == owner, Upload.original_digest.in_(chunk))
        )
        for image, original in session.execute(uploaded):
            images[original] = _stored_image(image, original)
    return images


def find_masks(session: Session, owner: str, digests: Sequence[str], coloured: bool) -> dict[str, KeptImage]:
    """The owner's masks by digest of files uploaded as masks or of label maps. Unknown digests are absent.

    `coloured`: return the colours of masks whose classes are colours, not indices.
    """
    plain = find_all(session, owner, digests)
    masks = {digest: image for digest, image in plain.items() if image.mode == "L"}
    names = {mask_upload(digest): digest for digest in digests}
    for name, image in find_all(session, owner, list(names)).items():
        digest = names[name]
        masks[digest] = replace(plain[digest] if coloured and digest in plain else image, upload=digest)
    return masks


def find_mask(session: Session, owner: str, digest: str) -> KeptImage:
    """The indices (or colours) of the owner's mask with this digest. Raises NotFound."""
    mask = find_masks(session, owner, [digest], False).get(digest)
    if mask is None:
        raise NotFound(f"you have no mask {digest}; PUT /images/{{digest}}?mask=true uploads one")
    return mask


def mask_upload(upload: str) -> str:
    """The upload digest of a file sent as a mask. It differs from the digest of the same bytes sent as an image."""
    return derive_digest("mask", upload).hex()


def masks_of_manifest(
    session: Session, owner: str, entries: Sequence[ManifestImage], coloured: bool
) -> dict[str, KeptImage]:
    """The masks of a JSON manifest. Raises InvalidInput with the digests that are not uploaded as masks."""
    digests = list(dict.fromkeys(entry.mask for entry in entries if entry.mask is not None))
    protect(session, sorted({mask.digest for mask in find_masks(session, owner, digests, coloured).values()}))
    masks = find_masks(session, owner, digests, coloured)
    _refuse_missing("masks", [digest for digest in digests if digest not in masks], "?mask=true")
    return masks


def from_manifest(session: Session, owner: str, entries: Sequence[ManifestImage]) -> list[SourceFile]:
    """The source images of a JSON manifest. Raises InvalidInput with the digests that are not uploaded."""
    digests = list(dict.fromkeys(entry.digest for entry in entries))
    protect(session, sorted({image.digest for image in find_all(session, owner, digests).values()}))
    images = find_all(session, owner, digests)
    _refuse_missing("images", [digest for digest in digests if digest not in images or images[digest].mode != "RGB"])
    return [
        SourceFile(
            entry.name,
            entry.label,
            images[entry.digest],
            group=entry.group,
            boxes=entry.true_boxes,
            questions=entry.true_questions,
        )
        for entry in entries
    ]


def _refuse_missing(kind: str, missing: Sequence[str], query: str = "") -> None:
    if missing:
        raise InvalidInput(
            f"{len(missing)} {kind} of the manifest are not uploaded, first {missing[0]}; "
            f"upload them with PUT /images/{{digest}}{query}",
            members={"missing": [*missing[:_MISSING_LISTED]], "missing_total": len(missing)},
        )


def _stored_image(image: Image, upload: str) -> KeptImage:
    mode: Mode = "L" if image.mode == "L" else "RGB"
    return KeptImage(image.digest, upload, image.width, image.height, image.bytes, mode)


def _insert_all(session: Session, table: type[Table], rows: Sequence[Mapping[str, object]]) -> None:
    for chunk in chunks(rows, _ROWS_PER_STATEMENT):
        insert_missing(session, table, chunk)
