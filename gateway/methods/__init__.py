"""The methods by name: one paper, one file."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.methods import dillema
from gateway.methods.counterfactual import Method
from shared.schemas.base import Contract


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method as users see it. `revision` changes with its prompts and code, and with it the ids of its results."""

    function: Method
    parameters: type[Contract]
    title: str
    paper: str
    summary: str
    revision: str


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
}
