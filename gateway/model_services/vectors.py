"""Vectors of recorded replies: large tables of numbers are stored as float32 in the object store, not in the row.

A table is a list of equally long lists of floats: embeddings (texts × width), probabilities (images × classes). In the
recorded reply, {"$vectors": n} stands for the table in array `arr_n` of the call's object, an `.npz` file. Values that
float32 cannot represent exactly stay float64, so a reply is restored unchanged.

The scorer's embeddings of images, from the recorded calls of the image checks.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from sqlalchemy import select

from gateway.database.sessions import Sessions, reading
from gateway.database.tables import RecordedCall
from shared.chunks import chunks
from shared.media.storage import ObjectMissing, ObjectStore, call_key
from shared.service.endpoints import Services

LARGE = 1_024  # numbers; as text in a row they would take about 20 kB

_MARK = "$vectors"

Table = NDArray[np.float64] | NDArray[np.float32]


def without_vectors(reply: JsonValue) -> tuple[JsonValue, bytes | None]:
    """The reply with marks in place of its large tables, and the tables as an `.npz` file; None if it has none."""
    tables: list[Table] = []
    marked = _mark(reply, tables)
    if not tables:
        return marked, None
    file = io.BytesIO()
    np.savez(file, *tables)
    return marked, file.getvalue()


def with_vectors(reply: JsonValue, store: ObjectStore, key: str) -> tuple[JsonValue, int]:
    """The reply with its tables, and their bytes. Raises ObjectMissing if the object `key` is missing or damaged."""
    if not _has_mark(reply):
        return reply, 0
    data = store.get(key)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return _restore(reply, arrays), len(data)
    except (BadZipFile, KeyError, OSError, ValueError) as error:
        raise ObjectMissing(key) from error


def _mark(value: JsonValue, tables: list[Table]) -> JsonValue:
    if isinstance(value, dict):
        return {name: _mark(item, tables) for name, item in value.items()}
    if isinstance(value, list):
        if (table := _large_table(value)) is not None:
            tables.append(table)
            return {_MARK: len(tables) - 1}
        return [_mark(item, tables) for item in value]
    return value


def _large_table(value: list[JsonValue]) -> Table | None:
    if not value or not isinstance(value[0], list) or len(value) * len(value[0]) < LARGE:
        return None
    width = len(value[0])
    for row in value:
        if not isinstance(row, list) or len(row) != width or not all(type(item) is float for item in row):
            return None
    wide = np.array(value, np.float64)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    return narrow if np.array_equal(narrow.astype(np.float64), wide, equal_nan=True) else wide


def _has_mark(value: JsonValue) -> bool:
    if isinstance(value, dict):
        return _is_mark(value) or any(_has_mark(item) for item in value.values())
    return isinstance(value, list) and any(_has_mark(item) for item in value if isinstance(item, dict | list))


def _restore(value: JsonValue, arrays: Mapping[str, Table]) -> JsonValue:
    if isinstance(value, dict):
        if _is_mark(value):
            table: JsonValue = arrays[f"arr_{value[_MARK]}"].tolist()
            return table
        return {name: _restore(item, arrays) for name, item in value.items()}
    if isinstance(value, list):
        return [_restore(item, arrays) for item in value]
    return value


def _is_mark(value: dict[str, JsonValue]) -> bool:
    return list(value) == [_MARK]


_DIGESTS_PER_QUERY = 100


def recorded_embeddings(
    sessions: Sessions,
    store: ObjectStore,
    owner_id: str,
    digests: Sequence[str],
    revision: str,
    check: Callable[[], None] = lambda: None,
) -> dict[str, NDArray[np.float64]]:
    """The unit vectors by digest of the images whose checks were recorded with this revision of the evaluator.

    The checks send an image's counterfactuals behind the image itself (`gateway.methods.image_scores`), so it has the
    first vector of each recorded reply with images. Objects are read without a session open. `check` is called before
    each query, of 100 images, and raises to end the work.
    """
    vectors: dict[str, NDArray[np.float64]] = {}
    for digest, table in recorded_tables(sessions, store, owner_id, digests, [revision], check):
        vectors.setdefault(digest, table[0])
    return vectors


def recorded_tables(
    sessions: Sessions,
    store: ObjectStore,
    owner_id: str,
    digests: Sequence[str],
    revisions: Sequence[str],
    check: Callable[[], None] = lambda: None,
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Each recorded reply about one of these images: its digest and images × width unit vectors, its own first.

    See `recorded_embeddings`.
    """
    call = RecordedCall
    for chunk in chunks(digests, _DIGESTS_PER_QUERY):
        check()
        query = select(call.key, call.source_digest, call.reply["images"]).where(
            call.owner_id == owner_id,
            call.endpoint == Services.embed.path,
            call.revision.in_(revisions),
            call.source_digest.in_(chunk),
        )
        with reading(sessions) as session:
            rows = session.execute(query.order_by(call.key)).all()
        for key, digest, images in rows:
            try:
                table = np.asarray(with_vectors(images, store, call_key(key))[0], np.float64)
            except ObjectMissing:
                continue
            if table.ndim == 2:  # not of texts alone
                yield digest, table
