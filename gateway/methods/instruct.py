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

from pydantic import Field, model_validator

from gateway.methods.arms import ComparedArms, RenderedArm, compare_arms, rows
from gateway.methods.caption import write_caption
from gateway.methods.checks import EDITED_CHECKS, UNCALIBRATED_EDITED, check_images
from gateway.methods.chosen_values import chosen_edits
from gateway.methods.counterfactual import (
    ACCEPTED,
    Change,
    Changes,
    Edit,
    Factor,
    Lineage,
    MethodCounterfactual,
    MethodImage,
    TaskDescription,
    Thresholds,
    Verdict,
)
from gateway.methods.inverted import ProtectedClasses
from gateway.methods.lance import (
    LANCE_FACTORS,
    PERTURB,
    VALUE,
    EditQuestion,
    LanceFactor,
    ask_for_edits,
    perturb_schema,
)
from gateway.methods.questions import Question, digest_of_prompts, revision_of
from gateway.methods.schedule import (
    Inputs,
    Proposal,
    accepted_edits,
    accepted_proposals,
    refuse_duplicates,
    round_robin,
    until_accepted,
    with_seeds,
)
from gateway.methods.shifts import Phrase, Shift, apply_shift
from gateway.methods.text_checks import check_caption, check_instruction, check_protected, check_stems
from gateway.methods.validity import CheckParameters, judge_validity
from gateway.methods.words import occurrences
from shared.chunks import chunks
from shared.problems import InvalidInput
from shared.profiles.diffusion import Diffusion
from shared.profiles.instruct import InstructPix2Pix, InstructServer
from shared.profiles.profile import Profile
from shared.schemas.base import Contract
from shared.schemas.designs import ChosenValues
from shared.schemas.diffusion import (
    MAX_INSTRUCTED_EDITS,
    EditedRegion,
    Guidance,
    InstructedEdit,
    InstructReply,
    InstructRequest,
)
from shared.schemas.diffusion import Instruction as InstructionText
from shared.schemas.effects import DoseParameter
from shared.service.endpoints import Services

# --- The prompts.


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
INSTRUCT = Question(
    "instruct",
    _INSTRUCT,
    f"Task: name the animal\nClass: horse\nFactor: background\nEdits: 2\nCaption:\n{_EXAMPLE}",
    f'{{"edits":[{_EDIT},'
    '{"from_phrase":"near stables","from_value":"stable","to_phrase":"beside rivers","to_value":"river",'
    '"caption":"One brown horse grazes beside rivers. Strong winds blow this early morning.",'
    '"instruction":"Let a river flow where the stables are."}]}',
    PERTURB.reply,
)
INSTRUCT_VALUE = Question(
    "instruct to a value",
    f"{_INSTRUCT} The edit changes to the value that is named.",
    f"Task: name the animal\nClass: horse\nFactor: background\nValue: railway\nEdits: 1\nCaption:\n{_EXAMPLE}",
    f'{{"edits":[{_EDIT}]}}',
    PERTURB.reply,
)
SHAM_INSTRUCTION = "Keep the image exactly as it is."


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
    edits = propose_edits(inputs, caption)  # 2
    checked = until_accepted(check_words(inputs, edits), parameters.cells())  # 3
    proposals = under_seeds(inputs, list(checked))
    compared = carry_out(inputs, proposals)  # 4, 5
    yield from rows(inputs.lineage(), caption, proposals, *compared)


def propose_edits(inputs: Inputs[InstructParameters], caption: str) -> Iterable[Proposal]:
    """Step 2: the user's instructions, each once; without them the language model's edits of all factors in turn.

    If the job's design chooses the values, each value is one proposal, edited or refused.
    """
    p, write = inputs.parameters, partial(write_edits, inputs, caption)
    if p.instructions:
        return [Proposal(edit_of_instruction(caption, chosen), inputs.seed) for chosen in p.instructions]
    if p.values:
        return chosen_edits(caption, p.values, write)
    return refuse_duplicates(round_robin([write(factor) for factor in dict.fromkeys(p.factors)]))


def write_edits(
    inputs: Inputs[InstructParameters], caption: str, factor: Factor, attempt: int = 0, value: str = ""
) -> list[Proposal]:
    """Step 2: the language model's edits of a factor, each with an instruction, by rule where the model writes none.

    `value` and `attempt` as in `ask_for_edits`.
    """
    p, most = inputs.parameters, 1 if value else inputs.parameters.edits_per_factor
    question, schema = _QUESTIONS[p.wording][bool(value)], perturb_schema(most, instructions=p.wording == "model")
    request = EditQuestion(question, schema, most, _TOKENS_PER_EDIT, p.temperature, value)
    return [with_instruction(proposal) for proposal in ask_for_edits(inputs, caption, factor, attempt, request)]


def with_instruction(proposal: Proposal) -> Proposal:
    """The proposal with an instruction. A reply that was refused as a whole has no change to instruct."""
    (change,) = proposal.edit.changes
    if proposal.edit.instruction or not change.to_phrase:
        return proposal
    instruction = instruction_by_rule(change.from_phrase, change.to_phrase)
    return replace(proposal, edit=replace(proposal.edit, instruction=instruction))


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
            or check_protected(edit, inputs.task, inputs.parameters.protect)
        )
        yield replace(proposal, verdict=refusal or ACCEPTED)


def under_seeds(inputs: Inputs[InstructParameters], proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals, each accepted one under every seed. All edits of a source image share seeds and null arms."""
    seeds = inputs.parameters.seeds_per_edit
    copies = [copy for proposal in proposals for copy in [proposal] * (seeds if proposal.verdict.accepted else 1)]
    return with_seeds(inputs, copies, same_seed=True, seeds=seeds)


def carry_out(inputs: Inputs[InstructedParameters], proposals: Sequence[Proposal]) -> ComparedArms[int]:
    """Steps 4 and 5: images of the accepted proposals, and a null arm for each seed, checked."""
    p, edits = inputs.parameters, accepted_edits(proposals)
    batches = edit_images(inputs, accepted_proposals(proposals))  # 4
    arms = [arm for batch in batches for arm in check_batch(inputs, batch)]  # 5
    nulls = arms[len(edits) :]
    judged = judge_validity(inputs, edits, arms[: len(edits)], nulls, thresholds_of(p))
    return compare_arms(edits, judged, nulls, None, p.thresholds_for_arms, EDITED_CHECKS)


@dataclass(frozen=True, slots=True)
class InstructedBatch:
    """The edits of one request (None: a null arm), the editor's request for each, and its reply."""

    edits: Sequence[Edit | None]
    instructed: Sequence[InstructedEdit]
    reply: InstructReply


def edit_images(inputs: Inputs[InstructedParameters], proposals: Sequence[Proposal]) -> Iterator[InstructedBatch]:
    """Step 4: the images of the proposals, then a null arm for each seed, in as few requests as they fit into."""
    p, image = inputs.parameters, inputs.image
    arms: list[tuple[Edit | None, str, int]] = [
        (proposal.edit, proposal.edit.instruction, proposal.seed) for proposal in proposals
    ]
    arms += [(None, p.sham_instruction, seed) for seed in dict.fromkeys(proposal.seed for proposal in proposals)]
    for batch in chunks(arms, MAX_INSTRUCTED_EDITS):
        instructed = [InstructedEdit(instruction=instruction, seed=seed) for _, instruction, seed in batch]
        request = InstructRequest(
            source=image.image,
            edits=instructed,
            region=p.region,
            mask=image.object_mask if p.region == "background" else None,
            steps=p.steps,
            guidance=p.guidance,
            image_guidance=p.image_guidance,
        )
        yield InstructedBatch([edit for edit, *_ in batch], instructed, inputs.services.instruct(request))


def check_batch(inputs: Inputs[InstructedParameters], batch: InstructedBatch) -> Iterator[RenderedArm[int]]:
    """Step 5: each image with its verdict and scores. An edit that the editor refuses is refused as `editor`."""
    p, reply = inputs.parameters, batch.reply
    checked = check_images(
        inputs.services, inputs.image, inputs.task, reply, batch.edits, thresholds_of(p), EDITED_CHECKS, p.recaption,
        p.second_thresholds,
    )  # fmt: skip
    replies = zip(batch.instructed, reply.images, reply.refusals, checked, strict=True)
    for instructed, edited, refusal, (verdict, scores) in replies:
        if refusal:
            verdict = Verdict(False, "editor", refusal)
        lineage: Lineage = {"rendering": instructed.model_dump(mode="json")}
        cost = 0 if refusal else reply.evaluations
        yield RenderedArm(edited, instructed.seed, verdict, scores, instructed.seed, cost, lineage=lineage)


def thresholds_of(parameters: InstructedParameters) -> Thresholds:
    """The job's thresholds, over those without calibration."""
    return {**UNCALIBRATED_EDITED, **parameters.thresholds}


# --- The questions and the revision.

Wording = Literal["model", "rule"]
# The rule uses LANCE's own questions, on which the tiny language model is trained.
_QUESTIONS = {"model": (INSTRUCT, INSTRUCT_VALUE), "rule": (PERTURB, VALUE)}
_TOKENS_PER_EDIT = 400
_PROMPTS = [message for questions in _QUESTIONS.values() for question in questions for message in question.messages("")]
_SCHEMAS = [perturb_schema(2, instructions=True), perturb_schema(2)]
# Raise the number whenever equal replies would give other counterfactuals.
REVISION = revision_of("1", digest_of_prompts(_PROMPTS, _SCHEMAS))


# --- Instructions that the user writes, as edits of a caption, and those that a rule writes.

_LONGEST_VALUE = 100


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


def edit_of_instruction(caption: str, chosen: Instruction) -> Edit:
    """The edit of a user's instruction.

    Its `phrase` replaces the first of its `replaces` that the caption has, or is added to the first sentence. Without a
    phrase, the value is added as a sentence.
    """
    if chosen.phrase:
        old, new_caption = apply_shift(caption, Shift(phrase=chosen.phrase, replaces=chosen.replaces))
    else:
        old, new_caption = "", f"{caption} {chosen.name[0].upper()}{chosen.name[1:].rstrip('.')}."
    change = Change(chosen.factor, old, chosen.phrase or chosen.name, old, chosen.name)
    return Edit((change,), caption, new_caption, chosen.instruction)


def instruction_by_rule(old: str, new: str) -> str:
    """The instruction that replaces a phrase, or adds one where there is none to replace."""
    return f"Change {old} to {new}." if old else f"Add {new}."


def instruction_back(old: str, new: str) -> str:
    """The instruction that undoes the change of a phrase to a new one, whoever worded the instruction for it."""
    return instruction_by_rule(new, old) if old else f"Remove {new}."


# --- The parameters.


class InstructedParameters(CheckParameters):
    """How the editor carries out instructions, and the instruction of its null arm."""

    sham_instruction: Annotated[
        InstructionText, Field(description="Instruction of the null arm: it changes nothing.")
    ] = SHAM_INSTRUCTION
    region: Annotated[
        EditedRegion, Field(description="background: the object, by mask or segmenter, is not edited.")
    ] = "all"
    steps: Annotated[int, Field(ge=1, le=200, description="Denoising steps (InstructPix2Pix: 100).")] = 50
    guidance: Annotated[Guidance, Field(description="How closely the image follows the instruction; 1: none.")] = 7.5
    image_guidance: Annotated[
        Guidance, Field(description="How closely it follows the source; without effect if `guidance` is 1.")
    ] = 1.5

    def objects(self) -> Literal["", "moved", "kept"]:
        return "kept" if self.region == "background" else ""

    def dosed(self, parameter: DoseParameter | None, diffusion: Diffusion) -> DoseParameter | None:
        """What the profile's editor takes from a request."""
        engine = diffusion.instruct
        if engine is None:
            raise InvalidInput("the profile has no editor for instructions; add [diffusion.instruct] to it")
        guided = self.guidance > 1 and not (isinstance(engine, InstructServer) and "guidance" not in engine.fields)
        if parameter == "guidance" and not guided:
            raise InvalidInput("this editor works without guidance; dose wording")
        if parameter == "image_guidance" and not (guided and isinstance(engine, InstructPix2Pix)):
            raise InvalidInput("only InstructPix2Pix has image_guidance; dose wording or guidance")
        return parameter or ("guidance" if guided else "wording")


class InstructParameters(InstructedParameters):
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
    protect: ProtectedClasses = ()
    temperature: Annotated[float, Field(ge=0, le=2, description="Of the language model.")] = 0.7
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

    def renderings(self) -> tuple[int, int]:
        return self.cells() * self.seeds_per_edit, self.seeds_per_edit

    def cells(self) -> int:
        return len(self.instructions) or len(self.values) or self.counterfactuals_per_image

    def changes(self) -> Changes:
        """Values of its factors, unless the user wrote the instructions: these are the same for all images."""
        return Changes(self.values, self.factors, 0 if self.instructions else self.counterfactuals_per_image)

    def refuse_profile(self, profile: Profile) -> str:
        """The profile's editor cannot restrict itself to the region."""
        regions = () if profile.diffusion.instruct is None else profile.diffusion.instruct.regions
        if self.region in regions:
            return ""
        return (
            f"cannot edit the region {self.region!r} by the instruct editor of profile {profile.profile.name!r}; set "
            f"`region` to {' or '.join(map(repr, regions))}, or name another editor in [diffusion.instruct]"
        )
