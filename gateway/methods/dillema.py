"""DILLEMA (Baresi, Hu, Mas'udi, Quattrocchi: arXiv 2502.04378): caption, language model and ControlNet.

The paper's steps are the functions that `dillema` calls, in order:

1 caption the image; as in the authors' code, several sampled captions can be its sentences (profile `paper`)
2 ask a language model for keywords: phrases that may change while the ground truth stays
3 ask for alternatives to a keyword
4 ask for the caption with the change applied
5 render the new caption under control of the source's structure (`controlled.py`, the one other file to open)

Every prompt contains the task description and one worked example (one-shot), as in the paper. Contrafact adds checks of
words, null arms, `control_region` "keep", and the checks of newly rendered images (`checks.py`).

Steps that the paper does not describe are shared by all methods (`schedule.py`): a `Proposal` is an unrendered edit;
`spread_changes` tries keywords in random order, one alternative of each before the second one of any; `until_enough`
stops when enough proposals are accepted; `with_seeds` gives each its noise. `rows` (`arms.py`) pairs each edit with its
null arm. If the job's design chooses the values, `chosen_values.py` replaces this schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, model_validator

from gateway.methods.arms import rows
from gateway.methods.caption import CaptionSampling, write_caption
from gateway.methods.chosen_values import chosen_changes, with_value_seeds
from gateway.methods.controlled import ControlledParameters, render_with_null_arms
from gateway.methods.counterfactual import (
    ACCEPTED,
    FACTORS,
    Change,
    Changes,
    ConfirmedChanges,
    Confirming,
    Edit,
    Exchange,
    Factor,
    MethodCounterfactual,
    MethodImage,
    TaskDescription,
)
from gateway.methods.paraphrase import revision_with_paraphrase
from gateway.methods.questions import (
    InvalidReply,
    Question,
    Schema,
    ask,
    digest_of_prompts,
    object_schema,
    revision_of,
    text_schema,
)
from gateway.methods.schedule import Inputs, Proposal, refused_proposals, spread_changes, until_enough, with_seeds
from gateway.methods.text_checks import check_caption, check_change, check_keyword, check_protected
from shared.schemas.base import JsonObject
from shared.schemas.caption import CaptionsPerImage, Temperature, TopP, check_sampling
from shared.schemas.designs import LONGEST_VALUE, MOST_VALUES, ChosenValues
from shared.schemas.diffusion import ControlRegion
from shared.schemas.language import Message
from shared.service.endpoints import Services

# --- The prompts. The tiny language model is trained on them (tests/contract/tinyworld/weights/test_prompts.py).


@dataclass(frozen=True, slots=True)
class Keyword:
    """A phrase of the caption that may change, and the plainest word for its meaning."""

    phrase: str
    factor: Factor
    value: str


_INTRODUCTION = "You help to test a vision model."
_EXAMPLE = (
    "Task: name the animal\nClass: horse\n"
    "Caption: One brown horse grazes near stables. Strong winds blow this early morning."
)
KEYWORDS = Question(
    "keywords",
    f"{_INTRODUCTION} List the phrases of the caption that may change while the answer to the task stays "
    "the same. Copy each phrase exactly. Leave out the class and what the task asks for. Factors: subject, object "
    "(another thing nearby), background, adjective, domain (kind of picture), weather (and time of day), other. "
    "The value is the plainest word for the phrase.",
    _EXAMPLE,
    '{"keywords":[{"phrase":"brown","factor":"adjective","value":"brown"},'
    '{"phrase":"near stables","factor":"background","value":"stable"},'
    '{"phrase":"Strong winds","factor":"weather","value":"wind"},'
    '{"phrase":"early morning","factor":"weather","value":"morning"}]}',
    TypeAdapter(dict[Literal["keywords"], list[Keyword]]),
)
ALTERNATIVES = Question(
    "alternatives",
    f"{_INTRODUCTION} List other phrases that can stand in place of the phrase in the caption, each "
    "with another value. The answer to the task must stay the same.",
    f"{_EXAMPLE}\nPhrase: near stables",
    '{"alternatives":[{"phrase":"along railways","value":"railway"},{"phrase":"beside rivers","value":"river"}]}',
    TypeAdapter(dict[Literal["alternatives"], list[dict[Literal["phrase", "value"], str]]]),
)
VALUE = Question(
    "value",
    f"{_INTRODUCTION} Write a phrase that can stand in place of the phrase in the caption and says the value. Write "
    "no phrase if none fits there. The answer to the task must stay the same.",
    f"{_EXAMPLE}\nPhrase: near stables\nValue: railway",
    '{"alternatives":[{"phrase":"along railways","value":"railway"}]}',
    ALTERNATIVES.reply,
)
REWRITE = Question(
    "rewrite",
    f"{_INTRODUCTION} Write the caption with each change made. Copy everything else word for word. The "
    "answer to the task must stay the same.",
    f"{_EXAMPLE}\nChange: brown -> gray",
    '{"caption":"One gray horse grazes near stables. Strong winds blow this early morning."}',
    TypeAdapter(dict[Literal["caption"], str]),
)


# --- The method.


def dillema(
    image: MethodImage, task: TaskDescription, services: Services, parameters: DillemaParameters, seed: int
) -> Iterator[MethodCounterfactual]:
    """The counterfactuals of one source image: proposals in order, then their null arms.

    Proposals that a text check refuses have no image. A keyword that must not change, or a question without a valid
    reply, is a refused proposal with an empty to-phrase. Raises what the services raise.
    """
    task = task if parameters.task_in_prompts else replace(task, text="")
    inputs = Inputs("dillema", revision_with_paraphrase(REVISION, parameters), image, task, services, parameters, seed)
    caption = write_caption(image, services, parameters, caption_sampling(inputs))  # 1
    keywords = find_keywords(inputs, caption)  # 2
    proposals = propose_edits(inputs, caption, keywords)  # 3, 4
    region = partial(region_of, parameters=parameters, masked=bool(task.mask_classes))
    compared = render_with_null_arms(inputs, caption, proposals, region)  # 5
    yield from rows(inputs.lineage(exchanges=[], rendering=None), caption, proposals, *compared)


def caption_sampling(inputs: Inputs[DillemaParameters]) -> CaptionSampling:
    """Step 1: how the captions are sampled. Greedy decoding has no seed, so all jobs share its recorded calls."""
    p = inputs.parameters
    if p.caption_temperature == 0:
        return CaptionSampling()
    seed = inputs.derive_seed("caption")
    return CaptionSampling(p.caption_temperature, p.caption_top_p, p.captions_per_image, seed)


def find_keywords(inputs: Inputs[DillemaParameters], caption: str) -> list[Proposal]:
    """Step 2: phrases that may change, of the allowed factors, each once, with an empty to-phrase.

    A keyword is refused if it is not in the caption, or names a class or a protected class of the job. Without a valid
    reply the result is one refused edit without changes.
    """
    p, task, truth = inputs.parameters, inputs.task, inputs.image.ground_truth
    messages, schema = keyword_messages(task, caption, truth), keyword_schema(p.max_keywords)
    seed = inputs.derive_seed("keywords", caption)
    try:
        reply, exchange = ask(inputs.services, KEYWORDS, messages, schema, seed=seed, max_tokens=512)
    except InvalidReply as invalid:
        return [Proposal(Edit((), caption, ""), inputs.seed, invalid.verdict, exchanges=(invalid.exchange,))]
    keywords: dict[str, Proposal] = {}
    for keyword in reply["keywords"]:
        if keyword.phrase.lower() in keywords or (p.factors is not None and keyword.factor not in p.factors):
            continue
        change = Change(keyword.factor, keyword.phrase, "", keyword.value, "")
        edit = Edit((change,), caption, "")
        named = Edit((change,), caption, caption)
        refusal = check_keyword(keyword.phrase, caption, truth, task.classes) or check_protected(named, task, p.protect)
        keywords[keyword.phrase.lower()] = Proposal(edit, inputs.seed, refusal or ACCEPTED, exchanges=(exchange,))
    return list(keywords.values())


def propose_edits(inputs: Inputs[DillemaParameters], caption: str, keywords: Sequence[Proposal]) -> list[Proposal]:
    """Steps 3 and 4: the refused keywords, and keywords with an alternative until enough captions are accepted.

    If the job's design chooses the values, each value is one proposal, rendered or refused.
    """
    p = inputs.parameters
    alternatives = partial(find_alternatives, inputs, caption)  # 3, when a keyword is tried
    rewrite = partial(rewrite_caption, inputs)  # 4
    if p.values:
        changes = chosen_changes(caption, keywords, p.values, alternatives)
        return with_value_seeds(inputs, map(rewrite, changes), same_seed=p.same_seed)
    changes = spread_changes(inputs, keywords, alternatives, p.edits_per_counterfactual, p.alternatives_per_keyword)
    siblings = until_enough(
        map(rewrite, changes), p.counterfactuals_per_image, same_edit=p.same_caption, seeds=p.seeds_per_edit
    )
    proposals = [*refused_proposals(keywords), *siblings]
    return with_seeds(inputs, proposals, same_seed=p.same_seed, seeds=p.seeds_per_edit)


def find_alternatives(
    inputs: Inputs[DillemaParameters], caption: str, keyword: Change, attempt: int = 0, value: str = ""
) -> tuple[list[Change], Exchange]:
    """Step 3: other phrases for a keyword, each with another value, and the exchange. Raises InvalidReply.

    `value`: ask for this value instead. `attempt` counts repetitions of a question, which have other seeds.
    """
    p, truth = inputs.parameters, inputs.image.ground_truth
    question = VALUE if value else ALTERNATIVES
    messages = alternative_messages(inputs.task, caption, truth, keyword.from_phrase, value)
    schema = value_schema() if value else alternative_schema(p.alternatives_per_keyword)
    repetition = [attempt] if attempt else []
    seed = inputs.derive_seed("alternatives", f"{caption}/{keyword.from_phrase}", *repetition)
    reply, exchange = ask(
        inputs.services, question, messages, schema,
        seed=seed, max_tokens=256, temperature=p.temperature, top_p=p.top_p,
    )  # fmt: skip
    return [replace(keyword, to_phrase=new["phrase"], to_value=new["value"]) for new in reply["alternatives"]], exchange


def rewrite_caption(inputs: Inputs[DillemaParameters], proposal: Proposal) -> Proposal:
    """Step 4: the proposal with its new caption. Changes are checked before the question, captions after it.

    `check_change`: the new phrase equals the old one, or names a class.
    `check_caption`: the caption does not apply the changes, loses the class, or adds another one.
    `check_protected`: the change names a protected class of the job, or a protected characteristic of people.
    """
    changes, caption, truth = proposal.edit.changes, proposal.edit.caption, inputs.image.ground_truth
    new = (change for change in changes if change.to_phrase)  # a keyword without valid reply has none, and is refused
    refusals = (check_change(change, truth, inputs.other_classes) for change in new)
    verdict = next(filter(None, refusals), proposal.verdict)
    if not verdict.accepted:
        return replace(proposal, verdict=verdict)
    pairs = [(change.from_phrase, change.to_phrase) for change in changes]
    messages = rewrite_messages(inputs.task, caption, truth, pairs)
    seed = inputs.derive_seed("rewrite", f"{caption}/{pairs}")
    try:
        reply, exchange = ask(inputs.services, REWRITE, messages, rewrite_schema(), seed=seed, max_tokens=256)
    except InvalidReply as invalid:
        return replace(proposal, verdict=invalid.verdict, exchanges=(*proposal.exchanges, invalid.exchange))
    new_caption = " ".join(reply["caption"].split())
    edit, exchanges = Edit(changes, caption, new_caption), (*proposal.exchanges, exchange)
    refusal = check_caption(changes, caption, new_caption, truth, inputs.other_classes) or check_protected(
        edit, inputs.task, inputs.parameters.protect
    )
    return replace(proposal, edit=edit, verdict=refusal or ACCEPTED, exchanges=exchanges)


def region_of(edit: Edit, parameters: DillemaParameters, *, masked: bool = False) -> ControlRegion:
    """The edges that control an edit: all, the structural ones, or only the object's for a new background.

    If the ground truth is a mask (`masked`), the background's shapes must stay too.
    """
    if parameters.control_region == "full":
        return "full"
    if masked:
        return "structure"
    return "object" if any(change.factor == "background" for change in edit.changes) else "structure"


# --- How the questions are sent, and what a reply may be.


def keyword_messages(task: TaskDescription, caption: str, ground_truth: str | None) -> list[Message]:
    """The question for step 2: what may change."""
    return KEYWORDS.messages(_describe(task, caption, ground_truth))


def alternative_messages(
    task: TaskDescription, caption: str, ground_truth: str | None, phrase: str, value: str = ""
) -> list[Message]:
    """The question for step 3: what can replace one phrase; or what says `value` in its place."""
    text = f"{_describe(task, caption, ground_truth)}\nPhrase: {phrase}"
    return VALUE.messages(f"{text}\nValue: {value}") if value else ALTERNATIVES.messages(text)


def rewrite_messages(
    task: TaskDescription, caption: str, ground_truth: str | None, changes: Sequence[tuple[str, str]]
) -> list[Message]:
    """The question for step 4: the caption with (from phrase, to phrase) changes applied."""
    lines = "".join(f"\nChange: {old} -> {new}" for old, new in changes)
    return REWRITE.messages(_describe(task, caption, ground_truth) + lines)


def _describe(task: TaskDescription, caption: str, ground_truth: str | None) -> str:
    class_line = [f"Class: {ground_truth}"] if ground_truth is not None else []
    return "\n".join([*([f"Task: {task.text}"] if task.text else []), *class_line, f"Caption: {caption}"])


def keyword_schema(most: int) -> Schema:
    """Schema of step 2's reply: at most `most` keywords. Strings and lists of all replies are bounded."""
    keyword = object_schema(phrase=text_schema(60), factor={"enum": list(FACTORS)}, value=text_schema(40))
    return object_schema(keywords={"type": "array", "items": keyword, "maxItems": most})


def alternative_schema(most: int) -> Schema:
    """Schema of step 3's reply: one to `most` alternatives."""
    alternative = object_schema(phrase=text_schema(60), value=text_schema(40))
    return object_schema(alternatives={"type": "array", "items": alternative, "minItems": 1, "maxItems": most})


def value_schema() -> Schema:
    """Schema of step 3's reply if the value is named: at most one phrase."""
    return object_schema(alternatives={**alternative_schema(1)["properties"]["alternatives"], "minItems": 0})


def rewrite_schema() -> Schema:
    """Schema of step 4's reply."""
    return object_schema(caption=text_schema(600))


def prompt_digest() -> str:
    """SHA-256 over the prompts that every job uses (not `VALUE`), rendered for fixed inputs, and the schemas."""
    task = TaskDescription("task")
    messages = [
        *keyword_messages(task, "caption", "class"),
        *alternative_messages(task, "caption", None, "phrase"),
        *rewrite_messages(task, "caption", "class", [("old", "new"), ("older", "newer")]),
    ]
    return digest_of_prompts(messages, [keyword_schema(8), alternative_schema(3), rewrite_schema()])


REVISION = revision_of("1", prompt_digest())  # raise the number whenever equal replies would give other counterfactuals


# --- The parameters.

_REGIONS = 2  # that edits of one image are controlled by


class DillemaParameters(ControlledParameters):
    """A job's parameters for DILLEMA. Defaults are ours; the descriptions name the paper's values if they differ."""

    counterfactuals_per_image: Annotated[int, Field(ge=1, le=30, description="How many per image (paper: 5).")] = 4
    edits_per_counterfactual: Annotated[
        int, Field(ge=1, le=5, description="Changes in one new caption; 1 is needed for effects per cell.")
    ] = 1
    factors: Annotated[
        tuple[Factor, ...] | None, Field(min_length=1, description="Only these factors change; null allows all.")
    ] = None
    values: Annotated[
        ChosenValues, Field(description="Every image gets these changes, set by the job's `design`; none: the model's.")
    ] = ()
    control_region: Annotated[
        Literal["keep", "full"],
        Field(description="keep: control by the edges of what must stay; full: by all edges (the paper)."),
    ] = "keep"
    same_caption: Annotated[
        bool, Field(description="All counterfactuals of an image share one new caption, with a seed each.")
    ] = False
    seeds_per_edit: Annotated[
        int, Field(ge=1, le=8, description="Renderings of each edit, with a seed and a null arm each.")
    ] = 1
    same_seed: Annotated[
        bool, Field(description="All edits of an image share their seeds, and so one null arm per seed and region.")
    ] = False
    caption_prompt: Annotated[str, Field(max_length=500, description="Prefix given to the captioner.")] = ""
    caption_min_tokens: Annotated[int, Field(ge=0, le=200, description="Shortest caption.")] = 0
    caption_max_tokens: Annotated[int, Field(ge=1, le=256, description="Longest caption.")] = 96
    caption_beams: Annotated[int, Field(ge=1, le=8, description="Beams of the caption search.")] = 1
    caption_temperature: Annotated[
        Temperature, Field(description="Temperature of captions; 0 is greedy. Above 0 the job's seed decides.")
    ] = 0.0
    caption_top_p: Annotated[
        TopP, Field(description="Nucleus sampling of captions: only from the most probable tokens that sum to this.")
    ] = 1.0
    captions_per_image: Annotated[
        CaptionsPerImage, Field(description="Captions sampled, joined as sentences (authors' code: 2).")
    ] = 1
    temperature: Annotated[
        float,
        Field(ge=0, le=2, description="Temperature of alternatives; keywords and captions are greedy."),
    ] = 0.7
    top_p: Annotated[
        TopP,
        Field(exclude_if=lambda top_p: top_p == 1, description="Nucleus sampling of alternatives, as of captions."),
    ] = 1.0
    task_in_prompts: Annotated[
        bool,
        Field(exclude_if=bool, description="Name the task in prompts (the paper); false: the ablation without it."),
    ] = True
    max_keywords: Annotated[int, Field(ge=1, le=16, description="Maximum number of keywords.")] = 8
    alternatives_per_keyword: Annotated[int, Field(ge=1, le=5, description="Most alternatives per keyword.")] = 3

    @model_validator(mode="after")
    def _caption_settings_agree(self) -> DillemaParameters:
        check_sampling(self.caption_beams, self.caption_temperature, self.caption_top_p, self.captions_per_image)
        return self

    @model_validator(mode="after")
    def _images_differ(self) -> DillemaParameters:
        if self.same_caption and self.same_seed and self.counterfactuals_per_image > 1:
            raise ValueError("same_caption with same_seed renders one image many times: choose one of them")
        if self.values and self.several_changes:
            raise ValueError("chosen values are one change each: leave out same_caption and edits_per_counterfactual")
        return self

    @property
    def several_changes(self) -> bool:
        """Whether siblings share a caption, or a caption has several changes."""
        return self.same_caption or self.edits_per_counterfactual > 1

    def renderings(self) -> tuple[int, int]:
        """Values have one seed each. With `same_seed`, edits of equal region and seed share a null arm."""
        edits = len(self.values) or self.counterfactuals_per_image
        seeds = 1 if self.values else self.seeds_per_edit
        return edits * seeds, seeds * (min(edits, _REGIONS) if self.same_seed else edits)

    def cells(self) -> int:
        return len(self.values) or self.counterfactuals_per_image * self.edits_per_counterfactual

    def changes(self) -> Changes:
        refusal = (
            "a design with chosen values makes one change each, rendered once: set same_caption to false and "
            "edits_per_counterfactual and seeds_per_edit to 1 in the parameters of dillema"
        )
        most, own = self.counterfactuals_per_image, self.several_changes or self.seeds_per_edit > 1
        return Changes(self.values, self.factors or FACTORS, most, refusal if own else "")

    def region_of(self, edit: Edit) -> ControlRegion | None:
        return region_of(edit, self)


# --- How findings of other methods are tested again.


def confirm(changes: ConfirmedChanges) -> JsonObject:
    """It takes no phrases: every image gets the values, and the language model writes the phrases."""
    return {
        "same_caption": False,  # a profile may set others
        "edits_per_counterfactual": 1,
        "factors": [*sorted({factor for factor, _ in changes})],
        "values": [{"factor": factor, "value": value} for factor, value in changes],
    }


CONFIRMING = Confirming("balanced", "values", MOST_VALUES, confirm, LONGEST_VALUE)
