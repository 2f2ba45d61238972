"""Set the thresholds of image checks on scored trials, and measure their errors by two-fold cross-validation.

`gateway.analysis.thresholds` does both, as for a job that people reviewed; here are trials, printing and the profile.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from gateway.analysis.thresholds import VALID, ScoredImages, auroc, fit, fit_by_factor, held_out_margins
from gateway.methods.checks import RENDERED_CHECKS, effective_thresholds
from gateway.methods.counterfactual import Thresholds
from research.calibrate.broken import Trial
from research.statistics.rates import rate_text


def thresholds(trials: Sequence[Trial], checks: Sequence[str] = RENDERED_CHECKS) -> dict[str, dict[str, float]]:
    """Check → factor → lowest score; `default` is set on all factors, for factors with few good images.

    Checks that every image passes at their thresholds are left out: they are off.
    """
    return effective_thresholds(fit_by_factor(scored_images(trials, checks)))


def limits(trials: Sequence[Trial], checks: Sequence[str] = RENDERED_CHECKS) -> dict[str, float]:
    """The thresholds that accept the fewest broken images and refuse few of the good ones (`analysis.thresholds.fit`).

    Raises ValueError without good images.
    """
    return fit(scored_images(trials, checks))


def scored_images(trials: Sequence[Trial], checks: Sequence[str]) -> ScoredImages:
    """Trials as arrays. If another class is more probable than the ground truth, an image is refused at any threshold.

    Segmentation jobs have no label check.
    """
    numbers = {kind: VALID if kind == "good" else number for number, kind in enumerate(_kinds(trials), start=1)}
    scores = [[trial.scores.get(check, np.nan) for check in checks] for trial in trials]
    return ScoredImages(
        checks=tuple(checks),
        scores=np.array(scores, np.float64).reshape(len(trials), len(checks)),
        kind=np.array([numbers[trial.kind] for trial in trials], np.int64),
        passable=np.array([trial.scores.get("label_margin", 1.0) > 0 for trial in trials], np.bool_),
        factors=[(trial.factor,) for trial in trials],
    )


def _kinds(trials: Sequence[Trial]) -> list[str]:
    """The kinds of images, in order of first occurrence."""
    return list(dict.fromkeys(trial.kind for trial in trials))


def held_out_scores(
    trials: Sequence[Trial], checks: Sequence[str] = RENDERED_CHECKS
) -> list[tuple[Trial, bool, float]]:
    """Each trial with its verdict and margin, under thresholds from the other half of the scenes."""
    half = np.array([trial.scene % 2 == 0 for trial in trials], np.bool_)
    least = held_out_margins(scored_images(trials, checks), half).tolist()
    return [(trial, margin >= 0, margin) for trial, margin in zip(trials, least, strict=True)]


def table(judged: Sequence[tuple[Trial, bool, float]]) -> list[str]:
    """Per factor: false rejects, false accepts by kind, and the area under the curve."""
    lines = []
    for factor in ("all", *sorted({trial.factor for trial, _, _ in judged})):
        rows = [row for row in judged if factor in ("all", row[0].factor)]
        good = [row for row in rows if row[0].kind == "good"]
        broken = [row for row in rows if row[0].kind != "good"]
        area = auroc([worst for *_, worst in good], [worst for *_, worst in broken])
        refused = rate_text(sum(not accepted for _, accepted, _ in good), len(good))
        lines.append(f"{factor}: AUROC {area:.3f}; false reject {refused}; false accept {_pass_rates(broken)}")
        kinds = [kind for kind in _kinds([trial for trial, *_ in judged]) if kind != "good"]
        lines += [f"    {kind}: {_pass_rates([row for row in broken if row[0].kind == kind])}" for kind in kinds]
    return lines


def _pass_rates(rows: Sequence[tuple[Trial, bool, float]]) -> str:
    return rate_text(sum(accepted for _, accepted, _ in rows), len(rows))


NOTE = "# Made by `python -m research.calibrate.checks --write`; they belong to the scorer's weights.\n"


def toml(chosen: Thresholds, note: str = NOTE) -> str:
    """The profile's tables of thresholds."""
    tables = [
        f"[thresholds.{check}]\n" + "".join(f"{factor} = {value}\n" for factor, value in values.items())
        for check, values in chosen.items()
    ]
    return note + "\n".join(tables)


def with_thresholds(profile: str, tables: str, checks: Sequence[str] = (r"\w+",)) -> str:
    """A profile's text, with its thresholds of these checks replaced by these tables at its end."""
    header = rf"\[thresholds\.(?:{'|'.join(checks)})\]"
    unchanged = re.sub(
        rf"(?ms)^{header}.*?(?=^#|^\[(?!thresholds\.(?:{'|'.join(checks)})\])|\Z)", "", profile.replace(NOTE, "")
    )
    return f"{unchanged.rstrip()}\n\n{tables}"
