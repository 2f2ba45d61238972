"""Figures of results in words, the same in terminals, on pages and in the report."""

from __future__ import annotations

import math

from shared.schemas.results import Estimate, Interval, MethodReviews, Rate


def points(share: float) -> str:
    """A difference in percentage points with its sign: −42, +3, 0."""
    rounded = round(100 * share)
    return f"{'−' if rounded < 0 else '+' if rounded > 0 else ''}{abs(rounded)}"


def percent(share: float | None) -> str:
    """0.983 → "98 %" (no break before the sign); next to 0 and 100 % with a decimal; "–" for None."""
    if share is None:
        return "–"
    digits = 1 if 0 < share < 0.0995 or 0.9905 < share < 1 else 0
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def interval(value: Interval | None) -> str:
    """ "−98 to −55", or "–" for None."""
    return "–" if value is None else f"{points(value.low)} to {points(value.high)}"


def limits(rate: Rate) -> str:
    """What the interval of a rate leaves open, also where it has one side only: "80–98 %", "at most 14 %"."""
    if rate.n == 0:
        return "nothing was seen"
    if rate.sources == 1:
        return "of one image, from which nothing follows"
    if rate.count == 0:
        return f"none; at most {math.ceil(100 * rate.high)} %"
    if rate.count == rate.n:
        return f"all; at least {math.floor(100 * rate.low)} %"
    return f"{round(100 * rate.low)}–{round(100 * rate.high)} %"


def p_value(value: float | None) -> str:
    """0.0312 → "0.031"; tiny ones as "< 0.001"; "–" for None."""
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def review_sentence(said: MethodReviews) -> str:
    """What reviews of one method come to: "calibration of `dillema`: reviews, n = 34: 91 % valid (80–97 %)"."""
    n = said.accepted + said.rejected
    if said.valid is None:
        until = f"until {said.more} more of the accepted ones, drawn by lot, are reviewed"
        return f"reviews of `{said.method}`, n = {n}: uncalibrated by them {until}"
    parts = [f"calibration of `{said.method}`: reviews, n = {n}: {_estimated(said.valid)} of the accepted are valid"]
    parts += [
        f"{_estimated(one.valid)} of the {one.flipped} on which {one.model} flipped"
        for one in said.flipped
        if one.valid
    ]
    if said.accepted_if_valid and said.accepted_if_invalid:
        passed, wrong = _estimated(said.accepted_if_valid), _estimated(said.accepted_if_invalid)
        parts.append(f"the checks accept {passed} of valid and {wrong} of invalid ones")
    elif said.more_rejected:
        parts.append(f"{said.more_rejected} more of the rejected ones, drawn by lot, show the checks' own errors")
    return "; ".join(parts)


def _estimated(share: Estimate) -> str:
    return f"{round(100 * share.value)} % ({round(100 * share.low)}–{round(100 * share.high)} %)"
