"""LANCE (Prabhu, Yenamandra, Chattopadhyay, Hoffman: arXiv 2305.19164): stress tests by language-guided edits.

The paper's steps are the functions that `lance` calls, in order:

1 caption the image
2 ask a language model for edits of the caption that change one thing of one factor
3 check the edits by their words
4 invert the image and edit it by prompt-to-prompt, under every self-attention fraction f of a sweep (`inverted.py`)
5 check the images and keep the best of each sweep

Contrafact adds the task description and the class to every prompt, a word diff that checks the language model's claim
against the captions, and null and sham arms (docs/reference/methods.md).

The paper's symbols (section 3.2, Algorithm 1; their values: Table 6):

f   `self_fractions`: share of the steps in which self-attention is the source's. A large f keeps the source's layout, a
    small f allows larger edits; the best f differs from edit to edit
φ   score `direction`: cosine of (image - source) and (new caption - old) in the scorer's space. The paper prints
    1 - cos (equation 2) but keeps φ > τ (Algorithm 1); ours is the cosine
τ   `thresholds` and `text_thresholds`: per check and factor, from the profile

Steps that the paper does not describe are shared by all methods (`schedule.py`): a `Proposal` is an unrendered edit;
`round_robin` takes the first edit of each factor, then the second ones; `until_accepted` stops when enough proposals
are accepted. `rows` (`arms.py`) pairs each edit with its null arm. If the job's design chooses the values,
`chosen_values.py` replaces this schedule.

LANCE's source filter: an image is not edited if the scorer finds that its own caption does not fit it.

An edit of such a caption says little about the image, and inversion under it costs the most of all steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, TypeAdapter

from gateway.methods.arms import RenderedArm, rows
from gateway.methods.caption import IMAGE_DOMAIN, CaptionDomain, begin_with_domain, domain_of, write_caption
from gateway.methods.checks import DIRECTION, EDITED_CHECKS, UNCALIBRATED_EDITED
from gateway.methods.chosen_values import chosen_edits
from gateway.methods.counterfactual import (
    ACCEPTED,
    Change,
    Changes,
    Edit,
    Factor,
    MethodCounterfactual,
    MethodImage,
    TaskDescription,
    Verdict,
)
from gateway.methods.inverted import (
    Attempt,
    EditedBatch,
    ProtectedClasses,
    SweepParameters,
    check_batch,
    invert_and_edit,
    with_compared_arms,
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
from gateway.methods.schedule import Inputs, Proposal, accepted_edits, refuse_duplicates, round_robin, until_accepted
from gateway.methods.similarity import check_texts
from gateway.methods.text_checks import check_protected
from gateway.methods.words import check_diff, names_class
from shared.schemas.base import Contract
from shared.schemas.designs import ChosenValues
from shared.schemas.evaluation import EmbedRequest
from shared.schemas.language import Message
from shared.schemas.thresholds import TextThresholds
from shared.service.endpoints import Services

SourceMatch = Annotated[
    float | None,
    Field(
        ge=-1,
        le=1,
        description="Edit only source images whose cosine with their own caption reaches this; none: edit all.",
    ),
]


def refuse_unfit_source(
    services: Services, image: MethodImage, caption: str, proposals: Sequence[Proposal], least: float | None
) -> list[Proposal]:
    """The proposals; those that passed the text checks have the score `source_match`, the cosine of image and caption.

    Below `least` they are refused as `source match`. Without `least`, or without such proposals, nothing is called.
    """
    if least is None or not any(proposal.verdict.accepted for proposal in proposals):
        return list(proposals)
    reply = services.embed(EmbedRequest(images=[image.image], texts=[caption]))
    cosine = float(np.dot(reply.images[0], reply.texts[0]))
    reason = f"the caption does not fit the source image: cosine {cosine:.2f}, at least {least:.2f} is needed"
    refusal = Verdict(False, "source match", reason) if cosine < least else None
    return [
        replace(
            proposal,
            verdict=refusal or proposal.verdict,
            scores={**proposal.scores, "source_match": cosine},
        )
        if proposal.verdict.accepted
        else proposal
        for proposal in proposals
    ]


# --- The prompt. The tiny language model is trained on it (tests/contract/tinyworld/weights/test_prompts.py).


@dataclass(frozen=True, slots=True)
class PerturbedCaption:
    """An edit as the language model writes it: the new caption, and the change that it claims.

    `instruct`'s questions also ask for an `instruction`; LANCE's do not.
    """

    from_phrase: str
    from_value: str
    to_phrase: str
    to_value: str
    caption: str
    instruction: str = ""


PerturbReply = dict[Literal["edits"], list[PerturbedCaption]]


_PERTURB = (
    "You help to test a vision model. Write edits of the caption. Each edit changes one thing that belongs to the "
    "factor and nothing else, so that the answer to the task stays the same. Factors: subject (what the picture "
    "is of), object (another thing nearby), background (the place), adjective (colour, size, pattern), domain "
    "(kind of picture), weather (and time of day). Copy from_phrase exactly; to_phrase stands in its place; the "
    "values are the plainest words for both; caption is the whole caption with that edit made and all else word "
    "for word. Write no edits where the caption says nothing of the factor or where the answer could change."
)
_EXAMPLE = "One brown horse grazes near stables. Strong winds blow this early morning."
_EDIT = (
    '{"from_phrase":"near stables","from_value":"stable","to_phrase":"along railways","to_value":"railway",'
    '"caption":"One brown horse grazes along railways. Strong winds blow this early morning."}'
)
PERTURB = Question(
    "perturb",
    _PERTURB,
    f"Task: name the animal\nClass: horse\nFactor: background\nEdits: 2\nCaption:\n{_EXAMPLE}",
    f'{{"edits":[{_EDIT},'
    '{"from_phrase":"near stables","from_value":"stable","to_phrase":"beside rivers","to_value":"river",'
    '"caption":"One brown horse grazes beside rivers. Strong winds blow this early morning."}]}',
    TypeAdapter(PerturbReply),
)
VALUE = Question(
    "value",
    f"{_PERTURB} The edit changes to the value that is named.",
    f"Task: name the animal\nClass: horse\nFactor: background\nValue: railway\nEdits: 1\nCaption:\n{_EXAMPLE}",
    f'{{"edits":[{_EDIT}]}}',
    PERTURB.reply,
)


# The paper's fine-tuned model also inserts words (Table 5). The tiny language model is not trained on this question.
PERTURB_OR_ADD = replace(
    PERTURB,
    name="perturb or add",
    system=f"{PERTURB.system} An edit may also only add a phrase (“stables” → “stables behind a white fence”): "
    "then from_phrase and from_value are empty, and to_phrase is what is added.",
)


_TOKENS_PER_EDIT = 320  # of the reply


# --- The method.


def lance(
    image: MethodImage, task: TaskDescription, services: Services, parameters: LanceParameters, seed: int
) -> Iterator[MethodCounterfactual]:
    """The counterfactuals of one source image: proposals in order, then a null and a sham arm for each chosen fraction.

    Proposals that step 3 refuses have no image. A factor without a valid reply is one refused proposal. Raises what the
    services raise.
    """
    inputs = Inputs("lance", revision_with_paraphrase(REVISION, parameters), image, task, services, parameters, seed)
    caption = complete_caption(inputs, write_caption(image, services, parameters))  # 1
    proposals = propose_edits(inputs, caption)  # 2, 3
    proposals = refuse_unfit_source(services, image, caption, proposals, parameters.source_match)
    batches = sweep_fractions(inputs, caption, accepted_edits(proposals))  # 4
    arms = [arm for batch in batches for arm in keep_best(inputs, batch)]  # 5
    compared = with_compared_arms(inputs, caption, accepted_edits(proposals), arms, EDITED_CHECKS)
    yield from rows(inputs.lineage(exchanges=[]), caption, proposals, *compared)


def complete_caption(inputs: Inputs[LanceParameters], caption: str) -> str:
    """Step 1: the caption, begun with its domain. If it does not name the image's class, a first sentence does.

    A caption that names its own style keeps it, behind "A picture of a bus.".
    """
    p, truth = inputs.parameters, inputs.image.ground_truth
    if truth is None or not p.label_aware or names_class(caption, truth):
        return begin_with_domain(caption, p)
    name = truth.split(",")[0].strip()
    domain = domain_of(caption, p).strip() or "a picture of"
    article = "an" if name[:1].lower() in set("aeiou") else "a"
    return f"{domain[0].upper()}{domain[1:]} {article} {name}. {caption}"


def propose_edits(inputs: Inputs[LanceParameters], caption: str) -> list[Proposal]:
    """Steps 2 and 3: edits of all factors in turn, until enough are accepted.

    If the job's design chooses the values, each value is one proposal, rendered or refused.
    """
    p, perturb = inputs.parameters, partial(perturb_caption, inputs, caption)
    if p.values:
        return list(check_words(inputs, list(chosen_edits(caption, p.values, perturb))))
    edits = refuse_duplicates(round_robin([perturb(factor) for factor in dict.fromkeys(p.factors)]))  # 2
    return list(until_accepted(check_words(inputs, edits), p.counterfactuals_per_image))  # 3


def perturb_caption(
    inputs: Inputs[LanceParameters], caption: str, factor: Factor, attempt: int = 0, value: str = ""
) -> list[Proposal]:
    """Step 2: edits of the caption that change one thing of a factor. `value` and `attempt` as in `ask_for_edits`."""
    p, most = inputs.parameters, 1 if value else inputs.parameters.edits_per_factor
    question = VALUE if value else PERTURB_OR_ADD if p.additions else PERTURB
    schema = perturb_schema(most, p.additions and not value)
    request = EditQuestion(question, schema, most, _TOKENS_PER_EDIT, p.temperature, value)
    return ask_for_edits(inputs, caption, factor, attempt, request)


@dataclass(frozen=True, slots=True)
class EditQuestion:
    """A question for up to `most` edits of a caption; `value`: for one edit to it."""

    question: Question[PerturbReply]
    schema: Schema
    most: int
    tokens_per_edit: int
    temperature: float
    value: str = ""


def ask_for_edits(
    inputs: Inputs[Contract], caption: str, factor: Factor, attempt: int, request: EditQuestion
) -> list[Proposal]:
    """Step 2: the language model's edits of a factor. The word diff refuses captions that change more than they claim.

    Without a valid reply the result is one refused edit of this factor. `attempt` counts repetitions of a question from
    0; each has another seed.
    """
    truth, most = inputs.image.ground_truth, request.most
    messages = perturb_messages(inputs.task, caption, truth, factor, most, request.question, request.value)
    seed, longest = inputs.derive_seed(factor, caption, *([attempt] if attempt else [])), request.tokens_per_edit * most
    try:
        reply, exchange = ask(
            inputs.services, request.question, messages, request.schema,
            seed=seed, max_tokens=longest, temperature=request.temperature,
        )  # fmt: skip
    except InvalidReply as invalid:
        unchanged = Edit((Change(factor, "", "", "", ""),), caption, "")
        return [Proposal(unchanged, inputs.seed, invalid.verdict, exchanges=(invalid.exchange,))]
    proposals = []
    for new in reply["edits"]:
        change = Change(factor, new.from_phrase, new.to_phrase, new.from_value, new.to_value)
        edit = Edit((change,), caption, " ".join(new.caption.split()), " ".join(new.instruction.split()))
        proposals.append(Proposal(edit, inputs.seed, check_diff(edit) or ACCEPTED, exchanges=(exchange,)))
    return proposals


def perturb_messages(
    task: TaskDescription,
    caption: str,
    ground_truth: str | None,
    factor: Factor,
    most: int,
    question: Question[PerturbReply],
    value: str = "",
) -> list[Message]:
    """The question for step 2: up to `most` edits of the caption that change one thing of a factor, or to `value`.

    The caption starts on a new line, so that its first word has the same tokens as in the reply.
    """
    class_line = f"\nClass: {ground_truth}" if ground_truth is not None else ""
    value_line = f"\nValue: {value}" if value else ""
    text = f"Task: {task.text}{class_line}\nFactor: {factor}{value_line}\nEdits: {most}\nCaption:\n{caption}"
    return question.messages(text)


def perturb_schema(most: int, additions: bool = False, *, instructions: bool = False) -> Schema:
    """Schema of the reply: up to `most` edits, each with phrases, canonical values and the new caption.

    With `additions`, what an edit replaces may be empty. With `instructions`, each edit has one.
    """
    longest = {"from_phrase": 60, "from_value": 40, "to_phrase": 60, "to_value": 40, "caption": 600}
    if instructions:
        longest["instruction"] = 300
    texts = {name: text_schema(length) for name, length in longest.items()}
    if additions:
        texts |= {name: {**texts[name], "minLength": 0} for name in ("from_phrase", "from_value")}
    edit = object_schema(**texts)
    return object_schema(edits={"type": "array", "items": edit, "maxItems": most})


def check_words(inputs: Inputs[LanceParameters], proposals: Sequence[Proposal]) -> Iterator[Proposal]:
    """Step 3: check the proposals that are neither duplicates nor refused by the word diff, in this order:

    1 Word stems: the change touches the class, changes nothing, or adds another class; the new caption does not apply
      the change.
    2 Meaning: a similarity (cosine of sentence embeddings, 1 for equal stems) reaches τ.
      `class words`  The changed words name the class.
      `class kept`   The old caption names the class, and the new one does not.
      `other class`  The new words name another class.
      `paraphrase`   The new phrase means the same as the old one.
    3 Protected: the change names a protected class of the job, or changes a protected characteristic of people.
    """
    p, edits = inputs.parameters, accepted_edits(proposals)
    judged = iter(check_texts(inputs.services, inputs.image, inputs.task, edits, p.text_thresholds))
    for proposal in proposals:
        if not proposal.verdict.accepted:
            yield proposal
            continue
        edit, (verdict, scores) = proposal.edit, next(judged)
        refusal = check_protected(edit, inputs.task, p.protect)
        yield replace(proposal, verdict=refusal if refusal and verdict.accepted else verdict, scores=scores)


def sweep_fractions(inputs: Inputs[SweepParameters], caption: str, edits: Sequence[Edit]) -> Iterator[EditedBatch]:
    """Step 4: invert the source image under its caption, and make each edit in it under every f, by rising f.

    Prompt-to-prompt denoises the inverted image under the new caption. In the first `cross_fraction` of the steps,
    cross-attention is the source's for words that both captions have. In the first f of the steps, self-attention is
    the source's. A batch has as many edits as fit into one request; they share inversion and source branch.
    """
    return invert_and_edit(inputs, caption, edits, sorted(set(inputs.parameters.self_fractions)))


def keep_best(
    inputs: Inputs[SweepParameters], batch: EditedBatch, checks: Sequence[str] = EDITED_CHECKS
) -> list[RenderedArm[float]]:
    """Step 5: check every image, and keep the best image of each edit; its lineage has the scores of all attempts.

    The first check whose score is below τ refuses an image. Without a threshold of its own, the image must be closer to
    the new text than to the old.
    """
    thresholds = {**UNCALIBRATED_EDITED, **inputs.parameters.thresholds}
    sweeps = check_batch(inputs, batch, thresholds, checks)
    return [sweep.arm(best(sweep.attempts), inputs.seed) for sweep in sweeps]


def best(attempts: Sequence[Attempt]) -> Attempt:
    """The image with the greatest φ among those that pass all other checks; ties go to the larger f.

    If no image passes them, the image with the greatest φ. Its verdict is the verdict on the edit.
    """
    passing = [a for a in attempts if a.verdict.accepted or a.verdict.check == DIRECTION]
    return max(passing or attempts, key=lambda a: (a.scores.get(DIRECTION, -1.0), a.fraction))


# --- The revision.


def prompt_digest() -> str:
    """SHA-256 over the prompt that the tiny language model is trained on, rendered for fixed inputs, and the schema."""
    task = TaskDescription("task")
    messages = [
        message
        for truth in ("class", None)
        for message in perturb_messages(task, "caption", truth, "weather", 2, PERTURB)
    ]
    return digest_of_prompts(messages, perturb_schema(2))


# Raise the number whenever equal replies would give other counterfactuals, or another prompt changes.
REVISION = revision_of("2", prompt_digest())


# --- The parameters.

LanceFactor = Literal["subject", "object", "background", "adjective", "domain", "weather"]
LANCE_FACTORS: tuple[LanceFactor, ...] = ("subject", "object", "background", "adjective", "domain", "weather")


class LanceParameters(SweepParameters):
    """A job's parameters for LANCE. Defaults are ours; the descriptions name the paper's values if they differ."""

    factors: Annotated[
        tuple[LanceFactor, ...], Field(min_length=1, description="Factors to edit, one question each.")
    ] = LANCE_FACTORS
    edits_per_factor: Annotated[int, Field(ge=1, le=5, description="Maximum number of edits per question.")] = 2
    additions: Annotated[
        bool, Field(description="Ask for edits that only add a phrase, too (LANCE's Table 5 has such edits).")
    ] = False
    counterfactuals_per_image: Annotated[
        int, Field(ge=1, le=30, description="Maximum number of rendered edits per image, spread over the factors.")
    ] = 6
    values: Annotated[
        ChosenValues, Field(description="Every image gets these changes, set by the job's `design`; none: the model's.")
    ] = ()
    protect: ProtectedClasses = ()
    source_match: SourceMatch = None
    temperature: Annotated[float, Field(ge=0, le=2, description="Of the language model.")] = 0.7
    label_aware: Annotated[
        bool, Field(description="Prefix a caption with its image's class if it does not name it.")
    ] = True
    caption_prompt: Annotated[str, Field(max_length=500, description="Prefix given to the captioner.")] = IMAGE_DOMAIN
    caption_domain: CaptionDomain = None
    text_thresholds: Annotated[
        TextThresholds,
        Field(description="Thresholds of text checks, by check and factor (or `default`); default: the profile's."),
    ] = Field(default_factory=dict)

    def cells(self) -> int:
        return len(self.values) or self.counterfactuals_per_image

    def changes(self) -> Changes:
        return Changes(self.values, self.factors, self.counterfactuals_per_image)
