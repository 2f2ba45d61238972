"""LANCE (Prabhu, Yenamandra, Chattopadhyay, Hoffman: arXiv 2305.19164): stress tests by language-guided edits.

The paper's steps are the functions that `lance` calls, in order: caption the image; ask a language model for edits of
the caption that change one factor; check them by their words; invert the image and edit it by prompt-to-prompt under a
sweep of self-attention fractions; check the images and keep the best of each sweep. Ours beyond the paper: the task
description and the class stand in every prompt, a word diff of the captions holds the language model to what it says it
changed, and there are null arms (docs/reference/methods.md).

The paper's symbols (sections 3.2 and 3.3):

f   `fraction`: share of the steps in which self-attention is the source's. A large one keeps the source's layout, a
    small one leaves room for the edit, and which is right differs from edit to edit
φ   score `direction`: cosine of (image - source) and (new caption - old) in the scorer's space. The paper prints
    1 - cos (equation 2) but keeps φ > τ; ours is the cosine
τ   `thresholds` and `text_thresholds`: per check and factor, from the profile

What the page takes from others:

Proposal          an edit before its image is made; one that is refused keeps its verdict, and gets no image
round_robin       takes the first edit of each factor, then the second ones
until_accepted    takes proposals until enough of them are accepted
edit_and_check    inverts the image, edits it by prompt-to-prompt under every fraction, and checks each image
render_null_arms  the same with the caption unchanged, for the fractions that were chosen
rows              pairs each edit with its null arm
check_*           refuse edits that touch the class, or change nothing or more than they say
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from gateway.methods.caption import write_caption
from gateway.methods.checks import EDIT_CHECKS, Scores, Thresholds
from gateway.methods.counterfactual import Change, Edit, MethodCounterfactual, MethodImage, TaskDescription, Verdict
from gateway.methods.inverted import (
    MOST_IMAGES,
    Attempt,
    EditingParameters,
    ProtectedClasses,
    Sweep,
    edit_and_check,
    render_null_arms,
)
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
from gateway.methods.schedule import (
    ACCEPTED,
    Inputs,
    Proposal,
    RenderedArm,
    accepted_edits,
    refuse_duplicates,
    round_robin,
    rows,
    until_accepted,
)
from gateway.methods.similarity import TextEmbedder, similarities
from gateway.methods.text_checks import check_protected_classes, check_stems
from gateway.methods.word_diff import check_diff
from gateway.methods.words import names_class
from shared.endpoints import Services
from shared.schemas.diffusion import Fraction
from shared.schemas.language import Message

# --- The prompt. The tiny language model is trained on it: tests/contract/tinyworld/weights/test_prompts.py holds it.


@dataclass(frozen=True, slots=True)
class PerturbedCaption:
    """An edit as the language model writes it: the new caption, and what it says it changed."""

    from_phrase: str
    from_value: str
    to_phrase: str
    to_value: str
    caption: str


PERTURB = Question(
    "perturb",
    "You help to test a vision model. Write edits of the caption. Each edit changes one thing that belongs to the "
    "factor and nothing else, so that the answer to the task stays the same. Factors: subject (what the picture "
    "is of), object (another thing nearby), background (the place), adjective (colour, size, pattern), domain "
    "(kind of picture), weather (and time of day). Copy from_phrase exactly; to_phrase stands in its place; the "
    "values are the plainest words for both; caption is the whole caption with that edit made and all else word "
    "for word. Write no edits where the caption says nothing of the factor or where the answer could change.",
    "Task: name the animal\nClass: horse\nFactor: background\nEdits: 2\n"
    "Caption:\nOne brown horse grazes near stables. Strong winds blow this early morning.",
    '{"edits":[{"from_phrase":"near stables","from_value":"stable","to_phrase":"along railways","to_value":"railway",'
    '"caption":"One brown horse grazes along railways. Strong winds blow this early morning."},'
    '{"from_phrase":"near stables","from_value":"stable","to_phrase":"beside rivers","to_value":"river",'
    '"caption":"One brown horse grazes beside rivers. Strong winds blow this early morning."}]}',
    TypeAdapter(dict[Literal["edits"], list[PerturbedCaption]]),
)


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
    yield from rows(inputs.lineage(exchanges=[]), caption, proposals, arms, nulls)


def name_class(inputs: Inputs[LanceParameters], caption: str) -> str:
    """Step 1: the caption, begun with the class where that is known and the caption does not name it."""
    p, truth = inputs.parameters, inputs.image.ground_truth
    if truth is None or not p.label_aware or names_class(caption, truth):
        return caption
    name = truth.split(",")[0].strip()
    domain = p.caption_prompt.strip() or "a picture of"
    article = "an" if name[:1].lower() in set("aeiou") else "a"
    return f"{domain[0].upper()}{domain[1:]} {article} {name}. {caption}"


def perturb_caption(inputs: Inputs[LanceParameters], caption: str, factor: LanceFactor) -> list[Proposal]:
    """Step 2: edits of the caption that change one thing of a factor, each held to the word diff of the captions.

    Without a valid reply it is one refused edit of that factor.
    """
    p, most = inputs.parameters, inputs.parameters.edits_per_factor
    messages = perturb_messages(inputs.task, caption, inputs.image.ground_truth, factor, most)
    schema, seed = perturb_schema(most), inputs.derive_seed(factor, caption)
    longest = _TOKENS_PER_EDIT * most
    try:
        reply, exchange = ask(
            inputs.services, PERTURB, messages, schema, seed=seed, max_tokens=longest, temperature=p.temperature
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


def check_texts(
    services: TextEmbedder, source: MethodImage, task: TaskDescription, edits: Sequence[Edit], thresholds: Thresholds
) -> list[tuple[Verdict, Scores]]:
    """Verdict and similarities of each proposed edit of one source image.

    `thresholds` (check -> factor or `default`) refuse at or above, `class_kept` below; without threshold only equal
    stems count.
    """
    others = [label for label in task.classes if label != source.ground_truth]
    results = []
    for edit, scores in zip(edits, similarities(services, source, task, edits), strict=True):
        verdict = check_stems(edit, source.ground_truth, others) or check_meaning(edit, scores, thresholds)
        results.append((verdict or ACCEPTED, scores))
    return results


def check_meaning(edit: Edit, scores: Scores, thresholds: Thresholds) -> Verdict | None:
    """What the scores have against an edit, by the strictest of the thresholds of its factors."""

    def limits(check: str) -> list[float]:
        table = thresholds.get(check, {"default": 1.0})
        return [table.get(change.factor, table["default"]) for change in edit.changes]

    touching, kept = min(limits("class_words")), scores.get("class_kept", 1.0)
    if scores.get("class_words", 0.0) >= touching:
        return Verdict(False, "class words", f"the change touches the class: similarity {scores['class_words']:.2f}")
    before = scores.get("class_before", 0.0)
    if before >= touching and kept < min(before, max(limits("class_kept"))):
        return Verdict(False, "class kept", f"the new caption has no word for the class: similarity {kept:.2f}")
    if scores.get("other_class", 0.0) >= min(limits("other_class")):
        return Verdict(False, "other class", f"the change adds another class: similarity {scores['other_class']:.2f}")
    if scores.get("paraphrase", 0.0) >= min(limits("paraphrase")):
        return Verdict(False, "paraphrase", f"the new phrase means the same as the old one: {scores['paraphrase']:.2f}")
    return None


def sweep_fractions(
    inputs: Inputs[SweepParameters], caption: str, edits: Sequence[Edit], checks: Sequence[str] = EDIT_CHECKS
) -> list[Sweep]:
    """Step 4: the image inverted, and each edit made in it under every fraction f, by rising f.

    The paper's checks are `likeness` (of image and source), `match` (of image and new caption) and `direction` (φ).
    """
    p = inputs.parameters
    thresholds = {"caption": {"default": 0.0}, "word": {"default": 0.0}} | p.thresholds  # 0: nearer to the new than old
    return edit_and_check(inputs, caption, edits, sorted(set(p.self_fractions)), thresholds, checks)


def keep_best(inputs: Inputs[SweepParameters], sweep: Sweep) -> RenderedArm[float]:
    """Step 5: the best attempt at an edit, with scores and verdicts of all of them in the lineage."""
    return sweep.arm(best(sweep.attempts), inputs.seed)


def best(attempts: Sequence[Attempt]) -> Attempt:
    """Among those that no check refuses, the direction's left aside, the greatest φ; ties go to the larger fraction.

    Where every attempt is refused by another check it is the greatest φ of all.
    """
    fit = [a for a in attempts if a.verdict.accepted or a.verdict.check == "direction"]
    return max(fit or attempts, key=lambda a: (a.scores.get("direction", -1.0), a.fraction))


# --- How the question is sent, and what the reply may be.


_TOKENS_PER_EDIT = 320


def perturb_messages(
    task: TaskDescription, caption: str, ground_truth: str | None, factor: LanceFactor, most: int
) -> list[Message]:
    """The question for step 2: up to `most` edits of the caption that change one thing of a factor.

    The caption begins a line of its own: so its first word reads the same there and in the reply, for any tokenizer.
    """
    known = f"\nClass: {ground_truth}" if ground_truth is not None else ""
    return PERTURB.messages(f"Task: {task.text}{known}\nFactor: {factor}\nEdits: {most}\nCaption:\n{caption}")


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

LanceFactor = Literal["subject", "object", "background", "adjective", "domain", "weather"]
LANCE_FACTORS: tuple[LanceFactor, ...] = ("subject", "object", "background", "adjective", "domain", "weather")


class SweepParameters(EditingParameters):
    """What a job may choose about editing. Defaults are LANCE's, but for `direct` inversion."""

    self_fractions: Annotated[
        tuple[Fraction, ...],
        Field(
            min_length=1,
            max_length=MOST_IMAGES,
            description="Shares of the steps in which self-attention is the source's: each is tried, the best is kept.",
        ),
    ] = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class LanceParameters(SweepParameters):
    """What a job may choose about LANCE. Defaults are ours; the paper's values are named where they differ."""

    factors: Annotated[
        tuple[LanceFactor, ...], Field(min_length=1, description="Factors to edit, one question each.")
    ] = LANCE_FACTORS
    edits_per_factor: Annotated[int, Field(ge=1, le=5, description="Maximum number of edits per question.")] = 2
    counterfactuals_per_image: Annotated[
        int, Field(ge=1, le=30, description="Maximum number of rendered edits per image, spread over the factors.")
    ] = 6
    protect: ProtectedClasses = ()
    temperature: Annotated[float, Field(ge=0, le=2, description="Of the language model.")] = 0.7
    label_aware: Annotated[
        bool, Field(description="Prefix a caption with its image's class if it does not name it.")
    ] = True
    caption_prompt: Annotated[str, Field(max_length=500, description="Image domain: prefix for the captioner.")] = (
        "a photo of"
    )
    text_thresholds: Annotated[
        dict[str, dict[str, float]],
        Field(description="Thresholds of text checks, by check and factor (or `default`); default: the profile's."),
    ] = Field(default_factory=dict)
