"""Collects a judge's scores of a method's accepted edits, for the valid share by prediction-powered inference.

The judge is the score `validity`, or else the vision-language judge's answers. It counts for a method only if it scored
every accepted edit. Edits prioritised for review are left out: they are no random sample of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gateway.analysis.prediction_powered import prediction_powered_share
from shared.schemas.estimates import Estimate


@dataclass(slots=True)
class JudgedShares:
    """The scores of one method's accepted edits: of the randomly sampled reviewed ones, and of the others."""

    complete: bool = True
    valid: list[bool] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    other_scores: list[float] = field(default_factory=list)
    other_groups: list[int] = field(default_factory=list)

    def add(self, score: float | None, valid: bool | None, group: int) -> None:
        """Add an accepted edit. `valid`: the verdict of people if it is in the random sample, else None."""
        if score is None:
            self.complete = False
        elif valid is None:
            self.other_scores.append(score)
            self.other_groups.append(group)
        else:
            self.valid.append(valid)
            self.scores.append(score)
            self.groups.append(group)

    def estimate(self) -> Estimate | None:
        """P(valid) of the accepted edits; None without a judge, or with fewer than 20 reviewed source images."""
        if not self.complete or not self.scores:
            return None
        return prediction_powered_share(
            np.array(self.valid, np.bool_),
            np.array(self.scores),
            np.array(self.groups, np.int64),
            np.array(self.other_scores),
            np.array(self.other_groups, np.int64),
        )
