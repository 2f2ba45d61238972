"""DILLEMA (Baresi, Hu, Stocco, Tonella: arXiv 2502.04378): counterfactuals by caption, language model and ControlNet.

The paper's five steps are the functions that `dillema` calls, in order: caption the image; find the keywords that may
change without changing the ground truth; find alternatives for them; rewrite the caption; render it under control of
the source's structure. The task description stands in every prompt, with one worked example (one-shot), as the paper
says. Ours beyond the paper: checks of words and images, the null arm, and `control_region` "keep"
(docs/reference/methods.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, TypeAdapter, model_validator

from gateway.methods.arms import ACCEPTED, Proposal, RenderedArm, accepted_edits, rows
from gateway.methods.controlled import ControlledParameters, render_with_null_arms
from gateway.methods.counterfactual import (
    FACTORS,
    Change,
    Edit,
    Factor,
    MethodCounterfactual,
    MethodImage,
    Services,
    TaskDescription,
    Verdict,
)
from gateway.methods.inputs import Inputs, write_caption
from gateway.methods.questions import (
    Exchange,
    InvalidReply,
    Reply,
    Schema,
    ask,
    digest_of_prompts,
    object_schema,
    one_shot,
    revision_of,
    text_schema,
)
from gateway.methods.siblings import repeat_accepted, spread, until_accepted
from gateway.methods.text_checks import check_caption, check_change, check_keyword, check_protected_classes
from shared.schemas.diffusion import ControlRegion, Rendering
from shared.schemas.language import Message

# --- The prompts. The tiny language model is trained on them: tests/contract/tinyworld/test_prompts.py holds them.

Question = Literal["keywords", "alternatives", "rewrite"]

_INTRODUCTION = "You help to test a vision model."
_SYSTEM: dict[Question, str] = {
    "keywords": f"{_INTRODUCTION} List the phrases of the caption that may change while the answer to the task stays "
    "the same. Copy each phrase exactly. Leave out the class and what the task asks for. Factors: subject, object "
    "(another thing nearby), background, adjective, domain (kind of picture), weather (and time of day), other. "
    "The value is the plainest word for the phrase.",
    "alternatives": f"{_INTRODUCTION} List other phrases that can stand in place of the phrase in the caption, each "
    "with another value. The answer to the task must stay the same.",
    "rewrite": f"{_INTRODUCTION} Write the caption with each change made. Copy everything else word for word. The "
    "answer to the task must stay the same.",
}
_EXAMPLE = (
    "Task: name the animal\nClass: horse\n"
    "Caption: One brown horse grazes near stables. Strong winds blow this early morning."
)
_EXAMPLE_TURNS: dict[Question, tuple[str, str]] = {
    "keywords": (
        _EXAMPLE,
        '{"keywords":[{"phrase":"brown","factor":"adjective","value":"brown"},'
        '{"phrase":"near stables","factor":"background","value":"stable"},'
        '{"phrase":"Strong winds","factor":"weather","value":"wind"},'
        '{"phrase":"early morning","factor":"weather","value":"morning"}]}',
    ),
    "alternatives": (
        f"{_EXAMPLE}\nPhrase: near stables",
        '{"alternatives":[{"phrase":"along railways","value":"railway"},{"phrase":"beside rivers","value":"river"}]}',
    ),
    "rewrite": (
        f"{_EXAMPLE}\nChange: brown -> gray",
        '{"caption":"One gray horse grazes near stables. Strong winds blow this early morning."}',
    ),
}


def keyword_messages(task: TaskDescription, caption: str, ground_truth: str | None) -> list[Message]:
    """The question for step 2: what may change."""
    return _messages("keywords", task, caption, ground_truth)


def alternative_messages(task: TaskDescription, caption: str, ground_truth: str | None, phrase: str) -> list[Message]:
    """The question for step 3: what could stand in place of one phrase."""
    return _messages("alternatives", task, caption, ground_truth, f"\nPhrase: {phrase}")


def rewrite_messages(
    task: TaskDescription, caption: str, ground_truth: str | None, changes: Sequence[tuple[str, str]]
) -> list[Message]:
    """The question for step 4: the caption with (from phrase, to phrase) changes applied."""
    lines = "".join(f"\nChange: {old} -> {new}" for old, new in changes)
    return _messages("rewrite", task, caption, ground_truth, lines)


def _messages(
    question: Question, task: TaskDescription, caption: str, ground_truth: str | None, lines: str = ""
) -> list[Message]:
    known = f"\nClass: {ground_truth}" if ground_truth is not None else ""
    text = f"Task: {task.text}{known}\nCaption: {caption}{lines}"
    return one_shot(_SYSTEM[question], *_EXAMPLE_TURNS[question], text)


def keyword_schema(most: int) -> Schema:
    """Schema of step 2's reply: at most `most` keywords. In all replies strings and lists are bounded."""
    keyword = object_schema(phrase=text_schema(60), factor={"enum": list(FACTORS)}, value=text_schema(40))
    return object_schema(keywords={"type": "array", "items": keyword, "maxItems": most})


def alternative_schema(most: int) -> Schema:
    """Schema of step 3's reply: one to `most` alternatives."""
    alternative = object_schema(phrase=text_schema(60), value=text_schema(40))
    return object_schema(alternatives={"type": "array", "items": alternative, "minItems": 1, "maxItems": most})


def rewrite_schema() -> Schema:
    """Schema of step 4's reply."""
    return object_schema(caption=text_schema(600))


def prompt_digest() -> str:
    """SHA-256 over all prompts, rendered for fixed inputs, and the schemas."""
    task = TaskDescription("task")
    messages = [
        *keyword_messages(task, "caption", "class"),
        *alternative_messages(task, "caption", None, "phrase"),
        *rewrite_messages(task, "caption", "class", [("old", "new"), ("older", "newer")]),
    ]
    return digest_of_prompts(messages, [keyword_schema(8), alternative_schema(3), rewrite_schema()])


REVISION = revision_of("1", prompt_digest())  # raise the number whenever equal replies would give other counterfactuals


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


# --- The method.


def dillema(
    image: MethodImage, task: TaskDescription, services: Services, parameters: DillemaParameters, seed: int
) -> Iterator[MethodCounterfactual]:
    """The counterfactuals of one source image: proposals in order, then their null arms.

    Proposals that a text check refuses have no image; a keyword that must not change is such a proposal, with an empty
    to-phrase, and so is a question without a valid reply. A failure of a service is raised: it fails the image rather
    than inventing an edit.
    """
    inputs = Inputs("dillema", REVISION, image, task, services, parameters, seed)
    caption = write_caption(image, services, parameters)  # 1
    keywords = find_keywords(inputs, caption)  # 2
    changes = find_alternatives(inputs, caption, keywords)  # 3
    rewritten = (rewrite_caption(inputs, proposal) for proposal in changes)  # 4
    proposals = arrange_siblings(inputs, keywords.refused, rewritten)
    arms, nulls = render(inputs, caption, proposals)  # 5
    yield from rows(inputs.lineage(caption, exchanges=[], rendering=None), proposals, arms, nulls)


@dataclass(frozen=True, slots=True)
class Keyword:
    """A phrase of the caption that may change, and what it says in the plainest word."""

    phrase: str
    factor: Factor
    value: str


class Keywords(NamedTuple):
    """The keywords of a caption, those that a text check refused, and the exchange."""

    accepted: list[Keyword]
    refused: list[Proposal]
    exchange: Exchange


def find_keywords(inputs: Inputs[DillemaParameters], caption: str) -> Keywords:
    """Step 2: keywords that may change, of the allowed factors, each phrase once; and those that a check refused."""
    p, task, truth = inputs.parameters, inputs.task, inputs.image.ground_truth
    messages = keyword_messages(task, caption, truth)
    try:
        reply, exchange = _ask(inputs, "keywords", caption, messages, keyword_schema(p.max_keywords), _KEYWORDS)
    except InvalidReply as invalid:
        none = Proposal(Edit((), caption, ""), inputs.seed, invalid.verdict, exchanges=(invalid.exchange,))
        return Keywords([], [none], invalid.exchange)
    keywords = Keywords([], [], exchange)
    phrases: set[str] = set()
    for keyword in reply["keywords"]:
        if keyword.phrase.lower() in phrases or (p.factors is not None and keyword.factor not in p.factors):
            continue
        phrases.add(keyword.phrase.lower())
        edit = Edit((Change(keyword.factor, keyword.phrase, "", keyword.value, ""),), caption, "")
        if refusal := check_keyword(keyword.phrase, caption, truth, task.classes) or check_protected_classes(
            edit.changes, caption, caption, p.protect
        ):
            keywords.refused.append(Proposal(edit, inputs.seed, refusal, exchanges=(exchange,)))
        else:
            keywords.accepted.append(keyword)
    return keywords


def find_alternatives(inputs: Inputs[DillemaParameters], caption: str, keywords: Keywords) -> Iterator[Proposal]:
    """Step 3: the changes to try, spread over the keywords, without a new caption yet.

    The language model is asked for the alternatives of a keyword when the first of them is tried.
    """
    p, truth = inputs.parameters, inputs.image.ground_truth
    exchanges: dict[str, Exchange] = {}
    unanswered: dict[str, Verdict] = {}

    @cache
    def alternatives_of(keyword: Keyword) -> list[Change]:
        messages = alternative_messages(inputs.task, caption, truth, keyword.phrase)
        schema, about = alternative_schema(p.alternatives_per_keyword), f"{caption}/{keyword.phrase}"
        try:
            reply, exchanges[keyword.phrase] = _ask(
                inputs, "alternatives", about, messages, schema, _ALTERNATIVES, p.temperature
            )
        except InvalidReply as invalid:
            exchanges[keyword.phrase], unanswered[keyword.phrase] = invalid.exchange, invalid.verdict
            return [Change(keyword.factor, keyword.phrase, "", keyword.value, "")]
        return [
            Change(keyword.factor, keyword.phrase, new["phrase"], keyword.value, new["value"])
            for new in reply["alternatives"]
        ]

    tried: set[frozenset[tuple[str, str]]] = set()
    width, rounds, seed = p.edits_per_counterfactual, p.alternatives_per_keyword, inputs.derive_seed("plan")
    for changes in spread(keywords.accepted, alternatives_of, width, rounds, seed):
        values = frozenset((change.from_phrase, change.to_value.lower()) for change in changes)
        refused = [unanswered[change.from_phrase] for change in changes if change.from_phrase in unanswered]
        verdict = refused[0] if refused else _check_changes(inputs, changes, repeated=values in tried)
        tried.add(values)
        lineage = (keywords.exchange, *(exchanges[change.from_phrase] for change in changes))
        yield Proposal(Edit(changes, caption, ""), inputs.seed, verdict, exchanges=lineage)


def _check_changes(inputs: Inputs[DillemaParameters], changes: Sequence[Change], *, repeated: bool) -> Verdict:
    for change in changes:
        if refusal := check_change(change, inputs.image.ground_truth, inputs.other_classes):
            return refusal
    if repeated:
        return Verdict(False, "duplicate edit", "the same values are already changed in another edit")
    return ACCEPTED


def rewrite_caption(inputs: Inputs[DillemaParameters], proposal: Proposal) -> Proposal:
    """Step 4: the proposal with its new caption, by the language model, checked; a refused proposal has none."""
    if not proposal.verdict.accepted:
        return proposal
    changes, caption, truth = proposal.edit.changes, proposal.edit.caption, inputs.image.ground_truth
    pairs = [(change.from_phrase, change.to_phrase) for change in changes]
    messages = rewrite_messages(inputs.task, caption, truth, pairs)
    try:
        reply, exchange = _ask(inputs, "rewrite", f"{caption}/{pairs}", messages, rewrite_schema(), _REWRITE)
    except InvalidReply as invalid:
        return replace(proposal, verdict=invalid.verdict, exchanges=(*proposal.exchanges, invalid.exchange))
    new_caption = " ".join(reply["caption"].split())
    refusal = check_caption(changes, caption, new_caption, truth, inputs.other_classes) or check_protected_classes(
        changes, caption, new_caption, inputs.parameters.protect
    )
    edit, exchanges = Edit(changes, caption, new_caption), (*proposal.exchanges, exchange)
    return replace(proposal, edit=edit, verdict=refusal or ACCEPTED, exchanges=exchanges)


def arrange_siblings(
    inputs: Inputs[DillemaParameters], refused: Sequence[Proposal], rewritten: Iterator[Proposal]
) -> list[Proposal]:
    """As many proposals as are wanted, with their seeds: several edits, or (`same_caption`) one under several seeds."""
    p = inputs.parameters
    edits, repeats = (1, p.counterfactuals_per_image) if p.same_caption else (p.counterfactuals_per_image, 1)
    siblings = repeat_accepted([*refused, *until_accepted(rewritten, edits)], repeats)
    seeds = [inputs.derive_seed("render", 0 if p.same_seed else ordinal) for ordinal in range(len(siblings))]
    return [replace(proposal, seed=seed) for proposal, seed in zip(siblings, seeds, strict=True)]


def render(
    inputs: Inputs[DillemaParameters], caption: str, proposals: Sequence[Proposal]
) -> tuple[list[RenderedArm], list[RenderedArm]]:
    """Step 5: the accepted edits and their null arms (one per seed and region), rendered and checked."""
    masked = bool(inputs.task.mask_classes)
    renderings = [
        Rendering(
            prompt=proposal.edit.new_caption,
            region=region_of(proposal.edit, inputs.parameters, masked=masked),
            seed=proposal.seed,
        )
        for proposal in proposals
        if proposal.verdict.accepted
    ]
    return render_with_null_arms(inputs, caption, accepted_edits(proposals), renderings)


def region_of(edit: Edit, parameters: DillemaParameters, *, masked: bool = False) -> ControlRegion:
    """Which edges control an edit: a new background must be free of the old one's, other edits keep the structure.

    Where the ground truth is a mask (`masked`), the background has shapes that must stay, too.
    """
    if parameters.control_region == "full":
        return "full"
    if masked:
        return "structure"
    return "object" if any(change.factor == "background" for change in edit.changes) else "structure"


_REPLY_TOKENS: dict[Question, int] = {"keywords": 512, "alternatives": 256, "rewrite": 256}
_KEYWORDS = TypeAdapter(dict[Literal["keywords"], list[Keyword]])
_ALTERNATIVES = TypeAdapter(dict[Literal["alternatives"], list[dict[Literal["phrase", "value"], str]]])
_REWRITE = TypeAdapter(dict[Literal["caption"], str])


def _ask(
    inputs: Inputs[DillemaParameters],
    question: Question,
    about: str,
    messages: list[Message],
    schema: Schema,
    reply_type: TypeAdapter[Reply],
    temperature: float = 0.0,
) -> tuple[Reply, Exchange]:
    seed, most = inputs.derive_seed(question, about), _REPLY_TOKENS[question]
    return ask(
        inputs.services, question, messages, schema, reply_type, temperature=temperature, max_tokens=most, seed=seed
    )
