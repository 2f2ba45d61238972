"""Instruct: one instruction per edit, carried out by an instruction-following editor.

1 caption the image
2 ask a language model for edits of the caption that change one thing of one factor, each with an instruction; or take
  the user's instructions, for which a rule writes the new caption
3 check the edits by their words
4 let the editor carry out each instruction; the null arm is an instruction that changes nothing, under the same seed
5 check the images

The editor is the profile's `[diffusion.instruct]`. Both guidance scales are InstructPix2Pix's (Brooks, Holynski, Efros:
arXiv 2211.09800), and so is the check `direction`, by which it filters its training images (section 3.1.2). The new
caption is for the checks only: the editor sees image and instruction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from gateway.methods.arms import ComparedArms, RenderedArm, compare_arms, rows
from gateway.methods.caption import write_caption
from gateway.methods.check_parameters import CheckParameters
from gateway.methods.checks import check_images
from gateway.methods.chosen_values import chosen_edits
from gateway.methods.counterfactual import (
    ACCEPTED,
    Change,
    Edit,
    Factor,
    MethodCounterfactual,
    MethodImage,
    TaskDescription,
    Thresholds,
    Verdict,
)
from gateway.methods.inverted import ProtectedClasses
from gateway.methods.lance import (
    DEFAULT_THRESHOLDS,
    LANCE_CHECKS,
    LANCE_FACTORS,
    PERTURB,
    VALUE,
    LanceFactor,
    PerturbedCaption,
    perturb_messages,
    perturb_schema,
)
from gateway.methods.lineage import Lineage
from gateway.methods.questions import InvalidReply, Question, Schema, ask, digest_of_prompts, revision_of, text_schema
from gateway.methods.schedule import (
    Inputs,
    Proposal,
    accepted_proposals,
    refuse_duplicates,
    round_robin,
    until_accepted,
    with_seeds,
)
from gateway.methods.shifts import Phrase, Shift, apply_shift
from gateway.methods.text_checks import check_caption, check_instruction, check_protected_classes, check_stems
from gateway.methods.validity import judge_validity
from gateway.methods.word_diff import check_diff
from gateway.methods.words import occurrences
from shared.chunks import chunks
from shared.endpoints import Services
from shared.schemas.base import Contract
from shared.schemas.designs import ChosenValues
from shared.schemas.diffusion import Guidance
from shared.schemas.instructions import MAX_INSTRUCTED_EDITS, EditedRegion, InstructedEdit, InstructRequest
from shared.schemas.instructions import Instruction as InstructionText

# --- The prompts.


@dataclass(frozen=True, slots=True)
class InstructedCaption(PerturbedCaption):
    """An edit as the language model writes it. LANCE's question asks for no instruction."""

    instruction: str = ""


_INSTRUCT = (
    "You help to test a vision model. Write edits of the picture that the caption describes. Each edit changes one "
    "thing that belongs to the factor and nothing else, so that the answer to the task stays the same. Factors: "
    "subject (what the picture is of), object (another thing nearby), background (the place), adjective (colour, "
    "size, pattern), domain (kind of picture), weather (and time of day). Copy from_phrase from the caption exactly; "
    "to_phrase stands in its place; the values are the plainest words for both; caption is the whole caption with "
    "that edit made and all else word for word; instruction tells an image editor, which sees the picture and not the "
    "caption, in one plain sentence what to change and into what. Write no edits where the caption says nothing of "
    "the factor or where the answer could change."
)
_EXAMPLE = "One brown horse grazes near stables. Strong winds blow this early morning."
_EDIT = (
    '{"from_phrase":"near stables","from_value":"stable","to_phrase":"along railways","to_value":"railway",'
    '"caption":"One brown horse grazes along railways. Strong winds blow this early morning.",'
    '"instruction":"Replace the stables behind the horse with a railway line."}'
)
_REPLY = TypeAdapter(dict[Literal["edits"], list[InstructedCaption]])
INSTRUCT = Question(
    "instruct",
    _INSTRUCT,
    f"Task: name the animal\nClass: horse\nFactor: background\nEdits: 2\nCaption:\n{_EXAMPLE}",
    f'{{"edits":[{_EDIT},'
    '{"from_phrase":"near stables","from_value":"stable","to_phrase":"beside rivers","to_value":"river",'
    '"caption":"One brown horse grazes beside rivers. Strong winds blow this early morning.",'
    '"instruction":"Let a river flow where the stables are."}]}',
    _REPLY,
)
INSTRUCT_VALUE = Question(
    "instruct to a value",
    f"{_INSTRUCT} The edit changes to the value that is named.",
    f"Task: name the animal\nClass: horse\nFactor: background\nValue: railway\nEdits: 1\nCaption:\n{_EXAMPLE}",
    f'{{"edits":[{_EDIT}]}}',
    _REPLY,
)
# LANCE's own questions, on which the tiny language model is trained; a rule writes the instruction.
BY_RULE = Question(PERTURB.name, PERTURB.system, PERTURB.example, PERTURB.example_reply, _REPLY)
BY_RULE_VALUE = Question(VALUE.name, VALUE.system, VALUE.example, VALUE.example_reply, _REPLY)

SHAM_INSTRUCTION = "Keep the image exactly as it is."


def instruction_by_rule(old: str, new: str) -> str:
    """The instruction that replaces a phrase, or adds one where there is none to replace."""
    return f"Change {old} to {new}." if old else f"Add {new}."


# --- The method.


def instruct(
    image: MethodImage, task: TaskDescription, services: Services, parameters: InstructParameters, seed: int
) -> Iterator[MethodCounterfactual]:
    """The counterfactuals of one source image: proposals in order, each under every seed, then a null arm per seed.

    Proposals that step 3 refuses have no image. A factor without a valid reply is one refused proposal. Raises what the
    services raise.
    """
    inputs = Inputs("instruct", REVISION, image, task, services, parameters, seed)
    caption = write_caption(image, services, parameters)  # 1
    proposals = under_seeds(inputs, propose_edits(inputs, caption))  # 2, 3
    compared = carry_out(inputs, proposals)  # 4, 5
    yield from rows(inputs.lineage(), caption, proposals, *compared)


def propose_edits(inputs: Inputs[InstructParameters], caption: str) -> list[Proposal]:
    """Steps 2 and 3: the user's instructions, each once; without them edits of all factors until enough are accepted.

    If the job's design chooses the values, each value is one proposal, edited or refused.
    """
    p, write = inputs.parameters, partial(write_edits, inputs, caption)
    if p.instructions:
        return list(
            check_words(inputs, [edit_of_instruction(inputs, caption, instruction) for instruction in p.instructions])
        )
    if p.values:
        return list(check_words(inputs, chosen_edits(caption, p.values, write)))
    edits = refuse_duplicates(round_robin([write(factor) for factor in dict.fromkeys(p.factors)]))
    return list(until_accepted(check_words(inputs, edits), p.counterfactuals_per_image))


def write_edits(
    inputs: Inputs[InstructParameters], caption: str, factor: Factor, attempt: int = 0, value: str = ""
) -> list[Proposal]:
    """Step 2: the language model's edits of a factor. The word diff refuses captions that change more than they claim.

    Without a valid reply the result is one refused edit of this factor. `value`: ask for one edit to it. `attempt`
    counts repetitions of a question, which have other seeds.
    """
    p, most = inputs.parameters, 1 if value else inputs.parameters.edits_per_factor
    question = _QUESTIONS[p.wording][bool(value)]
    messages = perturb_messages(inputs.task, caption, inputs.image.ground_truth, factor, most, question, value)
    seed = inputs.derive_seed(factor, caption, *([attempt] if attempt else []))
    tokens, schema = _TOKENS_PER_EDIT * most, reply_schema(most, p.wording)
    try:
        reply, exchange = ask(
            inputs.services, question, messages, schema, seed=seed, max_tokens=tokens, temperature=p.temperature
        )
    except InvalidReply as invalid:
        refused_edit = Edit((Change(factor, "", "", "", ""),), caption, "")
        return [Proposal(refused_edit, inputs.seed, invalid.verdict, exchanges=(invalid.exchange,))]
    proposals = []
    for new in reply["edits"]:
        change = Change(factor, new.from_phrase, new.to_phrase, new.from_value, new.to_value)
        instruction = " ".join(new.instruction.split()) or instruction_by_rule(new.from_phrase, new.to_phrase)
        edit = Edit((change,), caption, " ".join(new.caption.split()), instruction)
        proposals.append(Proposal(edit, inputs.seed, check_diff(edit) or ACCEPTED, exchanges=(exchange,)))
    return proposals


def edit_of_instruction(inputs: Inputs[InstructParameters], caption: str, chosen: Instruction) -> Proposal:
    """Step 2: the edit of a user's instruction.

    Its `phrase` replaces the first of its `replaces` that the caption has, or is added to the first sentence. Without a
    phrase, the value is added as a sentence.
    """
    if chosen.phrase:
        old, new_caption = apply_shift(caption, Shift(phrase=chosen.phrase, replaces=chosen.replaces))
    else:
        old, new_caption = "", f"{caption} {chosen.name[0].upper()}{chosen.name[1:].rstrip('.')}."
    change = Change(chosen.factor, old, chosen.phrase or chosen.name, old, chosen.name)
    return Proposal(Edit((change,), caption, new_caption, chosen.instruction), inputs.seed)


def check_words(inputs: Inputs[InstructParameters], proposals: Iterable[Proposal]) -> Iterator[Proposal]:
    """Step 3: check by word stems the proposals that nothing has refused yet.

    Refused are edits that touch the class, change nothing, or name another class, a protected class of the job, or a
    protected characteristic of people, in phrases, new caption or instruction.
    """
    truth, others = inputs.image.ground_truth, inputs.other_classes
    for proposal in proposals:
        edit = proposal.edit
        if not proposal.verdict.accepted:
            yield proposal
            continue
        (change,) = edit.changes
        if not change.from_phrase and occurrences(edit.caption, change.to_phrase):
            present = Verdict(False, "no change", f"the caption already says “{change.to_phrase}”")
            yield replace(proposal, verdict=present)
            continue
        refusal = (
            check_stems(edit, truth, others)
            or check_caption((), edit.caption, edit.new_caption, truth, others)
            or check_instruction(edit.instruction, edit.caption, others)
            or check_protected_classes(edit.changes, edit.caption, edit.new_caption, inputs.parameters.protect)
        )
        yield replace(proposal, verdict=refusal or ACCEPTED)


def under_seeds(inputs: Inputs[InstructParameters], proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals, each accepted one under every seed. All edits of a source image share seeds and null arms."""
    seeds = inputs.parameters.seeds_per_edit
    copies = [copy for proposal in proposals for copy in [proposal] * (seeds if proposal.verdict.accepted else 1)]
    return with_seeds(inputs, copies, same_seed=True, seeds=seeds)


def carry_out(inputs: Inputs[InstructParameters], proposals: Sequence[Proposal]) -> ComparedArms[int]:
    """Steps 4 and 5: images of the accepted proposals, and a null arm for each seed, checked; in few requests."""
    p, accepted = inputs.parameters, accepted_proposals(proposals)
    edits = [proposal.edit for proposal in accepted]
    seeds = dict.fromkeys(proposal.seed for proposal in accepted)
    arms: list[_Arm] = [
        *((proposal.edit, InstructedEdit(instruction=proposal.edit.instruction, seed=proposal.seed))
          for proposal in accepted),
        *((None, InstructedEdit(instruction=p.sham_instruction, seed=seed)) for seed in seeds),
    ]  # fmt: skip
    thresholds = {**DEFAULT_THRESHOLDS, **p.thresholds}
    images = [arm for batch in chunks(arms, MAX_INSTRUCTED_EDITS) for arm in edit_images(inputs, batch, thresholds)]
    judged = judge_validity(inputs, edits, images[: len(edits)], thresholds)
    return compare_arms(edits, judged, images[len(edits) :], None, thresholds, INSTRUCT_CHECKS)


def edit_images(
    inputs: Inputs[InstructParameters], arms: Sequence[_Arm], thresholds: Thresholds
) -> Iterator[RenderedArm[int]]:
    """Steps 4 and 5 for as many arms as fit into a request. An edit that the editor refuses is refused as `editor`."""
    p, image = inputs.parameters, inputs.image
    request = InstructRequest(
        source=image.image,
        edits=[instructed for _, instructed in arms],
        region=p.region,
        mask=image.object_mask if p.region == "background" else None,
        steps=p.steps,
        guidance=p.guidance,
        image_guidance=p.image_guidance,
    )
    reply, edits = inputs.services.instruct(request), [edit for edit, _ in arms]
    checked = check_images(
        inputs.services, image, inputs.task, reply, edits, thresholds, INSTRUCT_CHECKS, p.recaption, p.second_thresholds
    )
    replies = zip(arms, reply.images, reply.refusals, checked, strict=True)
    for (_, instructed), edited, refusal, (verdict, scores) in replies:
        if refusal:
            verdict = Verdict(False, "editor", refusal)
        lineage: Lineage = {"rendering": instructed.model_dump(mode="json")}
        cost = 0 if refusal else reply.evaluations
        yield RenderedArm(edited, instructed.seed, verdict, scores, instructed.seed, cost, lineage=lineage)


_Arm = tuple[Edit | None, InstructedEdit]  # an edit, or a null arm (None)
INSTRUCT_CHECKS = LANCE_CHECKS  # those of images edited in place, in LANCE's order


# --- How the question is sent, and what the reply may be.

Wording = Literal["model", "rule"]
_QUESTIONS = {"model": (INSTRUCT, INSTRUCT_VALUE), "rule": (BY_RULE, BY_RULE_VALUE)}
_TOKENS_PER_EDIT = 400
_LONGEST_INSTRUCTION = 300


def reply_schema(most: int, wording: Wording) -> Schema:
    """Schema of step 2's reply: LANCE's, and with the wording `model` an instruction for each edit."""
    schema = perturb_schema(most)
    if wording == "rule":
        return schema
    edit = schema["properties"]["edits"]["items"]
    properties = {**edit["properties"], "instruction": text_schema(_LONGEST_INSTRUCTION)}
    edits = {**schema["properties"]["edits"], "items": {**edit, "properties": properties, "required": [*properties]}}
    return {**schema, "properties": {"edits": edits}}


_PROMPTS = [message for questions in _QUESTIONS.values() for question in questions for message in question.messages("")]
# Raise the number whenever equal replies would give other counterfactuals.
REVISION = revision_of("1", digest_of_prompts(_PROMPTS, [reply_schema(2, "model"), reply_schema(2, "rule")]))


# --- The parameters.


class Instruction(Contract):
    """One instruction; a plain string is its `instruction`. `value` names the change in cells (default: all of it).

    `phrase` is what a caption says of the changed image, in place of one of `replaces` ("at night" for "by day"); the
    checks compare images with such a caption. Default: the value.
    """

    instruction: InstructionText
    factor: Factor = "other"
    value: Annotated[str, Field(max_length=100)] = ""
    phrase: Annotated[str, Field(max_length=100)] = ""
    replaces: Annotated[tuple[Phrase, ...], Field(max_length=20)] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"instruction": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _short_value(self) -> Self:
        if not self.name.strip(" ."):
            raise ValueError("an instruction needs words; say what to change")
        if len(self.name) > _LONGEST_VALUE:
            raise ValueError(f"an instruction of over {_LONGEST_VALUE} characters needs a short `value`; give it one")
        if self.replaces and not self.phrase:
            raise ValueError("`replaces` needs a `phrase` that replaces them; give both")
        return self

    @property
    def name(self) -> str:
        """The value of the change."""
        return self.value or self.instruction


_LONGEST_VALUE = 100


class InstructParameters(CheckParameters):
    """A job's parameters for instruct."""

    instructions: Annotated[
        tuple[Instruction, ...],
        Field(max_length=12, description="Your instructions, for every image; none: the language model writes them."),
    ] = ()
    wording: Annotated[
        Wording,
        Field(description="Who words them: the language model, or a rule for its phrases (“Change … to ….”)."),
    ] = "model"
    factors: Annotated[
        tuple[LanceFactor, ...], Field(min_length=1, description="Factors to edit, one question each.")
    ] = LANCE_FACTORS
    edits_per_factor: Annotated[int, Field(ge=1, le=5, description="Maximum number of edits per question.")] = 2
    counterfactuals_per_image: Annotated[
        int, Field(ge=1, le=30, description="Maximum number of edits per image, spread over the factors.")
    ] = 4
    values: Annotated[
        ChosenValues, Field(description="Every image gets these changes, set by the job's `design`; none: the model's.")
    ] = ()
    seeds_per_edit: Annotated[
        int, Field(ge=1, le=10, description="Images of each edit under different seeds, each with its null arm.")
    ] = 1
    sham_instruction: Annotated[
        InstructionText, Field(description="Instruction of the null arm: it changes nothing.")
    ] = SHAM_INSTRUCTION
    region: Annotated[
        EditedRegion, Field(description="background: the object, by mask or segmenter, is not edited.")
    ] = "all"
    protect: ProtectedClasses = ()
    temperature: Annotated[float, Field(ge=0, le=2, description="Of the language model.")] = 0.7
    steps: Annotated[int, Field(ge=1, le=200, description="Denoising steps (InstructPix2Pix: 100).")] = 50
    guidance: Annotated[Guidance, Field(description="How closely the image follows the instruction; 1: none.")] = 7.5
    image_guidance: Annotated[
        Guidance, Field(description="How closely it follows the source; without effect if `guidance` is 1.")
    ] = 1.5
    caption_prompt: Annotated[str, Field(max_length=500, description="Prefix given to the captioner.")] = ""
    caption_min_tokens: Annotated[int, Field(ge=0, le=200, description="Shortest caption.")] = 0
    caption_max_tokens: Annotated[int, Field(ge=1, le=256, description="Longest caption.")] = 96
    caption_beams: Annotated[int, Field(ge=1, le=8, description="Beams of the caption search.")] = 1

    @model_validator(mode="after")
    def _instructions_differ(self) -> Self:
        names = [instruction.name.lower() for instruction in self.instructions]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"instructions has {', '.join(duplicates)} more than once; give each a value of its own")
        return self

    @property
    def edits(self) -> int:
        """The most different edits of one source image."""
        return len(self.instructions) or len(self.values) or self.counterfactuals_per_image
