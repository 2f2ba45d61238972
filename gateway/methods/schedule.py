"""What every method needs and no paper describes: seeds, the schedule of siblings, null arms and lineage.

A method's page has the paper's steps, and calls these between them. Siblings are the edits of one source image: which
are tried, in which order, and when there are enough. Rows are proposals, their renderings and null arms as
`MethodCounterfactual`s; ordinals count the proposals of a source image first, rendered or not, then its null arms, and
then its sham arms. One whose image is not finite has no row: edits without null arm are refused as `null arm`, and
pairs without sham arm do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest
from random import Random
from typing import Generic, Literal, NamedTuple, TypeVar, Unpack

from gateway.methods.checks import CHECKS, Thresholds, judge_arm, skipped_checks
from gateway.methods.counterfactual import (
    ACCEPTED,
    Change,
    Edit,
    MethodCounterfactual,
    MethodImage,
    Scores,
    TaskDescription,
    Verdict,
)
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

_DUPLICATE = Verdict(False, "duplicate edit", "the same values are already changed in another edit")
_NO_NULL_ARM = Verdict(False, "null arm", "its null arm is not finite, so there is nothing to compare the image with")


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
    """An edit before rendering, with verdict and scores of the text checks and the exchanges that led to it."""

    edit: Edit
    seed: int
    verdict: Verdict = ACCEPTED
    scores: Scores = field(default_factory=dict)
    exchanges: tuple[Exchange, ...] = ()


def spread(
    keys: Sequence[Key], options_of: Callable[[Key], Sequence[Option]], width: int, rounds: int, seed: int
) -> Iterator[tuple[Option, ...]]:
    """Combinations of `width` options (hashable) of different keys, each once, in rounds over the shuffled keys.

    A round takes the next option of each key, so that few combinations use many keys, and many use all options.
    `options_of` is called when a key is reached. With a width above 1 a key is combined with the next ones in the
    shuffled order.
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
    keyword becomes a refused change with an empty to-phrase. A change to values that an earlier one has is refused.
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
    """The proposals, of which those with the new value or the new caption of an earlier one are refused."""
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


def until_enough(proposals: Iterable[Proposal], count: int, *, same_edit: bool) -> list[Proposal]:
    """The proposals until `count` are accepted. With `same_edit` the first accepted one is repeated instead."""
    if not same_edit:
        return list(until_accepted(proposals, count))
    tried = list(until_accepted(proposals, 1))
    return [*tried, *[proposal for proposal in tried if proposal.verdict.accepted] * (count - 1)]


def with_seeds(inputs: Inputs[Contract], proposals: Sequence[Proposal], *, same_seed: bool) -> list[Proposal]:
    """The proposals with the seeds of their renderings: a seed each, or the same for all."""
    seeds = [inputs.derive_seed("render", 0 if same_seed else ordinal) for ordinal in range(len(proposals))]
    return [replace(proposal, seed=seed) for proposal, seed in zip(proposals, seeds, strict=True)]


def accepted_proposals(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals that are rendered, in order."""
    return [proposal for proposal in proposals if proposal.verdict.accepted]


def accepted_edits(proposals: Sequence[Proposal]) -> list[Edit]:
    """The edits that are rendered, in order."""
    return [proposal.edit for proposal in accepted_proposals(proposals)]


def refused_proposals(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals that a check refused, in order."""
    return [proposal for proposal in proposals if not proposal.verdict.accepted]


# --- Rows: edits, their null arms and their sham arms.


@dataclass(frozen=True, slots=True)
class RenderedArm(Generic[Pair]):
    """The image (None: not finite) of an edit or of a null arm, with verdict and scores of the image checks.

    `pair` is equal for an edit and its null arm, and differs between null arms. `evaluations` is the cost of the image
    in network evaluations, `lineage` what belongs to this image alone. `null_check` and `sham_check`
    of an edit name the check that its null or sham arm fails ("" if none); None where there is no such arm.
    """

    image: ImagePayload | None
    seed: int
    verdict: Verdict
    scores: Scores
    pair: Pair
    evaluations: int
    control: ImagePayload | None = None
    lineage: Lineage = field(default_factory=Lineage)
    null_check: str | None = None
    sham_check: str | None = None


@dataclass(frozen=True, slots=True)
class ShamArms(Generic[Pair]):
    """The renderings of a paraphrase, which changes words and not the meaning, in the place of edits."""

    edit: Edit
    arms: Sequence[RenderedArm[Pair]]


class ComparedArms(NamedTuple, Generic[Pair]):
    """The renderings of edits, each judged with the arms that it is compared with, and those arms."""

    edits: Sequence[RenderedArm[Pair]]
    nulls: Sequence[RenderedArm[Pair]]
    shams: ShamArms[Pair] | None = None


def compare_arms(
    edits: Sequence[Edit],
    arms: Sequence[RenderedArm[Pair]],
    nulls: Sequence[RenderedArm[Pair]],
    shams: ShamArms[Pair] | None,
    thresholds: Thresholds,
    checks: Sequence[str] = CHECKS,
) -> ComparedArms[Pair]:
    """The arms of edits with the check that the null arm and the sham arm of each fail, at the edit's thresholds."""
    null_checks = _failed_checks(edits, arms, nulls, thresholds, checks)
    judged = [replace(arm, null_check=check) for arm, check in zip(arms, null_checks, strict=True)]
    if shams:
        sham_checks = _failed_checks(edits, arms, shams.arms, thresholds, checks)
        judged = [replace(arm, sham_check=check) for arm, check in zip(judged, sham_checks, strict=True)]
    return ComparedArms(judged, nulls, shams)


def _failed_checks(
    edits: Sequence[Edit],
    arms: Sequence[RenderedArm[Pair]],
    compared: Sequence[RenderedArm[Pair]],
    thresholds: Thresholds,
    checks: Sequence[str],
) -> list[str]:
    by_pair = {arm.pair: arm for arm in compared}
    others = [by_pair[arm.pair] for arm in arms]
    return [
        other.verdict.check or judge_arm(other.scores, edit, thresholds, checks).check
        for edit, other in zip(edits, others, strict=True)
    ]


def rows(
    lineage: Lineage,
    caption: str,
    proposals: Sequence[Proposal],
    arms: Iterable[RenderedArm[Pair]],
    nulls: Sequence[RenderedArm[Pair]] | None,
    shams: ShamArms[Pair] | None = None,
) -> Iterator[MethodCounterfactual]:
    """The rows of one source image: proposals in order, null arms (None: the source image is the null arm), sham arms.

    `arms` are the renderings of the accepted proposals, in their order; `lineage` is what all rows have in common.
    """
    null_ordinals = _ordinals(nulls or (), len(proposals))
    sham_ordinals = _ordinals(shams.arms if shams else (), len(proposals) + len(null_ordinals))
    rendered = iter(arms)
    for ordinal, proposal in enumerate(proposals):
        arm = next(rendered) if proposal.verdict.accepted else None
        if arm and arm.verdict.accepted and nulls is not None and arm.pair not in null_ordinals:
            arm = replace(arm, verdict=_NO_NULL_ARM)
        row = _edit_row(ordinal, proposal, arm, caption, lineage)
        if arm:
            row = replace(row, null_ordinal=null_ordinals.get(arm.pair), sham_ordinal=sham_ordinals.get(arm.pair))
        yield row
    for null in nulls or ():
        if null.pair in null_ordinals:
            yield _arm_row("null", null_ordinals[null.pair], null, None, caption, lineage)
    for sham in shams.arms if shams else ():
        if shams and sham.pair in sham_ordinals:
            yield _arm_row("sham", sham_ordinals[sham.pair], sham, shams.edit, caption, lineage)


def _ordinals(arms: Sequence[RenderedArm[Pair]], start: int) -> dict[Pair, int]:
    """The ordinals of the finite ones, by pair."""
    finite = [arm for arm in arms if arm.image is not None]
    return {arm.pair: ordinal for ordinal, arm in enumerate(finite, start=start)}


def _edit_row(
    ordinal: int, proposal: Proposal, arm: RenderedArm[Pair] | None, caption: str, lineage: Lineage
) -> MethodCounterfactual:
    """The row of an edit. Without `arm` a text check refused it, and it cost no evaluation."""
    exchanges: Lineage = {"exchanges": list(proposal.exchanges)} if proposal.exchanges else {}
    own: Lineage = arm.lineage if arm else {}
    return MethodCounterfactual(
        ordinal=ordinal,
        arm="edit",
        seed=proposal.seed,
        edit=proposal.edit,
        null_ordinal=None,
        image=arm.image if arm else None,
        verdict=arm.verdict if arm else proposal.verdict,
        scores={**proposal.scores, **(arm.scores if arm else {})},
        caption=caption,
        control=arm.control if arm else None,
        evaluations=arm.evaluations if arm else 0,
        lineage={**lineage, **exchanges, **own},
        null_check=arm.null_check if arm else None,
        sham_check=arm.sham_check if arm else None,
    )


def _arm_row(
    kind: Literal["null", "sham"],
    ordinal: int,
    arm: RenderedArm[Pair],
    edit: Edit | None,
    caption: str,
    lineage: Lineage,
) -> MethodCounterfactual:
    """The row of a null or sham arm. Its verdict is that of checks that no edit's thresholds enter."""
    return MethodCounterfactual(
        ordinal=ordinal,
        arm=kind,
        seed=arm.seed,
        edit=edit,
        null_ordinal=None,
        image=arm.image,
        verdict=arm.verdict,
        scores=arm.scores,
        caption=caption,
        control=arm.control,
        evaluations=arm.evaluations,
        lineage={**lineage, **arm.lineage},
    )
