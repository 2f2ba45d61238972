"""LANCE (Prabhu, Yenamandra, Chattopadhyay, Hoffman: arXiv 2305.19164): stress tests by language-guided edits.

The paper's steps are the functions that `lance` calls, in order: caption the image; ask a language model for edits of
the caption that change one factor; check them by their words; invert the image and edit it by prompt-to-prompt under a
sweep of self-attention fractions; check the images and keep the best of each sweep. The last two are in `sweep.py`, for
LANCE-R has them, too. Ours beyond the paper: the task description and the class stand in every prompt, a word diff of
the captions holds the language model to what it says it changed, and there are null arms (docs/reference/methods.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from gateway.methods.arms import ACCEPTED, Proposal, accepted_edits, rows
from gateway.methods.counterfactual import (
    Change,
    Edit,
    MethodCounterfactual,
    MethodImage,
    Services,
    TaskDescription,
    Verdict,
)
from gateway.methods.inputs import Inputs, write_caption
from gateway.methods.inverted import ProtectedClasses
from gateway.methods.questions import (
    InvalidReply,
    Schema,
    ask,
    digest_of_prompts,
    object_schema,
    one_shot,
    revision_of,
    text_schema,
)
from gateway.methods.siblings import round_robin, until_accepted
from gateway.methods.sweep import SweepParameters, keep_best, render_null_arms, sweep_fractions
from gateway.methods.text_checks import check_protected_classes, check_texts
from gateway.methods.word_diff import check_diff, tokens
from gateway.methods.words import names_class
from shared.schemas.language import Message

LanceFactor = Literal["subject", "object", "background", "adjective", "domain", "weather"]
LANCE_FACTORS: tuple[LanceFactor, ...] = ("subject", "object", "background", "adjective", "domain", "weather")

# --- The prompts. The tiny language model is trained on them: tests/contract/tinyworld/test_prompts.py holds them.

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
    question = f"Task: {task.text}{known}\nFactor: {factor}\nEdits: {most}\nCaption:\n{caption}"
    return one_shot(_SYSTEM, _EXAMPLE, _EXAMPLE_REPLY, question)


# --- The schema of the reply: every string and list bounded, keys in the order written.


def perturb_schema(most: int) -> Schema:
    """Schema of step 2's reply: none to `most` edits, each with phrases, canonical values and the new caption."""
    longest = {"from_phrase": 60, "from_value": 40, "to_phrase": 60, "to_value": 40, "caption": 600}
    edit = object_schema(**{name: text_schema(length) for name, length in longest.items()})
    return object_schema(edits={"type": "array", "items": edit, "maxItems": most})


def prompt_digest() -> str:
    """SHA-256 over the prompt, rendered for fixed inputs, and the schema."""
    task = TaskDescription("task")
    messages = [
        message for truth in ("class", None) for message in perturb_messages(task, "caption", truth, "weather", 2)
    ]
    return digest_of_prompts(messages, perturb_schema(2))


REVISION = revision_of("1", prompt_digest())  # raise the number whenever equal replies would give other counterfactuals


# --- The parameters.


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


# --- The method.


def lance(
    image: MethodImage, task: TaskDescription, services: Services, parameters: LanceParameters, seed: int
) -> Iterator[MethodCounterfactual]:
    """The counterfactuals of one source image: proposals in order, then a null arm for each fraction that was chosen.

    Proposals that their words refuse have no image, nor has a factor whose question has no valid reply. A failure of a
    service is raised.
    """
    inputs = Inputs("lance", REVISION, image, task, services, parameters, seed)
    caption = name_class(inputs, write_caption(image, services, parameters))  # 1
    edits = [perturb_caption(inputs, caption, factor) for factor in dict.fromkeys(parameters.factors)]  # 2
    checked = check_words(inputs, refuse_duplicates(round_robin(edits)))  # 3
    proposals = list(until_accepted(checked, parameters.counterfactuals_per_image))
    sweeps = sweep_fractions(inputs, caption, accepted_edits(proposals))  # 4
    arms = [keep_best(inputs, sweep) for sweep in sweeps]  # 5
    nulls = render_null_arms(inputs, caption, arms)
    yield from rows(inputs.lineage(caption, exchanges=[]), proposals, arms, nulls)


def name_class(inputs: Inputs[LanceParameters], caption: str) -> str:
    """Step 1: the caption, begun with the class where that is known and the caption does not name it."""
    p, truth = inputs.parameters, inputs.image.ground_truth
    if truth is None or not p.label_aware or names_class(caption, truth):
        return caption
    name = truth.split(",")[0].strip()
    domain = p.caption_prompt.strip() or "a picture of"
    article = "an" if name[:1].lower() in set("aeiou") else "a"
    return f"{domain[0].upper()}{domain[1:]} {article} {name}. {caption}"


@dataclass(frozen=True, slots=True)
class PerturbedCaption:
    """An edit as the language model writes it: the new caption, and what it says it changed."""

    from_phrase: str
    from_value: str
    to_phrase: str
    to_value: str
    caption: str


_REPLY = TypeAdapter(dict[Literal["edits"], list[PerturbedCaption]])
_TOKENS_PER_EDIT = 320


def perturb_caption(inputs: Inputs[LanceParameters], caption: str, factor: LanceFactor) -> list[Proposal]:
    """Step 2: edits of the caption that change one thing of a factor, each held to the word diff of the captions.

    Without a valid reply it is one refused edit of that factor.
    """
    p = inputs.parameters
    try:
        reply, exchange = ask(
            inputs.services,
            "perturb",
            perturb_messages(inputs.task, caption, inputs.image.ground_truth, factor, p.edits_per_factor),
            perturb_schema(p.edits_per_factor),
            _REPLY,
            temperature=p.temperature,
            max_tokens=_TOKENS_PER_EDIT * p.edits_per_factor,
            seed=inputs.derive_seed(factor, caption),
        )
    except InvalidReply as invalid:
        none = Edit((Change(factor, "", "", "", ""),), caption, "")
        return [Proposal(none, inputs.seed, invalid.verdict, exchanges=(invalid.exchange,))]
    proposals = []
    for new in reply["edits"]:
        change = Change(factor, new.from_phrase, new.to_phrase, new.from_value, new.to_value)
        edit = Edit((change,), caption, " ".join(new.caption.split()))
        proposals.append(Proposal(edit, inputs.seed, check_diff(edit) or ACCEPTED, exchanges=(exchange,)))
    return proposals


def refuse_duplicates(proposals: Iterable[Proposal]) -> list[Proposal]:
    """The proposals; one whose new value for a phrase, or new caption, an earlier one has is refused."""
    checked: list[Proposal] = []
    earlier: set[str] = set()
    for proposal in proposals:
        (change,) = proposal.edit.changes
        keys = {f"{change.from_phrase} -> {change.to_value}".lower(), " ".join(tokens(proposal.edit.new_caption))}
        if proposal.verdict.accepted and keys & earlier:
            verdict = Verdict(False, "duplicate edit", "another edit says the same")
            checked.append(replace(proposal, verdict=verdict))
            continue
        checked.append(proposal)
        if proposal.verdict.accepted:
            earlier |= keys
    return checked


def check_words(inputs: Inputs[LanceParameters], proposals: Sequence[Proposal]) -> Iterator[Proposal]:
    """Step 3: the proposals with what the text checks say of those that were not refused before."""
    p = inputs.parameters
    results = iter(
        check_texts(inputs.services, inputs.image, inputs.task, accepted_edits(proposals), p.text_thresholds)
    )
    for proposal in proposals:
        if not proposal.verdict.accepted:
            yield proposal
            continue
        edit, (verdict, scores) = proposal.edit, next(results)
        refusal = check_protected_classes(edit.changes, edit.caption, edit.new_caption, p.protect)
        yield replace(proposal, verdict=refusal if refusal and verdict.accepted else verdict, scores=scores)
