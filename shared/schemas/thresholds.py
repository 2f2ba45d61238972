"""Thresholds of the checks as jobs and profiles give them: check → factor, or `default` for other factors → limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator

from shared.schemas.designs import FACTORS

# Those of all methods; each method uses some of them. `gateway.methods.checks.CHECKS` says what they do.
ImageCheck = Literal[
    "structure", "caption", "label", "recaption", "shapes", "things", "fit", "likeness", "match", "word", "direction",
    "presence", "validity",
]  # fmt: skip
IMAGE_CHECKS: tuple[ImageCheck, ...] = get_args(ImageCheck)
TEXT_CHECKS = ("class_words", "class_kept", "other_class", "paraphrase")

Tables = dict[str, dict[str, float]]


def _checked(known: Sequence[str], tables: Tables) -> Tables:
    """The same tables. Raises ValueError for a name or number that no check can use, and says what to change."""
    for check, by_factor in tables.items():
        if check not in known:
            raise ValueError(f"there is no check {check[:50]!r}; choose from {', '.join(known)}")
        _check_factors(check, by_factor)
    return tables


def _check_factors(check: str, by_factor: Mapping[str, float]) -> None:
    for factor, limit in by_factor.items():
        if factor not in ("default", *FACTORS):
            raise ValueError(
                f"`{check}` has a threshold for {factor[:50]!r}, which is no factor; choose from default, "
                f"{', '.join(FACTORS)}"
            )
        if not isfinite(limit):
            raise ValueError(f"the threshold of `{check}` for {factor} is {limit}; give a finite number")
    if "default" not in by_factor:
        raise ValueError(f"`{check}` needs a threshold named `default`, for the factors that it does not list")


ImageThresholds = Annotated[Tables, AfterValidator(partial(_checked, IMAGE_CHECKS))]
TextThresholds = Annotated[Tables, AfterValidator(partial(_checked, TEXT_CHECKS))]
