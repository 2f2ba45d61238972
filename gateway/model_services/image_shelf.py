"""The images of one step of one owner: loaded from the object store, or stored there before a row names them."""

from __future__ import annotations

import hashlib

from gateway.database.sessions import Sessions, insert_missing
from gateway.database.table_base import utc_now
from gateway.database.tables import Image, OwnedImage
from gateway.storage.images import protect
from shared.media.images import CanonicalImage, Mode, decode, digest
from shared.media.storage import ObjectMissing, ObjectStore, image_key

SAVED_BYTES = 32 * 1024**2
_PNG_COLOUR_TYPE = 25  # offset in a PNG file: 0 is grey


class ImageShelf:
    """The images of one step by digest (`shared.schemas.base.ImageKeeper`), in memory until `save`.

    `keep` holds an image in memory; `save` writes images to the object store and their rows to the database, once. The
    last `SAVED_BYTES` of saved images stay in memory; older ones are read from the object store again.
    """

    def __init__(self, store: ObjectStore, sessions: Sessions, owner_id: str) -> None:
        self.store = store
        self._sessions = sessions
        self._owner_id = owner_id
        self._images: dict[str, CanonicalImage] = {}
        self._digests: dict[bytes, str] = {}
        self._saved: set[str] = set()

    def keep(self, png: bytes) -> str:
        """Keep an image; returns the digest of its pixels."""
        name = hashlib.sha256(png).digest()
        if name not in self._digests:
            image = canonical_png(png)
            self._digests[name] = image.digest
            self._images.setdefault(image.digest, image)
        return self._digests[name]

    def load(self, digest: str) -> bytes:
        """The PNG of an image that is kept here or stored. Raises ObjectMissing."""
        if digest in self._images:
            return self._images[digest].png
        png = self.store.get(image_key(digest))
        if self.keep(png) != digest:
            raise ObjectMissing(image_key(digest))  # its content does not match its digest: render it again
        self._saved.add(digest)
        self._drop_saved()
        return png

    def save(self, digests: set[str]) -> None:
        """Write kept images: the bytes first, then the rows.

        Protects them from housekeeping for the grace period. Images that housekeeping has removed are written again.
        """
        with self._sessions.begin() as session:
            protected = protect(session, sorted(digests))
        saved_at = utc_now()
        images: list[dict[str, str | int]] = []
        for name in sorted(digests - (self._saved & protected)):
            image = self._images.get(name) or canonical_png(self.load(name))
            if not self.store.exists(image_key(name)):
                self.store.put(image_key(name), image.png)
            images.append(image_row(image))
        owned = [{"owner_id": self._owner_id, "digest": image["digest"], "created_at": saved_at} for image in images]
        with self._sessions.begin() as session:
            insert_missing(session, Image, images)
            insert_missing(session, OwnedImage, owned)
        self._saved |= digests
        self._drop_saved()

    def _drop_saved(self) -> None:
        """Drop the bytes of the saved images beyond `SAVED_BYTES`, the oldest first."""
        saved = [image for name, image in self._images.items() if name in self._saved]
        excess = sum(len(image.png) for image in saved) - SAVED_BYTES
        for image in saved:
            if excess <= 0:
                return
            excess -= len(image.png)
            del self._images[image.digest]


def canonical_png(png: bytes) -> CanonicalImage:
    """Read a canonical PNG, RGB or L by its header. Raises InvalidInput if it is not one."""
    mode: Mode = "L" if png[_PNG_COLOUR_TYPE : _PNG_COLOUR_TYPE + 1] == b"\0" else "RGB"
    pixels = decode(png, mode)
    height, width = pixels.shape[:2]
    return CanonicalImage(png, width, height, mode, digest(pixels), (width, height))


def image_row(image: CanonicalImage) -> dict[str, str | int]:
    """The columns of `tables.Image`."""
    return {
        "digest": image.digest,
        "mode": image.mode,
        "width": image.width,
        "height": image.height,
        "bytes": len(image.png),
    }
