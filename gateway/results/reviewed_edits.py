"""The reviews of a job's edits as arrays for the analysis: random samples, and counts by cell.

Reviewers see the changed images of a finding in the descending order of their ids (`gateway.report.review_order`). Ids
are digests, so those reviewed before the first one without a review are a random sample.

Collects a judge's scores of a method's accepted edits, for the valid share by prediction-powered inference.

The judge is the score `validity`, or else the vision-language judge's answers to the questions at which an audit found
it sound. It counts for a method only if it scored every accepted edit. The latter's answers enter effects, too. Edits
prioritised for review are left out: they are no random sample of the others.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from gateway.analysis.certainty import clustered_rate
from gateway.analysis.prediction_powered import prediction_powered_share
from gateway.analysis.reviews import (
    JudgeScores,
    OwnSample,
    RandomSample,
    Reviewed,
    Tally,
    check_errors,
    estimate,
    valid_counts,
)
from gateway.feedback.reviews import PooledReview, Reviews
from gateway.kinds.rows import PredictionRow, labels
from gateway.results.pairing import change, triples
from gateway.results.stream import SourceRows, cells_of
from shared.profiles.judge_audit import CountingQuestions
from shared.schemas.effects import Cell, Estimate, Rate
from shared.schemas.results import FAILURE_MODES, FailureShare, FlippedReviews, MethodReviews
from shared.seeds import derive_seed

NO_QUESTIONS = CountingQuestions()


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
    """A random sample that grows edit by edit, and the scores of a judge for the edits that it is of."""

    def __init__(self) -> None:
        self._valid, self._source, self._scores = array("b"), array("q"), array("d")
        self._other_scores, self._other_source = array("d"), array("q")
        self._judged = True

    def add(self, valid: bool, source: int, score: float | None = None) -> None:
        self._valid.append(valid)
        self._source.append(source)
        self._scores.append(math.nan if score is None else score)
        self._judged &= score is not None

    def add_other(self, source: int, score: float | None) -> None:
        """Add an edit without a verdict of the sample."""
        self._other_source.append(source)
        self._other_scores.append(math.nan if score is None else score)
        self._judged &= score is not None

    def random_sample(self) -> RandomSample:
        scores = JudgeScores(*map(np.asarray, (self._scores, self._other_scores, self._other_source)))
        valid = np.asarray(self._valid).astype(bool)
        return RandomSample(valid, np.asarray(self._source), scores if self._judged else None)


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


class ReviewedJob:
    """Collects the reviews of a job, one source image at a time, then computes their figures."""

    def __init__(
        self,
        reviews: Reviews,
        methods: Iterable[str],
        models: Iterable[str],
        counting: CountingQuestions = NO_QUESTIONS,
    ) -> None:
        self._reviews = reviews
        self._counting = counting
        self._methods, self._models = list(methods), list(models)
        self._tallies = {(method, accepted): Tally() for method in self._methods for accepted in (True, False)}
        self._samples = {key: Sample() for key in self._tallies}
        self._judged = {method: JudgedShares() for method in self._methods}
        self._edit_shown = {method: Sample() for method in self._methods}
        self._failures = {(method, mode): Sample() for method in self._methods for mode in FAILURE_MODES}
        self._columns = {(model, method): ReviewColumns() for method in self._methods for model in self._models}

    def add(self, group: int, rows: SourceRows) -> None:
        """Add the edits of a source image of this group, with their predictions."""
        if not self._reviews.by_edit:
            return
        by_model = {model: rows.predictions_of(model) for model in self._models}
        self._add_changed(group, rows, by_model)
        for row in rows.counterfactuals:
            key = (row.method, row.accepted)
            if row.arm != "edit" or not row.rendered or key not in self._tallies:
                continue
            review, is_sampled = self._reviews.by_edit.get(row.id), self._reviews.is_sampled(row.id)
            valid, judged = None if review is None else review.valid, row.judged(self._counting)
            is_prioritised = self._reviews.is_prioritised(row.id)
            self._tallies[key].add(valid)
            if row.accepted and not is_prioritised:
                score = judged if row.validity is None else row.validity
                self._judged[row.method].add(score, valid if is_sampled else None, group)
            if is_sampled and review is not None:
                self._samples[key].add(bool(valid), group)
                for mode in FAILURE_MODES if row.accepted else ():
                    self._failures[row.method, mode].add(review.failure == mode, group)
                if row.accepted and review.edit_shown is not None:
                    self._edit_shown[row.method].add(review.edit_shown, group)
            for model, predictions in by_model.items():
                if row.counted and row.id in predictions:
                    flipped = bool(predictions[row.id].flipped)
                    columns = self._columns[model, row.method]
                    columns.whole[flipped].add(valid)
                    scored = labels(predictions.get(row.source_image_id))
                    for cell in dict.fromkeys(cell for label in scored for cell in cells_of(row, label)):
                        columns.cells[cell][flipped].add(valid)
                    factors = sorted({"", *(change["factor"] for change in row.changes)})
                    samples = [columns.samples[factor, flipped] for factor in factors]
                    for sample in [*samples, *(columns.classes[label, flipped] for label in scored)]:
                        if is_sampled:
                            sample.add(bool(valid), group, judged)
                        elif self._counting.names and not is_prioritised:
                            sample.add_other(group, judged)

    def _add_changed(self, group: int, rows: SourceRows, by_model: Mapping[str, Mapping[str, PredictionRow]]) -> None:
        """Add the counted edits of a source image that changed what a model does to the cells that they are in."""
        counted = [triple for triple in triples(rows.counterfactuals) if triple.edit.counted]
        for (model, method), columns in self._columns.items():
            for triple in counted:
                edit, compared = triple.edit, triple.compare(by_model[model])
                for label in labels(compared.original) if edit.method == method else ():
                    if sign := change(compared, label):
                        for cell in dict.fromkeys(cells_of(edit, label)):
                            columns.own.add(cell, sign, edit.id, group, self._reviews.by_edit.get(edit.id))

    def verdict(self, name: str, sign: int) -> bool | None:
        """Whether the reviewers of a lost (−1) or gained (1) image found it valid; None if they have not decided."""
        review = self._reviews.by_edit.get(name)
        return None if review is None else review.verdict(sign)

    def is_sufficient(self, method: str) -> bool:
        """Whether the random sample is large enough to estimate the validity of a method's accepted edits."""
        return self._tallies[method, True].total > 0 and not self._reviews.missing(method)

    def reviewed(self, model: str, method: str) -> Reviewed:
        """The reviews of the edits of a method, for one model."""
        return self._columns[model, method].reviewed(self._most_valid_rejected(method))

    def _most_valid_rejected(self, method: str) -> float | None:
        """The upper end of the share of rejected edits that are valid; None if too few were reviewed."""
        tally = self._tallies[method, False]
        if not self._enough_rejected(method):
            return None
        random = np.random.default_rng(derive_seed(0, "rejected", method))
        share = estimate(valid_counts(tally, self._samples[method, False].random_sample(), random), tally.total)
        return None if share is None else share.high

    def _enough_rejected(self, method: str) -> bool:
        """Whether the random sample is large enough to estimate the validity of a method's rejected edits."""
        enough = self.is_sufficient(method) and not self._reviews.missing(method, accepted=False)
        return enough and self._tallies[method, False].total > 0

    def figures(self, seed: int) -> list[MethodReviews]:
        """The figures of each method with reviews. `seed` is the seed of the analysis."""
        reviewed = {review.method for review in self._reviews.by_edit.values()}
        methods = [method for method in self._methods if method in reviewed]
        return [self._figures(method, derive_seed(seed, "reviews", method)) for method in methods]

    def _figures(self, method: str, seed: int) -> MethodReviews:
        random = np.random.default_rng(seed)
        accepted, rejected = self._tallies[method, True], self._tallies[method, False]
        reviews = {name: review for name, review in self._reviews.by_edit.items() if review.method == method}
        enough = self.is_sufficient(method)
        enough_rejected = self._enough_rejected(method)
        valid = valid_counts(accepted, self._samples[method, True].random_sample(), random)
        valid_rejected = valid_counts(rejected, self._samples[method, False].random_sample(), random)
        errors: tuple[Estimate, Estimate] | tuple[None, None] = (None, None)
        if enough_rejected:
            errors = check_errors(valid, accepted.total, valid_rejected, rejected.total)
        grades = [
            review.realism
            for name, review in reviews.items()
            if review.accepted and review.realism is not None and self._reviews.is_sampled(name)
        ]
        return MethodReviews(
            method=method,
            accepted=accepted.valid + accepted.invalid,
            rejected=rejected.valid + rejected.invalid,
            undecided=sum(review.valid is None for review in reviews.values()),
            by_lot=len(self._samples[method, True].random_sample().valid),
            more=self._reviews.missing(method),
            more_rejected=self._reviews.missing(method, accepted=False),
            valid=estimate(valid, accepted.total) if enough else None,
            prediction_powered=self._judged[method].estimate(),
            valid_rejected=estimate(valid_rejected, rejected.total) if enough_rejected else None,
            accepted_if_valid=errors[0],
            accepted_if_invalid=errors[1],
            flipped=[self._flipped_reviews(model, method, seed) for model in self._models] if enough else [],
            edit_shown=_rate(self._edit_shown[method].random_sample()),
            realism=sum(grades) / len(grades) if grades else None,
            graded=len(grades),
            failures=self._failure_shares(method),
        )

    def _failure_shares(self, method: str) -> list[FailureShare]:
        shares = ((mode, _rate(self._failures[method, mode].random_sample())) for mode in FAILURE_MODES)
        named = [FailureShare(mode=mode, share=share) for mode, share in shares if share is not None and share.count]
        return sorted(named, key=lambda failure: -failure.share.count)

    def _flipped_reviews(self, model: str, method: str, seed: int) -> FlippedReviews:
        reviewed = self._columns[model, method].reviewed()
        unchanged, flipped = reviewed.draw_valid(reviewed.whole, derive_seed(seed, model))
        return FlippedReviews(
            model=model,
            reviewed=reviewed.whole[True].valid + reviewed.whole[True].invalid,
            flipped=reviewed.whole[True].total,
            valid=estimate(flipped, reviewed.whole[True].total),
            of_valid=estimate(flipped, unchanged + flipped),
        )


def _rate(sample: RandomSample) -> Rate | None:
    return clustered_rate(sample.valid, sample.source) if len(sample.valid) else None


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
