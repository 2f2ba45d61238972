"""Errors of the checks on tinyworld in the form of a profile: `[calibration.DATA.FACTOR]`.

They enter the results of jobs that declare their images to be like tinyworld (docs/explanation/metrics.md, Validity).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from shared.schemas.base import Kind
from shared.schemas.results import CheckErrors

DATA = "tinyworld"
GOOD = "good"
ENOUGH = 15  # good ones of a factor, and of each kind of broken ones, to have errors of its own
NOTE = "# Errors of the checks at these thresholds, measured on scenes that they were not fixed on.\n"


def check_errors(judged: Iterable[tuple[str, str, bool]]) -> dict[str, CheckErrors]:
    """Errors by factor, and `default` over all, from (factor, kind, accepted) of good and broken counterfactuals.

    Which kinds of broken ones a job meets, and how often, is not known, so the invalid ones are those of the kind that
    is let through most: whatever the mixture, no more of it passes.
    """
    verdicts: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for factor, kind, accepted in judged:
        for name in ("default", factor):
            verdicts[name][kind].append(accepted)
    errors = {}
    for factor, by_kind in sorted(verdicts.items()):
        broken = [passed for kind, passed in by_kind.items() if kind != GOOD]
        good = by_kind.get(GOOD, [])
        if factor != "default" and min(map(len, [good, *broken])) < ENOUGH:
            continue
        if not good or not broken:
            raise ValueError("there are no good, or no broken, counterfactuals to measure errors on; take more scenes")
        worst = max(broken, key=lambda passed: sum(passed) / len(passed))
        errors[factor] = CheckErrors(
            valid=len(good), valid_accepted=sum(good), invalid=len(worst), invalid_accepted=sum(worst)
        )
    return errors


def with_errors(
    profile: str, errors: Mapping[str, CheckErrors], data: str = DATA, kind: Kind = "classification"
) -> str:
    """A profile's text with these errors at its end instead of those that it had for the data set."""
    rest = re.sub(
        rf"(?ms)^\[calibration\.{data}\..*?(?=^#|^\[(?!calibration\.{data})|\Z)", "", profile.replace(NOTE, "")
    )
    kind_line = "" if kind == "classification" else f'kind = "{kind}"\n'
    tables = [
        f"[calibration.{data}.{factor}]\n{kind_line}" + "".join(f"{name} = {value}\n" for name, value in counts)
        for factor, counts in errors.items()
    ]
    return f"{rest.rstrip()}\n\n{NOTE}" + "\n".join(tables)
