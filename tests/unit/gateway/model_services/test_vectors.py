"""Vectors of recorded replies: stored as float32, restored exactly, and missing if their object is damaged."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import JsonValue

from gateway.model_services.recurring import RecurringReplies
from gateway.model_services.vectors import LARGE, with_vectors, without_vectors
from shared.media.storage import DirectoryStore, ObjectMissing
from shared.schemas.evaluation import EmbedTextsReply

KEY = "calls/ab/abcd.npz"


def table(rows: int, width: int, kind: type[np.floating] = np.float32) -> JsonValue:
    values: JsonValue = np.random.default_rng(rows).standard_normal((rows, width)).astype(kind).tolist()
    return values


def test_large_tables_survive_storage_in_one_object(store: DirectoryStore) -> None:
    reply: JsonValue = {"images": table(7, 768), "texts": table(12, 768), "logit_scale": 100.0, "names": ["a", "b"]}
    marked, data = without_vectors(reply)
    assert data is not None
    assert len(str(marked)) < 200
    assert len(data) < 19 * 768 * 4 + 1_000, "float32"
    store.put(KEY, data)
    assert with_vectors(marked, store, KEY) == (reply, len(data))


def test_values_that_float32_does_not_hold_keep_their_precision(store: DirectoryStore) -> None:
    reply: JsonValue = {"probabilities": table(4, 1_000, np.float64), "far": [[1e300, 1.0]] * LARGE}
    marked, data = without_vectors(reply)
    store.put(KEY, data or b"")
    assert with_vectors(marked, store, KEY)[0] == reply


@pytest.mark.parametrize(
    "value",
    [
        table(2, 100),
        [[1.0] * LARGE, [1.0]],
        [[1] * LARGE],
        [["text"] * LARGE],
        [[None] * LARGE],
        [1.0] * LARGE,
        [[]] * LARGE,
        [],
    ],
)
def test_small_replies_and_those_without_tables_stay_in_the_row(value: JsonValue, store: DirectoryStore) -> None:
    reply: JsonValue = {"value": value, "inside": [{"value": value}]}
    assert without_vectors(reply) == (reply, None)
    assert with_vectors(reply, store, KEY) == (reply, 0)


@pytest.mark.parametrize("damage", [b"", b"no zip", None])
def test_a_missing_or_damaged_object_is_missing(damage: bytes | None, store: DirectoryStore) -> None:
    marked, data = without_vectors({"texts": table(2, 768)})
    assert data is not None
    if damage is not None:
        store.put(KEY, damage or data[:-100])
    with pytest.raises(ObjectMissing):
        with_vectors(marked, store, KEY)


def test_recurring_replies_are_bounded_by_bytes_and_the_least_recently_used_go() -> None:
    replies = {name: EmbedTextsReply(texts=[[float(number)]]) for number, name in enumerate("abcd")}
    recurring = RecurringReplies(most_bytes=100)
    for name in "ab":
        recurring.keep(name, replies[name], 40)
    recurring.keep("a", replies["a"], 40)  # two steps found it at the same time
    assert recurring.find("a") is replies["a"]
    recurring.keep("c", replies["c"], 40)
    assert [name for name in "abc" if recurring.find(name)] == ["a", "c"]
    recurring.keep("d", replies["d"], 101)
    assert recurring.find("d") is None
