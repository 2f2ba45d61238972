"""Which image checks cannot refuse anything in a job: those without a threshold that an image can miss."""

from __future__ import annotations

from collections.abc import Sequence, Set

from gateway.methods import METHODS, JobMethod
from gateway.methods.check_parameters import CheckParameters
from gateway.methods.checks import CHECKS, RECAPTION_LIMIT, effective_thresholds, factors_off
from gateway.methods.controlled import ControlledParameters
from gateway.methods.counterfactual import FACTORS, Thresholds
from shared.schemas.base import Kind
from shared.schemas.validity import VALIDITY


def checks_off(methods: Sequence[JobMethod], kind: Kind) -> dict[str, list[str]]:
    """Method → its checks that score images and refuse none; methods without such are left out.

    They have no threshold, or only thresholds that are not above the lowest possible score (`factors_off`). The factors
    for which alone a check refuses nothing follow it in brackets. A method with the combined check `validity` is left
    out: that check weighs all scores. `shapes` and `things` apply to segmentation jobs and `label` to the others,
    `recaption` to jobs that ask for it.
    """
    elsewhere = {"label"} if kind == "segmentation" else {"shapes", "things"}
    off: dict[str, list[str]] = {}
    for method in methods:
        parameters = method.parameters
        if not isinstance(parameters, CheckParameters) or VALIDITY in effective_thresholds(method.thresholds):
            continue
        unused = elsewhere if parameters.recaption else {*elsewhere, "recaption"}
        if checks := _off(METHODS[method.name].checks, {**RECAPTION_LIMIT, **method.thresholds}, unused):
            off[method.name] = checks
    return off


def _off(checks: Sequence[str], thresholds: Thresholds, unused: Set[str]) -> list[str]:
    off = []
    for check in checks:
        passing = factors_off(check, thresholds[check]) if check in thresholds else FACTORS
        if check not in unused and passing:
            off.append(check if len(passing) == len(FACTORS) else f"{check} ({_words(passing)})")
    return off


def _words(factors: Sequence[str]) -> str:
    """Some factors, or all but the others if these are fewer."""
    others = [factor for factor in FACTORS if factor not in factors]
    return ", ".join(factors) if len(factors) <= len(others) else f"all but {', '.join(others)}"


def unchecked_methods(methods: Sequence[JobMethod], kind: Kind) -> list[str]:
    """The methods that render new images without any check that could reject one, even an image of noise.

    The checks `shapes` and `things` apply to segmentation jobs only.
    """
    deciding = {*CHECKS, VALIDITY} - (set() if kind == "segmentation" else {"shapes", "things"})
    return [
        method.name
        for method in methods
        if isinstance(parameters := method.parameters, ControlledParameters)
        and not parameters.recaption
        and not deciding & set(effective_thresholds(parameters.thresholds))
    ]
