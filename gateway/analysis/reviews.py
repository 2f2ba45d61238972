"""Valid shares from people's reviews of some counterfactuals of a job.

Reviewed images use their own verdict. The share of valid ones among the others is estimated from a random sample,
separately for flipped and not flipped ones. An edit that destroys the class also flips the model, so valid edits are
rarer among flipped ones. A generator may have a fault in a single cell. So a sample of the cell's own changed images
replaces the sample of other cells once it is large enough or mostly invalid. Where scores are right or wrong, an
invalid image that was not lost cannot have made a loss, so a finding needs no other sample (`effect_of_changed`).

    valid of n accepted = reviewed and valid + Binomial(not reviewed, share),    share ~ Beta(random sample)

A judge that an audit found sound scores the edits without a review, too: the share is then prediction-powered.
Each draw is a completed table of accepted or rejected × valid or invalid. Images prioritised for review are not in the
random sample; they would bias it (verification bias: Begg & Greenes 1983).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import betabinom

from gateway.analysis.certainty import effect_interval, effective_trials
from gateway.analysis.effects import Differences, Floats, Integers
from gateway.analysis.limits import BEYOND, LEAST_OF_CLASS
from gateway.analysis.prediction_powered import PoweredShare, powered_share
from gateway.analysis.validity import DRAWS, SHARE_OF_ERROR
from shared.schemas.effects import Cell, Estimate, Interval, Pool, ValidEffect

LEAST_ACCEPTED, LEAST_REJECTED = 20, 10  # size of the random sample from which an estimate is reported
LEAST_OWN = 10  # reviewed changed images of a cell that take the place of the sample of other cells


class JudgeScores(NamedTuple):
    """The scores of a sound judge, 0 to 1: of a sample's edits, and of the other edits that it is of."""

    sampled: Floats
    others: Floats
    other_source: Integers


class RandomSample(NamedTuple):
    """Randomly sampled, reviewed edits: whether each is valid, and its source image.

    `judged`: what a judge says of them and of the others, which makes the sample tell more; None without a judge.
    """

    valid: NDArray[np.bool_]
    source: Integers
    judged: JudgeScores | None = None

    def share(self) -> PoweredShare:
        """The valid share and the number of independent trials; by prediction-powered inference with enough of each."""
        if self.judged is not None:
            sampled, others, other_source = self.judged
            powered = powered_share(self.valid, sampled, self.source, others, other_source)
            if powered is not None:
                return powered
        return PoweredShare(float(self.valid.mean()), effective_trials(self.valid, self.source))


@dataclass(frozen=True, slots=True)
class OwnSample:
    """A reviewed random sample of a cell's changed images (right on the arm and wrong on the edit).

    For an improvement it is the reverse. `changed` is the number of all changed images.
    """

    sample: RandomSample
    changed: int

    def least_valid(self, error: float) -> float:
        """The lower limit of the valid share of the changed images, 0 … 1, at this error; exact if all are reviewed.

        The number of valid ones among the others is beta-binomial under Jeffreys' prior. Siblings in the sample count
        as in a clustered rate.
        """
        valid, n = self.sample.valid, len(self.sample.valid)
        trials = effective_trials(valid, self.sample.source)
        hits = trials * float(valid.mean())
        others = betabinom(max(0, self.changed - n), hits + 0.5, trials - hits + 0.5)
        return (int(valid.sum()) + float(others.ppf(error))) / max(self.changed, n)

    @property
    def mostly_invalid(self) -> bool:
        """Whether most of the reviewed images are invalid. A finding based on them does not hold."""
        return 2 * int(self.sample.valid.sum()) < len(self.sample.valid)

    @property
    def decides(self) -> bool:
        """Whether it replaces the sample of other cells: 10 or all are reviewed, or most are invalid."""
        return self.mostly_invalid or 0 < min(LEAST_OWN, self.changed) <= len(self.sample.valid)


@dataclass(slots=True)
class Tally:
    """Counts of edits of one kind: reviewed as valid, reviewed as invalid, and open (not reviewed or undecided)."""

    valid: int = 0
    invalid: int = 0
    open: int = 0

    def add(self, valid: bool | None) -> None:
        """Count an edit. `valid` is None for an edit without a verdict."""
        self.valid += valid is True
        self.invalid += valid is False
        self.open += valid is None

    @property
    def total(self) -> int:
        """The number of edits."""
        return self.valid + self.invalid + self.open


@dataclass(frozen=True, slots=True)
class Reviewed:
    """The reviews of the accepted edits of one method, for one model under test.

    `samples` are keyed by factor ("" for all factors) and by whether the model flipped, `classes` likewise by class.
    `cells`, and `whole` for all accepted edits, hold two tallies: edits that did not flip the model, and edits that
    did. `valid_rejected`: the largest share of rejected edits that may be valid; None if too few were reviewed. `own`:
    the samples of the cells' own changed images.
    """

    samples: Mapping[tuple[str, bool], RandomSample]
    cells: Mapping[Cell, tuple[Tally, Tally]]
    whole: tuple[Tally, Tally]
    valid_rejected: float | None = None
    classes: Mapping[tuple[str, bool], RandomSample] = field(default_factory=dict)
    own: Mapping[Cell, OwnSample] = field(default_factory=dict)
    source: Literal["reviews"] = field(default="reviews", init=False)

    def pool(self, cell: Cell) -> Pool:
        """The sample used for a cell: its class's with 30 or more reviews, its factor's with 20, or else all.

        A cell whose edits are all reviewed needs no sample. "cell": its own changed images are the sample.
        """
        if self.is_decided(cell):
            return "cell"
        return self._others_pool(cell)

    def is_decided(self, cell: Cell) -> bool:
        """Whether a cell's own changed images replace the sample of other cells."""
        return cell in self.own and self.own[cell].decides

    def own_sample(self, cell: Cell) -> OwnSample | None:
        """The sample of a cell's own changed images, if it is decided."""
        return self.own[cell] if self.is_decided(cell) else None

    def is_refuted(self, cell: Cell) -> bool:
        """Whether most of a cell's own reviewed changed images are invalid."""
        return cell in self.own and self.own[cell].mostly_invalid

    def is_upheld(self, cell: Cell) -> bool:
        """Whether a cell's own changed images were reviewed, and most of them are valid."""
        return self.is_decided(cell) and not self.is_refuted(cell)

    def _others_pool(self, cell: Cell) -> Literal["class", "factor", "all"]:
        if not sum(tally.open for tally in self.cells[cell]) or _size(self.classes, cell.label) >= LEAST_OF_CLASS:
            return "class"
        return "factor" if _size(self.samples, cell.factor) >= LEAST_ACCEPTED else "all"

    def shares(self, cell: Cell, seed: int) -> Floats:
        """Draws (20,000) of the valid share of a cell's accepted edits, ascending."""
        unchanged, flipped = self.draw_valid(self.cells[cell], seed, cell)
        return np.sort((unchanged + flipped) / sum(tally.total for tally in self.cells[cell]))

    def shares_with(self, cell: Cell, unchanged: Floats, seed: int) -> Floats:
        """As `shares`, for a cell with a sample of its own, given draws of the valid share of edits without a flip."""
        random = np.random.default_rng(seed)
        unflipped, flipped = self.cells[cell]
        valid_unflipped = unflipped.valid + random.binomial(unflipped.open, random.permutation(unchanged))
        valid_flipped = valid_counts(flipped, self.own[cell].sample, random)
        return np.sort((valid_unflipped + valid_flipped) / (unflipped.total + flipped.total))

    def most_valid_refused(self, cell: Cell, seed: int) -> float | None:
        """The largest share of refused edits that may be valid, the same in all cells."""
        return self.valid_rejected

    def most_valid_accepted(self, cell: Cell, seed: int) -> float:
        """The largest share (0 … 1) of a cell's accepted edits without review that may be valid.

        The 97.5 % quantile for those that flipped the model, or for the others, whichever is larger.
        """
        unseen = Tally(open=DRAWS)
        return max(
            float(np.quantile(counts, 0.975)) / DRAWS for counts in self.draw_valid((unseen, unseen), seed, cell)
        )

    def draw_valid(self, tallies: tuple[Tally, Tally], seed: int, cell: Cell | None = None) -> tuple[Floats, Floats]:
        """Draws of the number of valid edits, among those that did not flip the model and among those that did.

        The others of a cell are estimated from the sample of its pool; without a cell, from all.
        """
        random = np.random.default_rng(seed)
        pool = "all" if cell is None else self._others_pool(cell)
        samples = self.classes if pool == "class" else self.samples
        name = "" if cell is None or pool == "all" else cell.label if pool == "class" else cell.factor
        of_unchanged, of_flipped = (samples.get((name, flip)) for flip in (False, True))
        if cell is not None and self.is_decided(cell):
            of_flipped = self.own[cell].sample
        unchanged = valid_counts(tallies[0], of_unchanged, random)
        return unchanged, valid_counts(tallies[1], of_flipped, random)


def effect_of_changed(
    differences: Differences, own: OwnSample, level: float, sign: Literal[-1, 1], seed: int
) -> ValidEffect | None:
    """The effect of a finding among valid pairs, from a sample of its own lost (`sign` −1) or gained (1) images.

    None where scores are not right or wrong. If at most a share v of the changed images is invalid, invalid ones have
    at most ε = v · changed / all of the effect's weight, and those that did not change weaken it. So a limit of the
    loss moves to (limit + ε) / (1 − ε), after Horowitz & Manski 1995. The interval is one-sided at `level`: a fifth of
    its error goes to v, the rest to the observed effect. It does not stand if most reviewed images are invalid.
    """
    if differences.null_accuracy is None:
        return None
    observed = _observed(differences, level, sign, seed)
    share, least = float(own.sample.valid.mean()), own.least_valid(SHARE_OF_ERROR * (1 - level))
    limit = _without(observed.high, _weight(differences, own.changed * (1 - least)))
    best = _without(-sign * float(differences.correct.mean()), _weight(differences, own.changed * (1 - share)))
    low, high = (-1.0, limit) if sign < 0 else (-limit, 1.0)
    return ValidEffect(
        valid=share,
        valid_low=least,
        estimate=-sign * min(0.0, best),
        interval=Interval(low=low, high=high, level=level, kind=observed.kind),
        stands=limit < -BEYOND and not own.mostly_invalid,
        source="reviews",
        pool="cell",
    )


def reviews_needed(differences: Differences, level: float, sign: Literal[-1, 1], seed: int) -> int:
    """How many of a finding's changed images, all valid, let it stand: 10 or more, or all of them.

    10 where groups, several edits of an image, or scores that are not right or wrong leave their number open.
    """
    if not differences.paired:
        return LEAST_OWN
    changed = int((differences.correct == sign).sum())
    observed = _observed(differences, level, sign, seed)
    for n in range(min(LEAST_OWN, changed), changed):
        least = OwnSample(RandomSample(np.ones(n, np.bool_), np.arange(n)), changed).least_valid(
            SHARE_OF_ERROR * (1 - level)
        )
        if _without(observed.high, _weight(differences, changed * (1 - least))) < -BEYOND:
            return n
    return changed


def _observed(differences: Differences, level: float, sign: Literal[-1, 1], seed: int) -> Interval:
    """The interval of what is lost (of gains, mirrored); a fifth of the error of `level` is left to the reviews."""
    mirrored = differences if sign < 0 else replace(differences, correct=-differences.correct)
    return effect_interval(mirrored, 1 - 2 * (1 - SHARE_OF_ERROR) * (1 - level), seed)


def _weight(differences: Differences, images: float) -> float:
    """The largest share, 0 … 1, that so many counterfactuals can have in an effect: groups weigh equally."""
    sizes = np.ones(len(differences.correct), np.int64) if differences.sizes is None else differences.sizes
    weights = np.sort(np.repeat(1 / (len(sizes) * sizes), sizes))[::-1]
    whole = min(len(weights), math.floor(images))
    return min(1.0, float(weights[:whole].sum()) + float(weights[whole : whole + 1].sum()) * (images - whole))


def _without(effect: float, share: float) -> float:
    """A loss (negative), −1 … 1, without the share of its images that may be lost for being invalid."""
    return 1.0 if share >= 1 else min(1.0, (effect + share) / (1 - share))


def _size(samples: Mapping[tuple[str, bool], RandomSample], name: str) -> int:
    return sum(len(samples[name, flip].valid) for flip in (False, True) if (name, flip) in samples)


def valid_counts(tally: Tally, sample: RandomSample | None, random: np.random.Generator) -> Floats:
    """Draws (20,000) of the number of valid edits. Siblings in the sample count as in a clustered rate.

    With a judge's scores the share is that of all edits that the sample is of, and its trials are as many as reviews
    would need to be to say it as exactly.
    """
    hits = trials = 0.0
    if sample is not None and len(sample.valid):
        share, trials = sample.share()
        hits = trials * share
    shares = random.beta(hits + 0.5, trials - hits + 0.5, DRAWS)
    return tally.valid + random.binomial(tally.open, shares).astype(np.float64)


def estimate(counts: Floats, totals: Floats | float) -> Estimate | None:
    """The median of a ratio's draws with its central 95 % interval; None if a total is 0."""
    if not np.all(totals):
        return None
    low, value, high = np.quantile(counts / totals, [0.025, 0.5, 0.975])
    return Estimate(value=float(value), low=float(low), high=float(high))


def check_errors(valid: Floats, accepted: int, valid_rejected: Floats, rejected: int) -> tuple[Estimate, Estimate]:
    """P(accepted | valid) and P(accepted | invalid), from draws of the number of valid accepted and rejected edits.

    Each draw completes the table. Jeffreys' prior adds the table's own sampling error, as for a calibration set.
    """
    random = np.random.default_rng(accepted)
    sensitivity = random.beta(valid + 0.5, valid_rejected + 0.5)
    false_positive_rate = random.beta(accepted - valid + 0.5, rejected - valid_rejected + 0.5)
    if_valid, if_invalid = estimate(sensitivity, 1.0), estimate(false_positive_rate, 1.0)
    assert if_valid is not None
    assert if_invalid is not None
    return if_valid, if_invalid
