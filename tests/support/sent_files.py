"""Files as a user sends them to intake, and its limits."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence

from gateway.intake.intake import take_in
from gateway.intake.mask_files import SentMasks
from gateway.intake.sources import ImageStore, IntakeLimits, NamedFile, SourceFile
from tests.support.archives import zipped

LIMITS = IntakeLimits(image_bytes=100_000, image_pixels=10_000, images=20, archive_bytes=1_000_000)


def sent(name: str, data: bytes) -> NamedFile:
    return NamedFile(name, io.BytesIO(data))


def archive(files: Mapping[str, bytes]) -> NamedFile:
    """A zip of files at its top level."""
    return sent("set.zip", zipped(files))


def sources_of(
    files: Sequence[NamedFile],
    manifest: bytes | None,
    known_classes: Collection[str],
    store: ImageStore,
    limits: IntakeLimits,
    masks: SentMasks | None = None,
) -> list[SourceFile]:
    """The source images of what was sent."""
    return take_in(files, manifest, known_classes, store, limits, masks).sources
