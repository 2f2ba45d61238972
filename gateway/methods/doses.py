"""Doses: edits of another job, made again at several doses, and undone. No language model proposes anything.

For each edit of a source image:

1 render the edit at each dose with its null arm, and its sham arm if the other job has one: the arms of a dose share
  everything but the caption
2 check the class and the shapes; the checks that ask whether the image shows the edit only score, because a smaller
  dose may show less of it
3 undo the edit: take the image at full dose for the source, and edit it back to the source's caption, or by the
  opposite instruction, under another seed: from the noise that made a picture, many editors copy it with a halo
  (diffusers #14824)
4 check that image as any edit; it is compared with the source image itself

A dose scales one parameter of the editor, or words an instruction by degree; 1 is the other job's own value. The
gateway writes the parameters from the findings of that job (`gateway.follow_ups.doses`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from gateway.methods.arms import ComparedArms, RenderedArm, compare_arms, renumber, rows
from gateway.methods.checks import RENDERED_CHECKS, judge_arm
from gateway.methods.controlled import ControlledParameters, render_with_null_arms
from gateway.methods.counterfactual import (
    Change,
    Edit,
    Factor,
    MethodCounterfactual,
    MethodImage,
    MethodParameters,
    Renderings,
    TaskDescription,
)
from gateway.methods.instruct import InstructedParameters, carry_out, instruction_back
from gateway.methods.inverted import EditingParameters, check_batch, invert_and_edit
from gateway.methods.paraphrase import ParaphraseParameters, paraphrase, revision_with_paraphrase, sham_arms
from gateway.methods.schedule import Inputs, Proposal
from shared.schemas.base import Contract
from shared.schemas.diffusion import CONTROL_SCALE_LIMITS, GUIDANCE_LIMITS, LONGEST_INSTRUCTION, ControlRegion, Fraction
from shared.schemas.effects import FULL_DOSE, MOST_DOSED_EDITS, DoseOption, DoseParameter
from shared.schemas.jobs import Digest
from shared.schemas.thresholds import ImageCheck
from shared.seeds import derive_seed
from shared.service.endpoints import Services

EditorParameters = ControlledParameters | EditingParameters | InstructedParameters
P = TypeVar("P", bound=EditorParameters)


def doses(
    image: MethodImage, task: TaskDescription, services: Services, parameters: DosesParameters, seed: int
) -> Iterator[MethodCounterfactual]:
    """The rows of one source image: for each of its edits the doses, each with its arms, and the edit undone.

    An edit whose image at full dose is refused is not undone. Raises what the services raise.
    """
    first, source = 0, _Source(image, task, services, seed)
    for dosed in parameters.edits_of(image):
        for group in _groups(source, parameters, dosed):
            yield from (renumber(row, first) for row in group)
            first += len(group)


@dataclass(frozen=True, slots=True)
class _Source:
    """The arguments of the method without its parameters."""

    image: MethodImage
    task: TaskDescription
    services: Services
    seed: int

    def inputs(self, editor: P) -> Inputs[P]:
        """The arguments with the parameters of the editor at one dose."""
        return Inputs(
            DOSES, revision_with_paraphrase(REVISION, editor), self.image, self.task, self.services, editor, self.seed
        )


def _groups(source: _Source, parameters: DosesParameters, dosed: DosedEdit) -> Iterator[list[MethodCounterfactual]]:
    """The rows of each dose of an edit with its arms, and the row of the edit undone."""
    full = None
    for dose in parameters.doses:
        editor, edit = parameters.at_dose(dose), dosed.edit(dose)
        edit = parameters.at_degree(edit, dose)
        compared = _render(source, parameters, editor, dosed, edit, dose)  # 1
        arm = _judge_kept(compared.edits[0], edit, editor, parameters.checks)  # 2
        value = parameters.value_at(dose, dosed)
        lineage = source.inputs(editor).lineage(
            dose={"parameter": parameters.parameter, "dose": dose, "value": value, "undone": False}
        )
        proposal = Proposal(edit, dosed.seed)
        yield list(rows(lineage, dosed.caption, [proposal], [arm], compared.nulls, compared.shams))
        full = arm if dose == FULL_DOSE else full
    if full is not None and full.image is not None and full.verdict.accepted:
        changed = replace(source.image, id=f"{source.image.id}/undone", image=full.image)
        yield _undo(replace(source, image=changed), parameters, dosed)


def _undo(source: _Source, parameters: DosesParameters, dosed: DosedEdit) -> list[MethodCounterfactual]:
    """Steps 3 and 4: the image at full dose edited back. Without null arm, so that it is compared with the source."""
    editor = parameters.at_dose(FULL_DOSE)
    if not isinstance(editor, InstructedParameters):
        editor = editor.model_copy(update={"reference": "null"})
    edit, dosed = dosed.undone(), dosed.model_copy(update={"seed": derive_seed("undone", dosed.seed)})
    compared = _render(source, parameters, editor, dosed, edit, FULL_DOSE)
    arms = [replace(arm, null_check=None) for arm in compared.edits]
    value = parameters.value_at(FULL_DOSE, dosed)
    lineage = source.inputs(editor).lineage(
        dose={"parameter": parameters.parameter, "dose": FULL_DOSE, "value": value, "undone": True}
    )
    return list(rows(lineage, edit.caption, [Proposal(edit, dosed.seed)], arms, None))


def _render(
    source: _Source, parameters: DosesParameters, editor: EditorParameters, dosed: DosedEdit, edit: Edit, dose: float
) -> ComparedArms[Any]:
    """An edit with its arms, by the editor of the other job."""
    if isinstance(editor, ControlledParameters):
        proposals = [Proposal(edit, dosed.seed)]
        return render_with_null_arms(source.inputs(editor), edit.caption, proposals, lambda _: dosed.region)
    if isinstance(editor, InstructedParameters):
        return carry_out(source.inputs(editor), [Proposal(edit, dosed.seed)])
    fraction = parameters.fraction_at(dose, dosed)
    return _edit_in_place(source.inputs(editor), edit, fraction, dosed.seed, parameters.checks)


def _edit_in_place(
    inputs: Inputs[EditingParameters], edit: Edit, fraction: float, seed: int, checks: Sequence[str]
) -> ComparedArms[float]:
    """Inversion and prompt-to-prompt: the edit, its null arm and its sham arm, in one request."""
    thresholds, sham = inputs.parameters.thresholds, paraphrase(inputs, edit.caption)
    all_edits = [edit, None, *([sham.edit] if sham else [])]
    batches = invert_and_edit(inputs, edit.caption, all_edits, [fraction])
    sweeps = [sweep for batch in batches for sweep in check_batch(inputs, batch, thresholds, checks)]
    arms = [sweep.arm(sweep.attempts[0], seed) for sweep in sweeps]
    shams = sham_arms(sham, arms[2:]) if sham else None
    return compare_arms([edit], arms[:1], arms[1:2], shams, thresholds, checks)


def _judge_kept(arm: RenderedArm[Any], edit: Edit, editor: EditorParameters, checks: Sequence[str]) -> RenderedArm[Any]:
    """Step 2: the arm with the verdict of the checks of class and shapes alone."""
    if arm.image is None or arm.verdict.check not in (*checks, "no change"):
        return arm
    return replace(arm, verdict=judge_arm(arm.scores, edit, editor.thresholds, checks))


# --- The parameters, and the values that cells are named by.

DOSES = "doses"  # the method's name
REVISION = "2"  # raise it whenever the same replies would give other counterfactuals
LIMITS = {"guidance": GUIDANCE_LIMITS, "image_guidance": GUIDANCE_LIMITS, "control_scale": CONTROL_SCALE_LIMITS}
# What follows an instruction at each dose of its wording.
DEGREES = {
    0.5: "Make this change only slightly.",
    FULL_DOSE: "",
    1.5: "Make this change strongly.",
    2.0: "Make this change as strongly as possible.",
}
EDITORS: dict[str, type[ControlledParameters] | type[EditingParameters] | type[InstructedParameters]] = {
    "controlled": ControlledParameters,
    "inverted": EditingParameters,
    "instructed": InstructedParameters,
}
OFFERED: dict[str, tuple[DoseParameter, ...]] = {
    "controlled": ("guidance", "control_scale"),
    "inverted": ("guidance", "self_fraction"),
    "instructed": ("guidance", "image_guidance", "wording"),
}


def value_at_dose(value: str, dose: float) -> str:
    """The name of a value at a dose: "night (dose 0.5)"; empty for no value."""
    return f"{value} (dose {dose:g})" if value else ""


def value_undone(value: str) -> str:
    """The name of a value whose edit is undone: "night (undone)"; empty for no value."""
    return f"{value} (undone)" if value else ""


class DosedEdit(Contract):
    """An edit of the other job. A value is empty if no finding has a cell with it.

    `source`: digest of the source image. `region` is for editors under control, `self_fraction` for those that invert,
    `instruction` for those that follow one.
    """

    source: Digest
    factor: Factor
    from_phrase: str
    to_phrase: str
    from_value: str = ""
    to_value: str = ""
    caption: str
    new_caption: str
    seed: int
    region: ControlRegion = "full"
    self_fraction: Fraction = 0.0
    instruction: Annotated[str, Field(max_length=LONGEST_INSTRUCTION)] = ""

    def edit(self, dose: float) -> Edit:
        """The edit, its values named by the dose."""
        old, new = value_at_dose(self.from_value, dose), value_at_dose(self.to_value, dose)
        change = Change(self.factor, self.from_phrase, self.to_phrase, old, new)
        return Edit((change,), self.caption, self.new_caption, self.instruction)

    def undone(self) -> Edit:
        """The edit back to the source's caption."""
        old, new = value_undone(self.from_value), value_undone(self.to_value)
        change = Change(self.factor, self.to_phrase, self.from_phrase, old, new)
        instruction = instruction_back(self.from_phrase, self.to_phrase) if self.instruction else ""
        return Edit((change,), self.new_caption, self.caption, instruction)


class DosesParameters(MethodParameters):
    """Edits to make again, the parameters of their editor (one of the three), and what is dosed."""

    method: Annotated[str, Field(description="The method of the other job whose edits they are.")]
    parameter: Annotated[DoseParameter, Field(description="The parameter of the editor that is dosed.")]
    doses: DoseOption
    edits: Annotated[
        tuple[DosedEdit, ...], Field(min_length=1, max_length=MOST_DOSED_EDITS, description="The edits to make again.")
    ]
    controlled: Annotated[ControlledParameters | None, Field(description="An editor that renders new images.")] = None
    inverted: Annotated[EditingParameters | None, Field(description="An editor that inverts the source.")] = None
    instructed: Annotated[InstructedParameters | None, Field(description="An editor that follows instructions.")] = None
    checks: Annotated[tuple[ImageCheck, ...], Field(description="The image checks of the other job's method.")] = (
        RENDERED_CHECKS
    )

    @property
    def editor_parameters(self) -> EditorParameters:
        """The parameters of the editor."""
        editor = self.controlled or self.inverted or self.instructed
        assert editor is not None, "the validator refuses parameters without an editor"
        return editor

    def plan(self, images: int) -> Renderings:
        """Each edit at each dose, and undone, whatever the images: the edits name theirs."""
        edits, doses, editor = len(self.edits), len(self.doses), self.editor_parameters
        with_shams = isinstance(editor, ParaphraseParameters) and editor.reference == "sham"
        every = edits * (doses + 1)
        return Renderings(every, every, edits * doses * with_shams)

    def cells(self) -> int:
        return len(self.doses) + 1

    def objects(self) -> Literal["", "moved", "kept"]:
        return self.editor_parameters.objects()

    def edits_of(self, image: MethodImage) -> list[DosedEdit]:
        """The edits of a source image, whose id begins with its digest."""
        return [edit for edit in self.edits if edit.source == image.id.split("/")[0]]

    def at_dose(self, dose: float) -> EditorParameters:
        """The parameters of the editor at a dose; the self-attention fraction belongs to the edit."""
        editor = self.editor_parameters
        if self.parameter == "guidance":
            return editor.model_copy(update={"guidance": editor.guidance * dose})
        if self.parameter == "control_scale" and isinstance(editor, ControlledParameters):
            weaker = tuple(control.model_copy(update={"scale": control.scale / dose}) for control in editor.controls)
            return editor.model_copy(update={"control_scale": editor.control_scale / dose, "controls": weaker})
        if self.parameter == "image_guidance" and isinstance(editor, InstructedParameters):
            return editor.model_copy(update={"image_guidance": editor.image_guidance / dose})
        return editor

    def at_degree(self, edit: Edit, dose: float) -> Edit:
        """The edit, its instruction worded for the dose if the wording is dosed."""
        if self.parameter != "wording":
            return edit
        return replace(edit, instruction=f"{edit.instruction} {DEGREES[dose]}".strip())

    def fraction_at(self, dose: float, edit: DosedEdit) -> float:
        """The share of the steps with the source's self-attention: the complement scales with the dose, up to 1."""
        if self.parameter != "self_fraction":
            return edit.self_fraction
        return max(0.0, 1 - dose * (1 - edit.self_fraction))

    def value_at(self, dose: float, edit: DosedEdit) -> float:
        """The value of the dosed parameter in an edit."""
        return self.fraction_at(dose, edit) if self.parameter == "self_fraction" else self._values_at(dose)[0]

    def _values_at(self, dose: float) -> list[float]:
        """The values of the dosed parameter of the editor; there are several where several kinds of control weigh."""
        editor = self.at_dose(dose)
        if self.parameter == "self_fraction":
            return [self.fraction_at(dose, edit) for edit in self.edits]
        if self.parameter == "control_scale" and isinstance(editor, ControlledParameters):
            return [control.scale for control in editor.controls] or [editor.control_scale]
        if self.parameter == "image_guidance" and isinstance(editor, InstructedParameters):
            return [editor.image_guidance]
        if self.parameter == "wording":
            return [dose]
        return [editor.guidance]

    @model_validator(mode="after")
    def _can_be_dosed(self) -> Self:
        editors = [name for name in OFFERED if getattr(self, name) is not None]
        if len(editors) != 1:
            raise ValueError(f"give the parameters of one editor: {', '.join(OFFERED)}")
        if self.parameter not in OFFERED[editors[0]]:
            raise ValueError(f"the editor has no {self.parameter}; dose {' or '.join(OFFERED[editors[0]])}")
        if self.parameter == "wording":
            self._check_wording()
            return self
        low, high = LIMITS.get(self.parameter, (0.0, 1.0))
        values = [(dose, value) for dose in self.doses for value in self._values_at(dose)]
        for dose, value in values:
            if not low <= value <= high:
                raise ValueError(
                    f"a dose of {dose:g} sets {self.parameter} to {value:g}, and it lies in {low:g} … {high:g}; "
                    "choose other `doses`, or another `parameter`"
                )
        return self

    def _check_wording(self) -> None:
        if unknown := [f"{dose:g}" for dose in self.doses if dose not in DEGREES]:
            known = ", ".join(f"{dose:g}" for dose in DEGREES)
            raise ValueError(f"there are no words for a dose of {', '.join(unknown)}; choose of {known}")
        longest = max(len(edit.instruction) for edit in self.edits) + 1 + max(map(len, DEGREES.values()))
        if longest > LONGEST_INSTRUCTION:
            raise ValueError(
                f"an instruction and its degree are over {LONGEST_INSTRUCTION} characters long; dose guidance instead"
            )
