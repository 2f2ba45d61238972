"""What no paper describes and every method needs: seeds, the schedule of siblings, null arms and lineage.

A method's page has the paper's steps, and calls these between them. Siblings are the edits of one source image: which
are tried, in which order, and when there are enough. Rows are proposals, their renderings and null arms as
`MethodCounterfactual`s; ordinals count the proposals of a source image first, rendered or not, and then its null arms.
A null arm whose image is not finite has no row; edits that would be compared with it are refused as `null arm`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest
from random import Random
from typing import Generic, TypeVar, Unpack

from gateway.methods.checks import Scores, skipped_checks
from gateway.methods.counterfactual import Change, Edit, MethodCounterfactual, MethodImage, TaskDescription, Verdict
from gateway.methods.lineage import Exchange, Lineage
from gateway.methods.questions import InvalidReply
from gateway.methods.word_diff import tokens
from shared.endpoints import Services
from shared.schemas.base import Contract, ImagePayload
from shared.seeds import derive_seed

P = TypeVar("P", bound=Contract, covariant=True)
Key = TypeVar("Key")
Option = TypeVar("Option")
Pair = TypeVar("Pair", bound=Hashable)

ACCEPTED = Verdict(accepted=True)
_DUPLICATE = Verdict(False, "duplicate edit", "the same values are already changed in another edit")
_NO_NULL_ARM = Verdict(False, "null arm", "its null arm is not finite, so nothing tells the change from the generator")


@dataclass(frozen=True, slots=True)
class Inputs(Generic[P]):
    """The arguments of a method, with its name and revision: every step takes them."""

    method: str
    revision: str
    image: MethodImage
    task: TaskDescription
    services: Services
    parameters: P
    seed: int

    @property
    def other_classes(self) -> tuple[str, ...]:
        """The label set without the ground truth (all of it where that is not known)."""
        return tuple(label for label in self.task.classes if label != self.image.ground_truth)

    def derive_seed(self, *parts: str | int) -> int:
        """A seed that belongs to this source image, method, revision and job."""
        return derive_seed(self.image.id, self.method, self.revision, self.seed, *parts)

    def lineage(self, **more: Unpack[Lineage]) -> Lineage:
        """What the lineages of all counterfactuals of the source image have in common."""
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
    """An edit before rendering: the verdict and scores of the text checks, and the exchanges that led to it."""

    edit: Edit
    seed: int
    verdict: Verdict = ACCEPTED
    scores: Scores = field(default_factory=dict)
    exchanges: tuple[Exchange, ...] = ()


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


def spread_changes(
    inputs: Inputs[Contract],
    keywords: Sequence[Proposal],
    alternatives_of: Callable[[Change], tuple[list[Change], Exchange]],
    width: int,
    rounds: int,
) -> Iterator[Proposal]:
    """The changes to try, without a new caption yet: `spread` over the accepted keywords, whose to-phrases are empty.

    `alternatives_of` a keyword is called once, when the first of its alternatives is tried; where it raises
    InvalidReply, the keyword is a refused change, still without to-phrase. Values that another edit has are refused.
    """
    by_phrase = {proposal.edit.changes[0].from_phrase: proposal for proposal in accepted(keywords)}
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
    """The proposals; one whose new value for a phrase, or new caption, an earlier one has is refused."""
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
    """The proposals up to and with the accepted one that makes `count` (at least 1) of them."""
    for proposal in proposals:
        yield proposal
        count -= proposal.verdict.accepted
        if not count:
            return


def until_enough(proposals: Iterable[Proposal], count: int, *, same_edit: bool) -> list[Proposal]:
    """The proposals until `count` of them are accepted; with `same_edit` the first accepted one is there so often."""
    if not same_edit:
        return list(until_accepted(proposals, count))
    tried = list(until_accepted(proposals, 1))
    return [*tried, *[proposal for proposal in tried if proposal.verdict.accepted] * (count - 1)]


def with_seeds(inputs: Inputs[Contract], proposals: Sequence[Proposal], *, same_seed: bool) -> list[Proposal]:
    """The proposals with the seeds of their renderings, one each or one for all."""
    seeds = [inputs.derive_seed("render", 0 if same_seed else ordinal) for ordinal in range(len(proposals))]
    return [replace(proposal, seed=seed) for proposal, seed in zip(proposals, seeds, strict=True)]


def accepted(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals that are rendered, in order."""
    return [proposal for proposal in proposals if proposal.verdict.accepted]


def accepted_edits(proposals: Sequence[Proposal]) -> list[Edit]:
    """The edits that are rendered, in order."""
    return [proposal.edit for proposal in accepted(proposals)]


def refused(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals that a check refused, in order."""
    return [proposal for proposal in proposals if not proposal.verdict.accepted]


# --- Rows: edits and their null arms.


@dataclass(frozen=True, slots=True)
class RenderedArm(Generic[Pair]):
    """The image (None: not finite) of an edit or of a null arm, with what the image checks say of it, and its cost.

    `pair` is equal for an edit and its null arm, and differs between null arms. `lineage` is what belongs to this image
    alone.
    """

    image: ImagePayload | None
    seed: int
    verdict: Verdict
    scores: Scores
    pair: Pair
    evaluations: int
    control: ImagePayload | None = None
    lineage: Lineage = field(default_factory=Lineage)


def rows(
    lineage: Lineage,
    caption: str,
    proposals: Sequence[Proposal],
    arms: Iterable[RenderedArm[Pair]],
    nulls: Sequence[RenderedArm[Pair]] | None,
) -> Iterator[MethodCounterfactual]:
    """The rows of one source image: proposals in order, then null arms (None: the source image is the null arm).

    `arms` are the renderings of the accepted proposals, in their order; `lineage` is what all rows have in common.
    """
    finite = [null for null in nulls or () if null.image is not None]
    null_ordinals = {null.pair: ordinal for ordinal, null in enumerate(finite, start=len(proposals))}
    rendered = iter(arms)
    for ordinal, proposal in enumerate(proposals):
        arm = next(rendered) if proposal.verdict.accepted else None
        null_ordinal = null_ordinals.get(arm.pair) if arm else None
        if arm and arm.verdict.accepted and nulls is not None and null_ordinal is None:
            arm = replace(arm, verdict=_NO_NULL_ARM)
        yield _edit_row(ordinal, proposal, arm, null_ordinal, caption, lineage)
    for null in finite:
        yield _null_row(null_ordinals[null.pair], null, caption, lineage)


def _edit_row(
    ordinal: int,
    proposal: Proposal,
    arm: RenderedArm[Pair] | None,
    null_ordinal: int | None,
    caption: str,
    lineage: Lineage,
) -> MethodCounterfactual:
    """The row of an edit; without `arm` it was refused by its words and cost no evaluation."""
    exchanges: Lineage = {"exchanges": list(proposal.exchanges)} if proposal.exchanges else {}
    own: Lineage = arm.lineage if arm else {}
    return MethodCounterfactual(
        ordinal=ordinal,
        arm="edit",
        seed=proposal.seed,
        edit=proposal.edit,
        null_ordinal=null_ordinal,
        image=arm.image if arm else None,
        verdict=arm.verdict if arm else proposal.verdict,
        scores={**proposal.scores, **(arm.scores if arm else {})},
        caption=caption,
        control=arm.control if arm else None,
        evaluations=arm.evaluations if arm else 0,
        lineage={**lineage, **exchanges, **own},
    )


def _null_row(ordinal: int, arm: RenderedArm[Pair], caption: str, lineage: Lineage) -> MethodCounterfactual:
    """The row of a null arm, which no check refuses."""
    return MethodCounterfactual(
        ordinal=ordinal,
        arm="null",
        seed=arm.seed,
        edit=None,
        null_ordinal=None,
        image=arm.image,
        verdict=ACCEPTED,
        scores=arm.scores,
        caption=caption,
        control=arm.control,
        evaluations=arm.evaluations,
        lineage={**lineage, **arm.lineage},
    )
