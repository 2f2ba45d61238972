"""Steps that all methods share and no paper describes: seeds, and the schedule of siblings.

A method's file has the paper's steps, and calls these functions between them. Siblings are the edits of one source
image. The schedule decides which are tried, in which order, and when there are enough. `arms.py` compares their
renderings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest
from random import Random
from typing import Generic, TypeVar, Unpack

from gateway.methods.checks import skipped_checks
from gateway.methods.counterfactual import (
    ACCEPTED,
    Change,
    Edit,
    Exchange,
    Lineage,
    MethodImage,
    Scores,
    TaskDescription,
    Verdict,
)
from gateway.methods.questions import InvalidReply
from gateway.methods.words import tokens
from shared.schemas.base import Contract
from shared.seeds import derive_seed
from shared.service.endpoints import Services

P = TypeVar("P", bound=Contract, covariant=True)
Key = TypeVar("Key")
Option = TypeVar("Option")

_DUPLICATE = Verdict(False, "duplicate edit", "the same values are already changed in another edit")


@dataclass(frozen=True, slots=True)
class Inputs(Generic[P]):
    """The arguments of a method, with its name and revision."""

    method: str
    revision: str
    image: MethodImage
    task: TaskDescription
    services: Services
    parameters: P
    seed: int

    @property
    def other_classes(self) -> tuple[str, ...]:
        """The label set without the ground truth; the whole label set if that is unknown."""
        return tuple(label for label in self.task.classes if label != self.image.ground_truth)

    def derive_seed(self, *parts: str | int) -> int:
        """A seed that belongs to this source image, method, revision and job."""
        return derive_seed(self.image.id, self.method, self.revision, self.seed, *parts)

    def lineage(self, **more: Unpack[Lineage]) -> Lineage:
        """The part of the lineage that all counterfactuals of the source image share, and `more`."""
        common: Lineage = {
            "method": self.method,
            "revision": self.revision,
            "parameters": self.parameters.model_dump(mode="json"),
            "skipped_checks": list(skipped_checks(self.image, self.task)),
        }
        return {**common, **more}


# --- Siblings: the edits of one source image.


@dataclass(frozen=True, slots=True)
class Proposal:
    """An unrendered edit, with verdict and scores of the text checks and its exchanges with the language model."""

    edit: Edit
    seed: int
    verdict: Verdict = ACCEPTED
    scores: Scores = field(default_factory=dict)
    exchanges: tuple[Exchange, ...] = ()


def spread(
    keys: Sequence[Key], options_of: Callable[[Key], Sequence[Option]], width: int, rounds: int, seed: int
) -> Iterator[tuple[Option, ...]]:
    """Combinations of `width` options (hashable) of different keys, each once, in rounds over the shuffled keys.

    Each round takes the next option of each key, so that even a few combinations cover many keys. `options_of` is
    called when a key is reached. With a width above 1, a key is combined with the next keys in the shuffled order.
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


def spread_changes(
    inputs: Inputs[Contract],
    keywords: Sequence[Proposal],
    alternatives_of: Callable[[Change], tuple[list[Change], Exchange]],
    width: int,
    rounds: int,
) -> Iterator[Proposal]:
    """The changes to try, as proposals without a new caption: `spread` over the alternatives of accepted keywords.

    `alternatives_of` is called once per keyword, when its first alternative is tried. If it raises InvalidReply, the
    keyword becomes a refused change with an empty to-phrase. A change to the same values as an earlier one is refused.
    """
    by_phrase = {proposal.edit.changes[0].from_phrase: proposal for proposal in accepted_proposals(keywords)}
    unanswered: dict[str, Verdict] = {}

    @cache
    def answer(phrase: str) -> tuple[list[Change], Exchange]:
        keyword = by_phrase[phrase].edit.changes[0]
        try:
            return alternatives_of(keyword)
        except InvalidReply as invalid:
            unanswered[phrase] = invalid.verdict
            return [keyword], invalid.exchange

    tried: set[frozenset[tuple[str, str]]] = set()
    seed = inputs.derive_seed("plan")
    for changes in spread(list(by_phrase), lambda phrase: answer(phrase)[0], width, rounds, seed):
        values = frozenset((change.from_phrase, change.to_value.lower()) for change in changes)
        invalid = [unanswered[change.from_phrase] for change in changes if change.from_phrase in unanswered]
        verdict = invalid[0] if invalid else _DUPLICATE if values in tried else ACCEPTED
        tried.add(values)
        keyword, exchanges = by_phrase[changes[0].from_phrase], [answer(change.from_phrase)[1] for change in changes]
        edit = replace(keyword.edit, changes=changes)
        yield replace(keyword, edit=edit, verdict=verdict, exchanges=(*keyword.exchanges, *exchanges))


def round_robin(groups: Iterable[Sequence[Proposal]]) -> list[Proposal]:
    """The first proposal of each group, then the second ones, and so on."""
    return [proposal for rank in zip_longest(*groups) for proposal in rank if proposal is not None]


def refuse_duplicates(proposals: Iterable[Proposal]) -> list[Proposal]:
    """The proposals; a proposal with the new value or the new caption of an earlier one is refused."""
    checked: list[Proposal] = []
    earlier: set[str] = set()
    for proposal in proposals:
        (change,) = proposal.edit.changes
        keys = {f"{change.from_phrase} -> {change.to_value}".lower(), " ".join(tokens(proposal.edit.new_caption))}
        if proposal.verdict.accepted and keys & earlier:
            verdict = Verdict(False, "duplicate edit", "another edit is the same")
            checked.append(replace(proposal, verdict=verdict))
            continue
        checked.append(proposal)
        if proposal.verdict.accepted:
            earlier |= keys
    return checked


def until_accepted(proposals: Iterable[Proposal], count: int) -> Iterator[Proposal]:
    """The proposals until `count` (at least 1) of them are accepted."""
    for proposal in proposals:
        yield proposal
        count -= proposal.verdict.accepted
        if not count:
            return


def until_enough(proposals: Iterable[Proposal], count: int, *, same_edit: bool, seeds: int = 1) -> list[Proposal]:
    """The proposals until `count` are accepted; each accepted one comes `seeds` times in a row.

    With `same_edit`, the first accepted proposal is repeated instead, `count` · `seeds` times.
    """
    tried = until_accepted(proposals, 1 if same_edit else count)
    times = count * seeds if same_edit else seeds
    return [copy for proposal in tried for copy in [proposal] * (times if proposal.verdict.accepted else 1)]


def with_seeds(
    inputs: Inputs[Contract], proposals: Sequence[Proposal], *, same_seed: bool, seeds: int = 1
) -> list[Proposal]:
    """The proposals with the seeds of their renderings: one seed each, or the same `seeds` seeds for every edit."""
    chosen, place = [], 0
    for ordinal, proposal in enumerate(proposals):
        chosen.append(inputs.derive_seed("render", place % seeds if same_seed else ordinal))
        place += proposal.verdict.accepted
    return [replace(proposal, seed=seed) for proposal, seed in zip(proposals, chosen, strict=True)]


def accepted_proposals(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals that are rendered, in order."""
    return [proposal for proposal in proposals if proposal.verdict.accepted]


def accepted_edits(proposals: Sequence[Proposal]) -> list[Edit]:
    """The edits that are rendered, in order."""
    return [proposal.edit for proposal in accepted_proposals(proposals)]


def refused_proposals(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals that a check refused, in order."""
    return [proposal for proposal in proposals if not proposal.verdict.accepted]
