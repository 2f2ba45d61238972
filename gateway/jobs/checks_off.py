"""Which image checks cannot refuse anything in a job, because there is no threshold for its scorer."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.methods import METHODS, JobMethod
from gateway.methods.check_parameters import CheckParameters
from gateway.methods.checks import CHECKS
from gateway.methods.controlled import ControlledParameters
from shared.schemas.base import Kind


def checks_off(methods: Sequence[JobMethod], kind: Kind) -> dict[str, list[str]]:
    """Method → its checks without a threshold, which score images and refuse none; methods without such are left out.

    `shapes` and `things` apply to segmentation jobs and `label` to the others. `recaption` has a threshold of its own.
    """
    elsewhere = {"label"} if kind == "segmentation" else {"shapes", "things"}
    off = {
        method.name: [
            check for check in METHODS[method.name].checks if check not in {"recaption", *elsewhere, *method.thresholds}
        ]
        for method in methods
        if isinstance(method.parameters, CheckParameters)
    }
    return {name: checks for name, checks in off.items() if checks}


def unchecked_methods(methods: Sequence[JobMethod], kind: Kind) -> list[str]:
    """The methods that render new images without any check that could reject one, even an image of noise.

    The checks `shapes` and `things` apply to segmentation jobs only.
    """
    deciding = set(CHECKS) - (set() if kind == "segmentation" else {"shapes", "things"})
    return [
        method.name
        for method in methods
        if isinstance(parameters := method.parameters, ControlledParameters)
        and not parameters.recaption
        and not deciding & set(parameters.thresholds)
    ]
