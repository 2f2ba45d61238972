"""The checks under a second scorer, of another family than the first: would it have accepted the image, too?

Where the profile has `[evaluator.second_scorer]`, every rendered image is scored by it as well. Its verdict is that of
the same checks in which the scores of the scorer are replaced by its own (`second_…`), at thresholds of its own. It
changes no verdict of the method: the analysis reports the effect among the images that both, or the second one, accept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.methods.counterfactual import Edit, Scores, Thresholds
from gateway.methods.image_scores import label_lost

# Without calibrated ones: the ground truth is the most probable class, and the new caption fits better than the old.
UNCALIBRATED: Thresholds = {"label": {"default": 0.0}, "caption": {"default": 0.0}}
OF_SCORER = ("caption", "label", "fit", "likeness", "match", "direction", "word")
ACCEPTED_BY_SECOND = "second_accepted"  # score of every rendered image: 1 if the second scorer accepts it, else 0


def with_second(
    scores: Scores,
    second: Scores,
    edit: Edit | None,
    thresholds: Thresholds,
    second_thresholds: Thresholds,
    checks: Sequence[str],
) -> Scores:
    """The scores with those of the second scorer, and its verdict (0 or 1).

    `second_thresholds` are the second scorer's. Of the job's `thresholds`, those of other checks apply too.
    An edit without changes, or a null arm (None), has the limits of `default`.
    """
    merged = {**scores, **second}
    limits = {**{check: values for check, values in thresholds.items() if check not in OF_SCORER}, **second_thresholds}
    factors = [change.factor for change in edit.changes] if edit else []
    accepted = all(
        _passes(check, merged, limits[check], factors) for check in checks if check in limits and check in merged
    )
    named = {f"second_{name}": score for name, score in second.items()}
    return {**scores, **named, ACCEPTED_BY_SECOND: float(accepted)}


def _passes(check: str, scores: Scores, by_factor: Mapping[str, float], factors: Sequence[str]) -> bool:
    lowest = max((by_factor.get(factor, by_factor["default"]) for factor in factors), default=by_factor["default"])
    return scores[check] >= lowest and not (check == "label" and label_lost(scores, lowest))
