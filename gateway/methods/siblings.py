"""The schedule of siblings: which edits of one source image are tried, in which order, and when there are enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from random import Random
from typing import TypeVar

from gateway.methods.arms import Proposal

Key = TypeVar("Key")
Option = TypeVar("Option")


def spread(
    keys: Sequence[Key], options_of: Callable[[Key], Sequence[Option]], width: int, rounds: int, seed: int
) -> Iterator[tuple[Option, ...]]:
    """Combinations of `width` options (hashable) of different keys, each once: rounds over the shuffled keys.

    A round takes the next option of each key, so a few combinations are spread over many keys, and many use all
    options. `options_of` is called only for keys that are reached. With a width above 1 a key is joined by the next
    ones in the shuffled order.
    """
    order = list(keys)
    Random(seed).shuffle(order)
    width = min(width, len(order))
    yielded: set[frozenset[Option]] = set()
    for turn in range(rounds):
        for place in range(len(order)):
            combination: list[Option] = []
            for step in range(width):
                options = options_of(order[(place + step) % len(order)])
                if not options or (step == 0 and turn >= len(options)):
                    break
                combination.append(options[(turn + step * place) % len(options)])
            if len(combination) == width and frozenset(combination) not in yielded:
                yielded.add(frozenset(combination))
                yield tuple(combination)


def round_robin(groups: Iterable[Sequence[Proposal]]) -> list[Proposal]:
    """The first proposal of each group, then the second ones, and so on."""
    return [proposal for rank in zip_longest(*groups) for proposal in rank if proposal is not None]


def until_accepted(proposals: Iterable[Proposal], count: int) -> Iterator[Proposal]:
    """The proposals up to and with the accepted one that makes `count` (at least 1) of them."""
    for proposal in proposals:
        yield proposal
        count -= proposal.verdict.accepted
        if not count:
            return


def repeat_accepted(proposals: Sequence[Proposal], times: int) -> list[Proposal]:
    """The proposals, and the accepted ones again until each is there `times` times."""
    return [*proposals, *[proposal for proposal in proposals if proposal.verdict.accepted] * (times - 1)]
