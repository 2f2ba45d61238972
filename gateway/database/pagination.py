"""Opaque page cursors: the sort key of the last row, so pages stay correct while rows are added or deleted."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from shared.problems import InvalidInput

Row = TypeVar("Row")
# Columns that together are unique, each with the type of its values: int, str or datetime.
SortKey = Mapping[InstrumentedAttribute[Any], type]


def page_of(
    session: Session,
    query: Select[Row],
    order: SortKey,
    cursor: str | None,
    limit: int,
    *,
    descending: bool = False,
) -> tuple[Sequence[Row], str | None]:
    """At most `limit` rows of the query in this order, and the cursor of the following page or None.

    Raises InvalidInput for a cursor of another list.
    """
    if cursor is not None:
        key = decode_cursor(cursor, [str if kind is datetime else kind for kind in order.values()])
        after = [
            decode_time(value) if kind is datetime else value for value, kind in zip(key, order.values(), strict=True)
        ]
        place = tuple_(*order)
        query = query.where(place < tuple(after) if descending else place > tuple(after))
    columns = [column.desc() if descending else column for column in order]
    rows = session.scalars(query.order_by(*columns).limit(limit + 1)).all()
    if len(rows) <= limit:
        return rows, None
    last = [getattr(rows[limit - 1], column.key) for column in order]
    return rows[:limit], encode_cursor([value.isoformat() if isinstance(value, datetime) else value for value in last])


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
