"""The cache of text embeddings: requests that fit into the queue, and one computation per text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from evaluator_service.model import MOST, KnownTexts
from shared.problems import DeadlineExceeded, Overloaded
from tests.support.batching import soon

PATIENCE = 120.0  # seconds, which only a hang takes


class Lengths:
    """Computes the length of each text, records its requests, and can be held at a gate or fail."""

    def __init__(self) -> None:
        self.windows: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.full_after = MOST

    async def __call__(self, texts: Sequence[str], deadline: float) -> list[list[float]]:
        self.windows.append(list(texts))
        await self.gate.wait()
        if len(self.windows) > self.full_after:
            raise Overloaded("the queue is full")
        return [[float(len(text))] for text in texts]


def test_large_requests_go_in_windows_and_every_text_once() -> None:
    async def main() -> None:
        lengths = Lengths()
        texts = ["a" * number for number in range(10)]
        embedder = KnownTexts(lengths, 4)
        assert await embedder.embeddings([*texts, "aa"], soon()) == [*([float(n)] for n in range(10)), [2.0]]
        assert [len(window) for window in lengths.windows] == [4, 4, 2]
        assert await embedder.embeddings(["new", *texts], soon()) == [[3.0], *([float(n)] for n in range(10))]
        assert lengths.windows[3:] == [["new"]]

    asyncio.run(main())


def test_concurrent_requests_for_the_same_texts_share_one_computation() -> None:
    async def main() -> None:
        lengths = Lengths()
        lengths.gate.clear()
        embedder = KnownTexts(lengths, 100)
        requests = [
            asyncio.create_task(embedder.embeddings(["bus", "boat", text], soon())) for text in ("a", "bb", "a")
        ]
        await asyncio.sleep(0)
        lengths.gate.set()
        assert await asyncio.gather(*requests) == [[[3.0], [4.0], [1.0]], [[3.0], [4.0], [2.0]], [[3.0], [4.0], [1.0]]]
        assert lengths.windows == [["bus", "boat", "a"], ["bb"]]

    asyncio.run(main())


def test_a_text_whose_computation_was_given_up_is_computed_by_the_next() -> None:
    async def main() -> None:
        lengths = Lengths()
        lengths.gate.clear()
        embedder = KnownTexts(lengths, 100)
        leaving, staying = [asyncio.create_task(embedder.embeddings(["bus"], soon())) for _ in range(2)]
        await asyncio.sleep(0)
        leaving.cancel()
        lengths.gate.set()
        assert await staying == [[3.0]]
        assert lengths.windows == [["bus"], ["bus"]]

    asyncio.run(main())


def test_windows_that_are_done_stay_when_a_later_one_is_refused() -> None:
    async def main() -> None:
        lengths = Lengths()
        lengths.full_after = 2
        embedder = KnownTexts(lengths, 2)
        texts = ["a", "bb", "ccc", "dddd", "eeeee"]
        with pytest.raises(Overloaded):
            await embedder.embeddings(texts, soon())
        lengths.full_after = MOST
        assert await embedder.embeddings(texts, soon()) == [[1.0], [2.0], [3.0], [4.0], [5.0]]
        assert lengths.windows == [["a", "bb"], ["ccc", "dddd"], ["eeeee"], ["eeeee"]]

    asyncio.run(main())


def test_who_waits_for_another_computation_waits_until_the_own_deadline() -> None:
    async def main() -> None:
        lengths = Lengths()
        lengths.gate.clear()
        embedder = KnownTexts(lengths, 100)
        first = asyncio.create_task(embedder.embeddings(["bus"], soon()))
        await asyncio.sleep(0)
        with pytest.raises(DeadlineExceeded):
            await embedder.embeddings(["bus"], soon(0.05))
        lengths.gate.set()
        assert await first == [[3.0]]

    asyncio.run(main())


def test_the_cache_is_bounded() -> None:
    async def main() -> None:
        lengths = Lengths()
        embedder = KnownTexts(lengths, MOST)
        await embedder.embeddings([str(number) for number in range(MOST)], soon())
        await embedder.embeddings(["one more"], soon())
        await embedder.embeddings(["0"], soon())
        assert lengths.windows[2:] == [["0"]]

    asyncio.run(main())
