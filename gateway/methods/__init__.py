"""The methods by name: one paper, one file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from gateway.methods import corruptions, dillema, lance, lance_r, reconstruction, shifts
from gateway.methods.counterfactual import Method
from gateway.methods.inverted import InversionParameters
from shared.schemas.base import Contract
from shared.schemas.jobs import MethodChoice


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method as users see it. `revision` changes with its prompts and code, and with it the ids of its results.

    `needs`: optional weights that it requires, by their names in the profile. `checked`: whether its images are
    checked, so that the errors of the checks count.
    """

    function: Method
    parameters: type[Contract]
    title: str
    paper: str
    summary: str
    revision: str
    needs: tuple[Literal["text_embedder", "masked_words"], ...] = ()
    checked: bool = True


METHODS: dict[str, MethodSpec] = {
    "dillema": MethodSpec(
        function=dillema.dillema,
        parameters=dillema.DillemaParameters,
        title="DILLEMA",
        paper="https://arxiv.org/abs/2502.04378",
        summary="Caption, keywords that may change, alternatives, new captions, and images rendered from them under "
        "control of the source's structure.",
        revision=dillema.REVISION,
    ),
    "lance": MethodSpec(
        function=lance.lance,
        parameters=lance.LanceParameters,
        title="LANCE",
        paper="https://arxiv.org/abs/2305.19164",
        summary="Edits of the caption by a language model, one factor at a time, made in the image itself by inversion "
        "and prompt-to-prompt; the best of a sweep is kept.",
        revision=lance.REVISION,
        needs=("text_embedder",),
    ),
    "lance-r": MethodSpec(
        function=lance_r.lance_r,
        parameters=lance_r.LanceRParameters,
        title="LANCE-R",
        paper="https://arxiv.org/abs/2305.19164",
        summary="LANCE's random baseline: a word of the caption drawn by chance and replaced by a masked language "
        "model, made in the image as LANCE makes its edits.",
        revision=lance_r.REVISION,
        needs=("masked_words",),
    ),
    "reconstruction": MethodSpec(
        function=reconstruction.reconstruction,
        parameters=InversionParameters,
        title="Reconstruction",
        paper="https://arxiv.org/abs/2305.19164",
        summary="LANCE's control: the image inverted and regenerated with nothing changed.",
        revision=reconstruction.REVISION,
        checked=False,
    ),
    "shifts": MethodSpec(
        function=shifts.shifts,
        parameters=shifts.ShiftsParameters,
        title="Shifts",
        paper="https://arxiv.org/abs/2208.01626",
        summary="Changes that you write (“at night”, “in the snow”), made in every image by inversion and "
        "prompt-to-prompt.",
        revision=shifts.REVISION,
    ),
    "corruptions": MethodSpec(
        function=corruptions.corruptions,
        parameters=corruptions.CorruptionsParameters,
        title="Corruptions",
        paper="https://arxiv.org/abs/1903.12261",
        summary="Noise, blur, fog, compression and the like at five severities, and the severity at which each image "
        "first fails.",
        revision=corruptions.REVISION,
        checked=False,
    ),
}


def typed_parameters(choice: MethodChoice) -> Contract:
    """The parameters of a stored choice, in the type of its method. Raises KeyError for an unknown method.

    `gateway.jobs.choices.plan` checked them when the job was submitted. Equal choices are parsed once per process.
    """
    return _typed(choice.name, json.dumps(choice.parameters, sort_keys=True))


@lru_cache(maxsize=256)
def _typed(name: str, parameters: str) -> Contract:
    return METHODS[name].parameters.model_validate_json(parameters)
