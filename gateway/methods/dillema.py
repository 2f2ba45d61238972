"""DILLEMA (Baresi, Hu, Stocco, Tonella: arXiv 2502.04378): counterfactuals by caption, language model and ControlNet.

Read this file from top to bottom as the paper's five steps: caption the image; name what may change without
changing the ground truth; find alternatives; write the new caption; render it under control of the source's structure.
The task description stands in every prompt, with one worked example (one-shot), as the paper says. Ours beyond the
paper: the checks of `text_checks.py` and `checks.py`, the null arm, and `control_region` "keep"
(docs/reference/methods.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from gateway.methods.asking import Exchange, Schema, ask
from gateway.methods.checks import skipped_checks
from gateway.methods.controlled import Arm, ControlledParameters, render_arms
from gateway.methods.counterfactual import (
    Change,
    Counterfactual,
    Edit,
    Factor,
    Services,
    SourceImage,
    TaskDescription,
    Verdict,
)
from gateway.methods.dillema_prompts import (
    Question,
    alternative_messages,
    alternative_schema,
    keyword_messages,
    keyword_schema,
    prompt_digest,
    rewrite_messages,
    rewrite_schema,
)
from gateway.methods.text_checks import check_caption, check_change, check_keyword, check_protected_classes
from shared.schemas.caption import CaptionRequest
from shared.schemas.diffusion import ControlRegion, Rendering
from shared.schemas.language import Message
from shared.seeds import derive_seed


class DillemaParameters(ControlledParameters):
    """What a job may choose about DILLEMA. Defaults are ours; the paper's values are named where they differ."""

    counterfactuals_per_image: Annotated[int, Field(ge=1, le=30, description="How many per image (paper: 5).")] = 4
    edits_per_counterfactual: Annotated[
        int, Field(ge=1, le=5, description="Changes in one new caption; 1 is needed for effects per cell.")
    ] = 1
    factors: Annotated[
        tuple[Factor, ...] | None, Field(min_length=1, description="Only these factors change; null allows all.")
    ] = None
    control_region: Annotated[
        Literal["keep", "full"],
        Field(description="keep: control by the edges of what must stay; full: by all edges (the paper)."),
    ] = "keep"
    same_caption: Annotated[
        bool, Field(description="All counterfactuals of an image share one new caption, with a seed each.")
    ] = False
    same_seed: Annotated[
        bool, Field(description="All counterfactuals of an image share one seed, and so one null arm per region.")
    ] = False
    caption_prompt: Annotated[str, Field(max_length=500, description="Prefix given to the captioner.")] = ""
    caption_min_tokens: Annotated[int, Field(ge=0, le=200, description="Shortest caption.")] = 0
    caption_max_tokens: Annotated[int, Field(ge=1, le=256, description="Longest caption.")] = 96
    caption_beams: Annotated[int, Field(ge=1, le=8, description="Beams of the caption search.")] = 1
    temperature: Annotated[
        float, Field(ge=0, le=2, description="Of the alternatives; keywords and captions are written greedily.")
    ] = 0.7
    max_keywords: Annotated[int, Field(ge=1, le=16, description="Most keywords asked for.")] = 8
    alternatives_per_keyword: Annotated[int, Field(ge=1, le=5, description="Most alternatives per keyword.")] = 3

    @model_validator(mode="after")
    def _images_differ(self) -> DillemaParameters:
        if self.same_caption and self.same_seed and self.counterfactuals_per_image > 1:
            raise ValueError("same_caption with same_seed renders one image many times: choose one of them")
        return self


_CODE_REVISION = "1"  # raise it whenever the same replies would give other counterfactuals
REVISION = hashlib.sha256(f"{_CODE_REVISION}/{prompt_digest()}".encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Keyword:
    """A phrase of the caption that may change, and what it says in the plainest word."""

    phrase: str
    factor: Factor
    value: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """A phrase that can stand in place of a keyword's."""

    phrase: str
    value: str


@dataclass(frozen=True, slots=True)
class _Proposal:
    """An edit before rendering, its verdict by words, and what was asked and answered on the way to it."""

    edit: Edit
    verdict: Verdict
    exchanges: tuple[Exchange, ...]


def dillema(
    image: SourceImage, task: TaskDescription, services: Services, parameters: DillemaParameters, seed: int
) -> Iterator[Counterfactual]:
    """The counterfactuals of one source image: proposals in order, then their null arms.

    Proposals that a text check refuses have no image; a keyword that must not change is such a proposal, with an empty
    to-phrase. A failure of a service is raised: it fails the image rather than inventing an edit.
    """
    source = _Source(image, task, services, parameters, seed)
    caption = source.caption()
    keywords, refused = _keywords(source, caption)
    proposals = [*refused, *_proposals(source, caption, keywords)]
    yield from _render(source, caption, proposals)


@dataclass(frozen=True, slots=True)
class _Source:
    """A source image with all that its steps need: whom to ask, for which task, with which parameters and seeds."""

    image: SourceImage
    task: TaskDescription
    services: Services
    parameters: DillemaParameters
    seed: int

    @property
    def classes(self) -> tuple[str, ...]:
        """The other classes of the label set (all of them without ground truth)."""
        return tuple(label for label in self.task.classes if label != self.image.ground_truth)

    def derive(self, *parts: str | int) -> int:
        """A seed that belongs to this image, method revision and job."""
        return derive_seed(self.image.id, "dillema", REVISION, self.seed, *parts)

    def caption(self) -> str:
        """Step 1: a caption of several sentences."""
        p = self.parameters
        request = CaptionRequest(
            images=[self.image.image],
            prompt=p.caption_prompt,
            min_tokens=p.caption_min_tokens,
            max_tokens=p.caption_max_tokens,
            beams=p.caption_beams,
        )
        return " ".join(self.services.caption(request).captions[0].split())

    def ask(
        self, question: Question, about: str, messages: list[Message], schema: Schema, temperature: float = 0.0
    ) -> tuple[Any, Exchange]:
        """The language model's value, and the exchange for the lineage."""
        return ask(
            self.services,
            question,
            messages,
            schema,
            temperature=temperature,
            max_tokens=_REPLY_TOKENS[question],
            seed=self.derive(question, about),
        )


_REPLY_TOKENS: dict[Question, int] = {"keywords": 512, "alternatives": 256, "rewrite": 256}
_KEYWORDS = TypeAdapter(dict[Literal["keywords"], list[Keyword]])
_ALTERNATIVES = TypeAdapter(dict[Literal["alternatives"], list[Alternative]])
_REWRITE = TypeAdapter(dict[Literal["caption"], str])


def _keywords(source: _Source, caption: str) -> tuple[list[tuple[Keyword, Exchange]], list[_Proposal]]:
    """Step 2: keywords that may change, of the allowed factors, each phrase once; and those that a check refused."""
    truth, p = source.image.ground_truth, source.parameters
    messages = keyword_messages(source.task, caption, truth)
    value, exchange = source.ask("keywords", caption, messages, keyword_schema(p.max_keywords))
    kept: list[tuple[Keyword, Exchange]] = []
    refused: list[_Proposal] = []
    seen: set[str] = set()
    for keyword in _KEYWORDS.validate_python(value)["keywords"]:
        if keyword.phrase.lower() in seen or (p.factors is not None and keyword.factor not in p.factors):
            continue
        seen.add(keyword.phrase.lower())
        edit = Edit((Change(keyword.factor, keyword.phrase, "", keyword.value, ""),), caption, "")
        if refusal := check_keyword(keyword.phrase, caption, truth, source.task.classes) or check_protected_classes(
            edit.changes, caption, caption, p.protect
        ):
            refused.append(_Proposal(edit, refusal, (exchange,)))
        else:
            kept.append((keyword, exchange))
    return kept, refused


def _alternatives(source: _Source, caption: str, keyword: Keyword) -> tuple[list[Change], Exchange]:
    """Step 3: the changes that one keyword offers, unchecked."""
    p = source.parameters
    messages = alternative_messages(source.task, caption, source.image.ground_truth, keyword.phrase)
    schema = alternative_schema(p.alternatives_per_keyword)
    value, exchange = source.ask("alternatives", f"{caption}/{keyword.phrase}", messages, schema, p.temperature)
    found = _ALTERNATIVES.validate_python(value)["alternatives"]
    return [Change(keyword.factor, keyword.phrase, a.phrase, keyword.value, a.value) for a in found], exchange


def plan(
    keywords: Sequence[Keyword], alternatives: Callable[[Keyword], Sequence[Change]], edits: int, rounds: int, seed: int
) -> Iterator[tuple[Change, ...]]:
    """Which changes become counterfactuals: rounds over the shuffled keywords, a fresh alternative each time.

    So few counterfactuals are spread over many keywords, and many over all alternatives. `alternatives` is asked only
    for keywords that are reached. With `edits` above 1 a keyword is joined by the next ones in the shuffled order.
    """
    order = list(keywords)
    Random(seed).shuffle(order)
    width = min(edits, len(order))
    done: set[frozenset[Change]] = set()
    for turn in range(rounds):
        for place in range(len(order)):
            chosen: list[Change] = []
            for step in range(width):
                options = alternatives(order[(place + step) % len(order)])
                if not options or (step == 0 and turn >= len(options)):
                    break
                chosen.append(options[(turn + step * place) % len(options)])
            if len(chosen) == width and frozenset(chosen) not in done:
                done.add(frozenset(chosen))
                yield tuple(chosen)


def _proposals(source: _Source, caption: str, keywords: Sequence[tuple[Keyword, Exchange]]) -> Iterator[_Proposal]:
    """Steps 3 and 4, until enough edits have passed the checks or the alternatives are used up."""
    p, truth = source.parameters, source.image.ground_truth
    asked = dict(keywords)
    answers: dict[Keyword, tuple[list[Change], Exchange]] = {}

    def options(keyword: Keyword) -> list[Change]:
        if keyword not in answers:
            answers[keyword] = _alternatives(source, caption, keyword)
        return answers[keyword][0]

    wanted = 1 if p.same_caption else p.counterfactuals_per_image
    seen: set[frozenset[tuple[str, str]]] = set()
    by_phrase = {keyword.phrase: keyword for keyword in asked}
    for changes in plan(
        list(asked), options, p.edits_per_counterfactual, p.alternatives_per_keyword, source.derive("plan")
    ):
        changed = [by_phrase[change.from_phrase] for change in changes]
        exchanges = (asked[changed[0]], *(answers[keyword][1] for keyword in changed))
        same = frozenset((change.from_phrase, change.to_value.lower()) for change in changes)
        refusal = next(filter(None, (check_change(c, truth, source.classes) for c in changes)), None)
        if refusal is None and same in seen:
            refusal = Verdict(False, "duplicate edit", "the same values are already changed in another edit")
        seen.add(same)
        if refusal:
            yield _Proposal(Edit(changes, caption, ""), refusal, exchanges)
            continue
        proposal = _rewritten(source, caption, changes, exchanges)
        yield proposal
        wanted -= proposal.verdict.accepted
        if not wanted:
            return


def _rewritten(
    source: _Source, caption: str, changes: tuple[Change, ...], exchanges: tuple[Exchange, ...]
) -> _Proposal:
    """Step 4: the new caption, by the language model, and its check."""
    truth = source.image.ground_truth
    pairs = [(change.from_phrase, change.to_phrase) for change in changes]
    messages = rewrite_messages(source.task, caption, truth, pairs)
    value, exchange = source.ask("rewrite", f"{caption}/{pairs}", messages, rewrite_schema())
    new_caption = " ".join(_REWRITE.validate_python(value)["caption"].split())
    refusal = check_caption(changes, caption, new_caption, truth, source.classes) or check_protected_classes(
        changes, caption, new_caption, source.parameters.protect
    )
    return _Proposal(Edit(changes, caption, new_caption), refusal or Verdict(True), (*exchanges, exchange))


def region_of(edit: Edit, parameters: DillemaParameters, *, masked: bool = False) -> ControlRegion:
    """Which edges control an edit: a new background must be free of the old one's, other edits keep the structure.

    Where the ground truth is a mask (`masked`), the background has shapes that must stay, too.
    """
    if parameters.control_region == "full":
        return "full"
    if masked:
        return "structure"
    return "object" if any(change.factor == "background" for change in edit.changes) else "structure"


def _render(source: _Source, caption: str, proposals: Sequence[_Proposal]) -> Iterator[Counterfactual]:
    """Step 5: render accepted edits and their null arms (one per seed and region), and check the images."""
    p = source.parameters
    if p.same_caption:
        accepted = [proposal for proposal in proposals if proposal.verdict.accepted]
        proposals = [*proposals, *accepted * (p.counterfactuals_per_image - 1)]
    seeds = [source.derive("render", 0 if p.same_seed else ordinal) for ordinal in range(len(proposals))]
    masked = bool(source.task.mask_classes)
    arms = {
        ordinal: Arm(
            Rendering(prompt=one.edit.new_caption, region=region_of(one.edit, p, masked=masked), seed=seeds[ordinal]),
            one.edit,
        )
        for ordinal, one in enumerate(proposals)
        if one.verdict.accepted
    }
    nulls = list(dict.fromkeys(arm.rendering.model_copy(update={"prompt": caption}) for arm in arms.values()))
    arms.update({len(proposals) + place: Arm(null, None) for place, null in enumerate(nulls)})
    rendered = render_arms(source.image, source.task, source.services, p, caption, arms)
    for ordinal, proposal in enumerate([*proposals, *[None] * len(nulls)]):
        arm = arms.get(ordinal)
        image, verdict, scores, made = rendered[ordinal] if arm else (None, None, {}, {"evaluations": 0})
        null = arm.rendering.model_copy(update={"prompt": caption}) if arm and proposal else None
        yield Counterfactual(
            ordinal=ordinal,
            arm="edit" if proposal else "null",
            seed=arm.rendering.seed if arm else seeds[ordinal],
            edit=proposal.edit if proposal else None,
            null_ordinal=len(proposals) + nulls.index(null) if null else None,
            image=image,
            verdict=verdict or (proposal.verdict if proposal else Verdict(True)),
            scores=scores,
            lineage=_lineage(source, caption, arm, proposal) | made,
        )


def _lineage(source: _Source, caption: str, arm: Arm | None, proposal: _Proposal | None) -> dict[str, Any]:
    """How a counterfactual came about: enough to make it again."""
    return {
        "method": "dillema",
        "revision": REVISION,
        "parameters": source.parameters.model_dump(mode="json"),
        "skipped_checks": list(skipped_checks(source.image, source.task)),
        "caption": caption,
        "exchanges": list(proposal.exchanges) if proposal else [],
        "rendering": arm.rendering.model_dump(mode="json") if arm else None,
    }
