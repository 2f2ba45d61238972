"""Files as a user sends them to intake, and its limits."""

from __future__ import annotations

import io
from collections.abc import Mapping

from gateway.intake.sources import IntakeLimits, NamedFile
from tests.support.archives import zipped

LIMITS = IntakeLimits(image_bytes=100_000, image_pixels=10_000, images=20, archive_bytes=1_000_000)


def sent(name: str, data: bytes) -> NamedFile:
    return NamedFile(name, io.BytesIO(data))


def archive(files: Mapping[str, bytes]) -> NamedFile:
    """A zip of files at its top level."""
    return sent("set.zip", zipped(files))
