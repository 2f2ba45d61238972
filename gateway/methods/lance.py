"""LANCE (Prabhu, Yenamandra, Chattopadhyay, Hoffman: arXiv 2305.19164): stress tests by language-guided edits.

Read this file from top to bottom as the paper's steps: caption the image; for each factor ask a language model for
edits of the caption that change that one thing; check them by their words; invert the image and edit it by
prompt-to-prompt under a sweep of self-attention fractions; check the images and keep the best of each sweep
(`sweep.py`). Ours beyond the paper: the task description and the class stand in every prompt, a word diff of the
captions holds the language model to what it says it changed, and there are null arms (docs/reference/methods.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from gateway.methods.asking import Exchange, Schema, ask, object_schema, text_schema
from gateway.methods.checks import Scores, skipped_checks
from gateway.methods.counterfactual import Change, Counterfactual, Edit, Services, SourceImage, TaskDescription, Verdict
from gateway.methods.inverted import ProtectedClasses, caption_of
from gateway.methods.sweep import SweepParameters, Swept, swept
from gateway.methods.text_checks import check_protected_classes, check_texts
from gateway.methods.word_diff import check_diff, tokens
from gateway.methods.words import names_class
from shared.schemas.language import Message
from shared.seeds import derive_seed

LanceFactor = Literal["subject", "object", "background", "adjective", "domain", "weather"]
LANCE_FACTORS: tuple[LanceFactor, ...] = ("subject", "object", "background", "adjective", "domain", "weather")


class LanceParameters(SweepParameters):
    """What a job may choose about LANCE. Defaults are ours; the paper's values are named where they differ."""

    factors: Annotated[
        tuple[LanceFactor, ...], Field(min_length=1, description="What is asked for, one question each.")
    ] = LANCE_FACTORS
    edits_per_factor: Annotated[int, Field(ge=1, le=5, description="Most edits asked for in one question.")] = 2
    counterfactuals_per_image: Annotated[
        int, Field(ge=1, le=30, description="Most edits of an image that are rendered, spread over the factors.")
    ] = 6
    protect: ProtectedClasses = ()
    temperature: Annotated[float, Field(ge=0, le=2, description="Of the language model.")] = 0.7
    label_aware: Annotated[
        bool, Field(description="A caption that does not name the class of its image is begun with it.")
    ] = True
    caption_prompt: Annotated[str, Field(max_length=500, description="Image domain: prefix for the captioner.")] = (
        "a photo of"
    )
    text_thresholds: Annotated[
        dict[str, dict[str, float]],
        Field(description="Of the text checks, by check and factor (or `default`); the profile fills them in."),
    ] = Field(default_factory=dict)


# --- The prompts. The tiny language model is trained on them: tests/contract/test_prompts.py fails when they drift.

_SYSTEM = (
    "You help to test a vision model. Write edits of the caption. Each edit changes one thing that belongs to the "
    "factor and nothing else, so that the answer to the task stays the same. Factors: subject (what the picture "
    "is of), object (another thing nearby), background (the place), adjective (colour, size, pattern), domain "
    "(kind of picture), weather (and time of day). Copy from_phrase exactly; to_phrase stands in its place; the "
    "values are the plainest words for both; caption is the whole caption with that edit made and all else word "
    "for word. Write no edits where the caption says nothing of the factor or where the answer could change."
)
_EXAMPLE = (
    "Task: name the animal\nClass: horse\nFactor: background\nEdits: 2\n"
    "Caption:\nOne brown horse grazes near stables. Strong winds blow this early morning."
)
_EXAMPLE_REPLY = (
    '{"edits":[{"from_phrase":"near stables","from_value":"stable","to_phrase":"along railways","to_value":"railway",'
    '"caption":"One brown horse grazes along railways. Strong winds blow this early morning."},'
    '{"from_phrase":"near stables","from_value":"stable","to_phrase":"beside rivers","to_value":"river",'
    '"caption":"One brown horse grazes beside rivers. Strong winds blow this early morning."}]}'
)


def perturb_messages(
    task: TaskDescription, caption: str, ground_truth: str | None, factor: LanceFactor, most: int
) -> list[Message]:
    """The question for step 2: up to `most` edits of the caption that change one thing of a factor.

    The caption begins a line of its own: so its first word reads the same there and in the reply, for any tokenizer.
    """
    known = f"\nClass: {ground_truth}" if ground_truth is not None else ""
    asked = f"Task: {task.text}{known}\nFactor: {factor}\nEdits: {most}\nCaption:\n{caption}"
    return [
        Message(role="system", content=_SYSTEM),
        Message(role="user", content=_EXAMPLE),
        Message(role="assistant", content=_EXAMPLE_REPLY),
        Message(role="user", content=asked),
    ]


# --- What the language model must answer: a JSON schema, every string and list bounded, keys in the order written.


def perturb_schema(most: int) -> Schema:
    """Schema of step 2's reply: none to `most` edits, each with phrases, canonical values and the new caption."""
    longest = {"from_phrase": 60, "from_value": 40, "to_phrase": 60, "to_value": 40, "caption": 600}
    edit = object_schema(**{name: text_schema(length) for name, length in longest.items()})
    return object_schema(edits={"type": "array", "items": edit, "maxItems": most})


def prompt_digest() -> str:
    """SHA-256 over the prompt, rendered for fixed inputs, and the schema."""
    task = TaskDescription("task")
    rendered = [
        message.model_dump()
        for truth in ("class", None)
        for message in perturb_messages(task, "caption", truth, "weather", 2)
    ]
    return hashlib.sha256(json.dumps([rendered, perturb_schema(2)]).encode()).hexdigest()


_CODE_REVISION = "1"  # raise it whenever the same replies would give other counterfactuals
REVISION = hashlib.sha256(f"{_CODE_REVISION}/{prompt_digest()}".encode()).hexdigest()[:12]


# --- The method.


@dataclass(frozen=True, slots=True)
class _Claim:
    """An edit as the language model claims to have made it."""

    from_phrase: str
    from_value: str
    to_phrase: str
    to_value: str
    caption: str


@dataclass(frozen=True, slots=True)
class _Proposal:
    """An edit before rendering, its verdict by words with the scores of the text checks, and how it was asked for."""

    edit: Edit
    verdict: Verdict
    scores: Scores
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class _Source:
    """A source image with all that its steps need: whom to ask, for which task, with which parameters and seed."""

    image: SourceImage
    task: TaskDescription
    services: Services
    parameters: LanceParameters
    seed: int


def lance(
    image: SourceImage, task: TaskDescription, services: Services, parameters: LanceParameters, seed: int
) -> Iterator[Counterfactual]:
    """The counterfactuals of one source image: proposals in order, then a null arm for each fraction that was chosen.

    Proposals that their words refuse have no image. A failure of a service is raised.
    """
    source = _Source(image, task, services, parameters, seed)
    caption = _caption(source)
    proposals = _wanted(_text_checked(source, _proposals(source, caption)), parameters.counterfactuals_per_image)
    accepted = [one.edit for one in proposals if one.verdict.accepted]
    rendered, nulls = swept(image, task, services, parameters, caption, accepted)
    yield from _counterfactuals(source, caption, proposals, {one.edit: one for one in rendered}, nulls)


def _caption(source: _Source) -> str:
    """Step 1: a caption that names the class where it is known."""
    p, truth = source.parameters, source.image.ground_truth
    caption = caption_of(source.image, source.services, p)
    if truth is None or not p.label_aware or names_class(caption, truth):
        return caption
    name = truth.split(",")[0].strip()
    domain = p.caption_prompt.strip() or "a picture of"
    article = "an" if name[:1].lower() in set("aeiou") else "a"
    return f"{domain[0].upper()}{domain[1:]} {article} {name}. {caption}"


def _proposals(source: _Source, caption: str) -> list[_Proposal]:
    """Step 2: the edits of all factors, the first ones of each first, each said once."""
    answers = [_asked(source, caption, factor) for factor in dict.fromkeys(source.parameters.factors)]
    proposals = []
    seen: set[str] = set()
    for proposal in (one for rank in zip_longest(*answers) for one in rank if one is not None):
        (change,) = proposal.edit.changes
        said = {f"{change.from_phrase} -> {change.to_value}".lower(), " ".join(tokens(proposal.edit.new_caption))}
        if not proposal.verdict.accepted:
            proposals.append(proposal)
        elif said & seen:
            twice = Verdict(False, "duplicate edit", "another edit says the same")
            proposals.append(replace(proposal, verdict=twice))
        else:
            proposals.append(proposal)
            seen |= said
    return proposals


def _asked(source: _Source, caption: str, factor: LanceFactor) -> list[_Proposal]:
    """The question for one factor, and the edits of its answer, held to the word diff."""
    p = source.parameters
    messages = perturb_messages(source.task, caption, source.image.ground_truth, factor, p.edits_per_factor)
    value, exchange = ask(
        source.services,
        "perturb",
        messages,
        perturb_schema(p.edits_per_factor),
        temperature=p.temperature,
        max_tokens=_EDIT_TOKENS * p.edits_per_factor,
        seed=derive_seed(source.image.id, "lance", REVISION, source.seed, factor, caption),
    )
    edits = [_edit(claim, factor, caption) for claim in _CLAIMS.validate_python(value)["edits"]]
    return [_Proposal(edit, check_diff(edit) or Verdict(True), {}, exchange) for edit in edits]


_EDIT_TOKENS = 320  # of one edit in a reply
_CLAIMS = TypeAdapter(dict[Literal["edits"], list[_Claim]])


def _edit(claim: _Claim, factor: LanceFactor, caption: str) -> Edit:
    change = Change(factor, claim.from_phrase, claim.to_phrase, claim.from_value, claim.to_value)
    return Edit((change,), caption, " ".join(claim.caption.split()))


# --- Step 3, and what comes of 4 and 5 (`sweep.py`).


def _text_checked(source: _Source, proposals: Sequence[_Proposal]) -> list[_Proposal]:
    """Step 3: what the text checks say of the proposals that were not refused before."""
    edits = [one.edit for one in proposals if one.verdict.accepted]
    if not edits:
        return list(proposals)
    found = check_texts(source.services, source.image, source.task, edits, source.parameters.text_thresholds)
    said = dict(zip(edits, found, strict=True))
    checked = [
        replace(one, verdict=said[one.edit][0], scores=said[one.edit][1]) if one.verdict.accepted else one
        for one in proposals
    ]
    return [replace(one, verdict=_unnamed(one, source.parameters.protect)) for one in checked]


def _unnamed(one: _Proposal, protect: Sequence[str]) -> Verdict:
    """The verdict, or that the edit names what is protected."""
    edit = one.edit
    refusal = check_protected_classes(edit.changes, edit.caption, edit.new_caption, protect)
    return refusal if refusal and one.verdict.accepted else one.verdict


def _wanted(proposals: Sequence[_Proposal], most: int) -> list[_Proposal]:
    """The proposals up to the last one that is rendered."""
    accepted = 0
    kept = []
    for one in proposals:
        if accepted == most:
            break
        kept.append(one)
        accepted += one.verdict.accepted
    return kept


def _counterfactuals(
    source: _Source,
    caption: str,
    proposals: Sequence[_Proposal],
    made: Mapping[Edit | None, Swept],
    nulls: Sequence[Swept],
) -> Iterator[Counterfactual]:
    """Proposals, rendered or refused, and null arms, each with how it came about."""
    lineage = {
        "method": "lance",
        "revision": REVISION,
        "parameters": source.parameters.model_dump(mode="json"),
        "skipped_checks": list(skipped_checks(source.image, source.task)),
        "caption": caption,
    }
    null_of = {null.chosen.fraction: len(proposals) + place for place, null in enumerate(nulls)}
    for ordinal, one in enumerate(proposals):
        swept_edit = made[one.edit] if one.verdict.accepted else None
        best = swept_edit.chosen if swept_edit else None
        yield Counterfactual(
            ordinal=ordinal,
            arm="edit",
            seed=source.seed,
            edit=one.edit,
            null_ordinal=null_of[best.fraction] if best else None,
            image=best.image if best else None,
            verdict=best.verdict if best else one.verdict,
            scores={**one.scores, **(best.scores if best else {})},
            lineage={**lineage, "exchanges": [one.exchange], **(swept_edit.lineage() if swept_edit else _NOT_RENDERED)},
        )
    for null in nulls:
        yield Counterfactual(
            ordinal=null_of[null.chosen.fraction],
            arm="null",
            seed=source.seed,
            edit=None,
            null_ordinal=None,
            image=null.chosen.image,
            verdict=Verdict(True),
            scores=null.chosen.scores,
            lineage={**lineage, "exchanges": [], **null.lineage()},
        )


_NOT_RENDERED = {"evaluations": 0}
