"""Set the thresholds of image checks on scored trials, and measure their errors by two-fold cross-validation.

The thresholds of all checks are set together, per factor: among the sets that refuse at most `REFUSED` of the good
images, the one that accepts the fewest broken ones (all kinds weigh equally).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.methods.checks import CHECKS, Thresholds, judge
from tinyworld.calibrate.broken import Trial
from tinyworld.rates import rate_text

REFUSED = 0.13  # share of good images that all checks together may refuse; below 15 % as a margin for other scenes
ENOUGH = 15  # the least good images of a factor with separate thresholds
_SHARES = (0.0, 0.01, 0.02, 0.04, 0.06, 0.09, 0.13)  # shares of good images that one check may refuse
Limits = dict[str, float]  # check -> lowest score
Floats = NDArray[np.float64]


def thresholds(trials: Sequence[Trial], checks: Sequence[str] = CHECKS) -> dict[str, dict[str, float]]:
    """Check → factor → lowest score; `default` is set on all factors, for factors with few good images."""
    groups = {"default": list(trials)}
    groups |= {factor: [t for t in trials if t.factor == factor] for factor in sorted({t.factor for t in trials})}
    by_factor = {
        name: limits(some, checks)
        for name, some in groups.items()
        if name == "default" or sum(trial.kind == "good" for trial in some) >= ENOUGH
    }
    return {
        check: {factor: round(chosen[check], 4) for factor, chosen in by_factor.items()}
        for check in by_factor["default"]
    }


def limits(trials: Sequence[Trial], checks: Sequence[str] = CHECKS) -> Limits:
    """The thresholds that accept the fewest broken images and refuse at most a share `REFUSED` of the good ones.

    Ties go to the lower thresholds. Raises ValueError without good images.
    """
    checks = [check for check in checks if all(check in trial.scores for trial in trials)]
    of_kind = {kind: [trial for trial in trials if trial.kind == kind] for kind in ("good", *_broken_kinds(trials))}
    scores = {kind: _table(some, checks) for kind, some in of_kind.items()}
    led = {kind: np.array([_led(trial) for trial in some], np.bool_) for kind, some in of_kind.items()}
    good = scores["good"]
    if not len(good):
        raise ValueError("there are no good counterfactuals to fix thresholds on; take more scenes")
    candidates = [_candidates(good[:, place]) for place in range(len(checks))]
    best, least = np.array([column[0] for column in candidates]), np.inf
    for lowest in itertools.product(*candidates):
        passed = {kind: (rows >= np.array(lowest)).all(1) & led[kind] for kind, rows in scores.items()}
        # If another class is more probable than the ground truth, the image is refused at any threshold.
        if (led["good"] & ~passed["good"]).sum() > REFUSED * len(good):
            continue
        let_through = float(np.mean([rows.mean() for kind, rows in passed.items() if kind != "good"] or [0.0]))
        if let_through < least - 1e-9:
            best, least = np.array(lowest), let_through
    return dict(zip(checks, best.tolist(), strict=True))


def _broken_kinds(trials: Sequence[Trial]) -> list[str]:
    """The kinds of broken images, in order of first occurrence."""
    return [kind for kind in dict.fromkeys(trial.kind for trial in trials) if kind != "good"]


def _led(trial: Trial) -> bool:
    """Whether the label check ranks the ground truth first; segmentation jobs do not have it."""
    return trial.scores.get("label_margin", 1.0) > 0


def _table(some: Sequence[Trial], checks: Sequence[str]) -> Floats:
    return np.array([[trial.scores[check] for check in checks] for trial in some]).reshape(len(some), len(checks))


def _candidates(good: Floats) -> list[float]:
    """Candidate thresholds, just below the quantiles of the good scores."""
    return sorted({float(np.quantile(good, share, method="lower")) - 1e-4 for share in _SHARES})


def margin(trial: Trial, chosen: Thresholds, scale: Mapping[str, float]) -> float:
    """Least distance of a score above its threshold, in standard deviations of good scores; accepted from 0 on."""
    factor = trial.factor
    margins = [
        (trial.scores[check] - values.get(factor, values["default"])) / scale[check] for check, values in chosen.items()
    ]
    return min(margins) if _led(trial) else min(*margins, 0.0) - 1.0


def auroc(good: Sequence[float], broken: Sequence[float]) -> float:
    """The probability that a good image scores above a broken one; ties count half. NaN if either kind is missing."""
    if not len(good) or not len(broken):
        return float("nan")
    difference = np.asarray(good)[:, None] - np.asarray(broken)[None]
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


def held_out(trials: Sequence[Trial], checks: Sequence[str] = CHECKS) -> list[tuple[Trial, bool, float]]:
    """Each trial with its verdict and margin, under thresholds from the other half of the scenes."""
    judged = []
    for half in (0, 1):
        own = [trial for trial in trials if trial.scene % 2 != half]
        chosen = thresholds(own, checks)
        good = [trial for trial in own if trial.kind == "good"]
        scale = {check: float(np.std([t.scores[check] for t in good])) or 1.0 for check in chosen}
        judged += [
            (trial, judge(trial.scores, trial.edit, chosen, checks).accepted, margin(trial, chosen, scale))
            for trial in trials
            if trial.scene % 2 == half
        ]
    return judged


def table(judged: Sequence[tuple[Trial, bool, float]]) -> list[str]:
    """Per factor: false rejects, false accepts by kind, and the area under the curve."""
    lines = []
    for factor in ("all", *sorted({trial.factor for trial, _, _ in judged})):
        some = [row for row in judged if factor in ("all", row[0].factor)]
        good = [row for row in some if row[0].kind == "good"]
        broken = [row for row in some if row[0].kind != "good"]
        area = auroc([worst for *_, worst in good], [worst for *_, worst in broken])
        refused = rate_text(sum(not accepted for _, accepted, _ in good), len(good))
        lines.append(f"{factor}: AUROC {area:.3f}; false reject {refused}; false accept {_passed(broken)}")
        kinds = _broken_kinds([trial for trial, *_ in judged])
        lines += [f"    {kind}: {_passed([row for row in broken if row[0].kind == kind])}" for kind in kinds]
    return lines


def _passed(rows: Sequence[tuple[Trial, bool, float]]) -> str:
    return rate_text(sum(accepted for _, accepted, _ in rows), len(rows))


NOTE = "# Made by `python -m tinyworld.calibrate.checks --write`; they belong to the scorer's weights.\n"


def toml(chosen: Thresholds, note: str = NOTE) -> str:
    """The profile's tables of thresholds."""
    tables = [
        f"[thresholds.{check}]\n" + "".join(f"{factor} = {value}\n" for factor, value in values.items())
        for check, values in chosen.items()
    ]
    return note + "\n".join(tables)


def with_thresholds(profile: str, tables: str, checks: Sequence[str] = (r"\w+",)) -> str:
    """A profile's text, with its thresholds of these checks replaced by these tables at its end."""
    own = rf"\[thresholds\.(?:{'|'.join(checks)})\]"
    rest = re.sub(
        rf"(?ms)^{own}.*?(?=^#|^\[(?!thresholds\.(?:{'|'.join(checks)})\])|\Z)", "", profile.replace(NOTE, "")
    )
    return f"{rest.rstrip()}\n\n{tables}"
