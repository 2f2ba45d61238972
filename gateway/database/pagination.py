"""Opaque page cursors: the sort key of the last row, so pages stay correct while rows are added or deleted."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import UTC, datetime

from shared.problems import InvalidInput


def encode_cursor(key: Sequence[str | int]) -> str:
    """The cursor for the page after the row with this sort key."""
    return base64.urlsafe_b64encode(json.dumps(list(key), separators=(",", ":")).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, types: Sequence[type]) -> list[str | int]:
    """The sort key in a cursor, with values of exactly these types. Raises InvalidInput for anything else."""
    try:
        key = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise _unknown() from error
    if not isinstance(key, list) or [type(value) for value in key] != list(types):
        raise _unknown()
    if any(not value.isprintable() if isinstance(value, str) else abs(value) >= 2**31 for value in key):
        raise _unknown()
    return key


def decode_time(value: str | int) -> datetime:
    """A point in time that was written into a cursor by `isoformat`. Raises InvalidInput."""
    try:
        time = datetime.fromisoformat(str(value))
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise _unknown() from error
    raise _unknown()


def _unknown() -> InvalidInput:
    return InvalidInput("this cursor does not belong to this list; use `next` of the previous page, or omit it")
