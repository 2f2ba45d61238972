"""The reviews of one method's edits for one model, gathered edit by edit: random samples, and counts by cell.

Reviewers see the changed images of a finding in the descending order of their ids (`gateway.report.review_order`). Ids
are digests, so those reviewed before the first one without a review are a random sample.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from gateway.analysis.reviews import OwnSample, RandomSample, Reviewed, Tally
from shared.schemas.effects import Cell
from shared.schemas.review_results import FailureMode


class PooledReview(NamedTuple):
    """All reviews of one edit. `valid` is the majority of the decided reviews; None for a tie.

    A review counts as valid if the ground truth still holds, the reviewer does not deny that the edit is shown, and
    names no failure. `failure`: the mode that most reviewers name.
    `pair_valid`: the same of the edit and its arm. Only reviewers who saw the arm can find the pair valid; an edit that
    is invalid alone makes it invalid. None: nobody who could say so has decided.
    """

    method: str
    accepted: bool
    valid: bool | None
    pair_valid: bool | None
    edit_shown: bool | None
    realism: float | None
    failure: FailureMode | None

    def verdict(self, sign: int) -> bool | None:
        """The verdict on an image that was lost (−1), or gained (1): an arm that lost the class gains."""
        return self.valid if sign < 0 else self.pair_valid


class _ReviewedImage(NamedTuple):
    name: str
    valid: bool
    group: int


@dataclass(slots=True)
class _ChangedImages:
    """Changed images in one direction: their number, the verdicts on them, the largest id without a review."""

    n: int = 0
    verdicts: list[_ReviewedImage] = field(default_factory=list)
    largest_open: str = ""

    def sample(self) -> OwnSample:
        sampled = [verdict for verdict in self.verdicts if verdict.name > self.largest_open]
        valid, groups = [verdict.valid for verdict in sampled], [verdict.group for verdict in sampled]
        return OwnSample(RandomSample(np.array(valid, np.bool_), np.array(groups, np.int64)), self.n)


class OwnReviews:
    """Collects the changed images of cells: lost ones (−1) and gained ones (1) apart."""

    def __init__(self) -> None:
        self._changed: defaultdict[Cell, dict[int, _ChangedImages]] = defaultdict(
            lambda: {-1: _ChangedImages(), 1: _ChangedImages()}
        )

    def add(self, cell: Cell, sign: Literal[-1, 1], name: str, group: int, review: PooledReview | None) -> None:
        """Add a changed image with its reviews. Images with divided reviews are left out.

        A gained image whose arm no reviewer saw counts as not reviewed.
        """
        changed = self._changed[cell][sign]
        changed.n += 1
        valid = None if review is None else review.verdict(sign)
        if valid is not None:
            changed.verdicts.append(_ReviewedImage(name, valid, group))
        elif review is None or sign > 0:
            changed.largest_open = max(changed.largest_open, name)

    def samples(self) -> dict[Cell, OwnSample]:
        """The sample of each cell, for the direction in which more of its images changed."""
        return {
            cell: max(signs.values(), key=lambda changed: changed.n).sample() for cell, signs in self._changed.items()
        }


class Sample:
    """A random sample that grows edit by edit."""

    def __init__(self) -> None:
        self._valid, self._source = array("b"), array("q")

    def add(self, valid: bool, source: int) -> None:
        self._valid.append(valid)
        self._source.append(source)

    def random_sample(self) -> RandomSample:
        return RandomSample(np.asarray(self._valid).astype(bool), np.asarray(self._source))


class ReviewColumns:
    """The reviews of a method's edits whose pairs count, by whether one model flipped on them."""

    def __init__(self) -> None:
        self.samples: defaultdict[tuple[str, bool], Sample] = defaultdict(Sample)
        self.classes: defaultdict[tuple[str, bool], Sample] = defaultdict(Sample)
        self.cells: defaultdict[Cell, tuple[Tally, Tally]] = defaultdict(lambda: (Tally(), Tally()))
        self.whole = (Tally(), Tally())
        self.own = OwnReviews()

    def reviewed(self, valid_rejected: float | None = None) -> Reviewed:
        samples, classes = (
            {key: sample.random_sample() for key, sample in columns.items()} for columns in (self.samples, self.classes)
        )
        return Reviewed(samples, self.cells, self.whole, valid_rejected, classes, self.own.samples())
