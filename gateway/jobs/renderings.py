"""How many images each method of a job renders at most, before it starts: edits, null arms and sham arms."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.methods import JobMethod
from gateway.methods.compose import ComposeParameters
from gateway.methods.corruptions import CorruptionsParameters
from gateway.methods.dillema import DillemaParameters
from gateway.methods.doses import DosesParameters
from gateway.methods.instruct import InstructParameters
from gateway.methods.inverted import SweepParameters
from gateway.methods.lance import LanceParameters
from gateway.methods.lance_r import LanceRParameters
from gateway.methods.paraphrase import ParaphraseParameters
from gateway.methods.shifts import ShiftsParameters
from shared.schemas.base import Contract
from shared.schemas.corruptions import SEVERITIES
from shared.schemas.plans import PlannedRenderings

_REGIONS = 2  # that edits of one image are controlled by


def planned_renderings(methods: Sequence[JobMethod], images: int) -> list[PlannedRenderings]:
    """The maximum number of renderings of each method for `images` source images; every attempt of a sweep counts."""
    plans = []
    for method in methods:
        parameters = method.parameters
        if isinstance(parameters, DosesParameters):
            plans.append(_of_doses(method.name, parameters))
            continue
        edits, null_arms = _of_image(parameters)
        shams = isinstance(parameters, ParaphraseParameters) and parameters.reference == "sham"
        plans.append(
            PlannedRenderings(
                method=method.name,
                edits=images * edits,
                null_arms=images * null_arms,
                sham_arms=images * null_arms * shams,
            )
        )
    return plans


def _of_doses(name: str, parameters: DosesParameters) -> PlannedRenderings:
    """The renderings of method `doses`, whose parameters list its edits one by one."""
    edits, doses = len(parameters.edits), len(parameters.doses)
    editor = parameters.editor_parameters
    shams = isinstance(editor, ParaphraseParameters) and editor.reference == "sham"
    every = edits * (doses + 1)  # each edit at each dose, and undone
    return PlannedRenderings(method=name, edits=every, null_arms=every, sham_arms=edits * doses * shams)


def _of_image(parameters: Contract) -> tuple[int, int]:
    """Edits and null arms of one source image."""
    if isinstance(parameters, LanceRParameters):
        return _swept(parameters, parameters.counterfactuals_per_image)
    if isinstance(parameters, LanceParameters):
        return _swept(parameters, len(parameters.values) or parameters.counterfactuals_per_image)
    if isinstance(parameters, DillemaParameters):
        edits = len(parameters.values) or parameters.counterfactuals_per_image
        seeds = 1 if parameters.values else parameters.seeds_per_edit
        return edits * seeds, seeds * (min(edits, _REGIONS) if parameters.same_seed else edits)
    if isinstance(parameters, ShiftsParameters):
        return len(parameters.shifts), 1
    if isinstance(parameters, InstructParameters):
        return parameters.edits * parameters.seeds_per_edit, parameters.seeds_per_edit
    if isinstance(parameters, CorruptionsParameters):
        return len(parameters.corruptions) * len(SEVERITIES), 1
    if isinstance(parameters, ComposeParameters):
        return parameters.edits, 1
    return 1, 0


def _swept(parameters: SweepParameters, edits: int) -> tuple[int, int]:
    fractions = len(set(parameters.self_fractions))
    return edits * fractions, min(edits, fractions)
