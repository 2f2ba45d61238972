"""A job's reviews for the analysis: the pooled verdict on each edit, and which edits are a random sample.

Edits are sampled in the order of their ids, which are digests of their place in the job, so the order is random. The
sample of a method, accepted and rejected edits apart, are the reviewed edits whose ids come before the first one that
nobody reviewed. Failures prioritised for review (the leading ones of the review list) are excluded.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.analysis.certainty import clustered_rate
from gateway.analysis.reviews import (
    LEAST_ACCEPTED,
    LEAST_REJECTED,
    RandomSample,
    Reviewed,
    Tally,
    check_errors,
    estimate,
    valid_counts,
)
from gateway.database.tables import Counterfactual, Report, Review
from gateway.results.stream import SourceRows, cells_of
from shared.schemas.results import Cell, FlippedReviews, MethodReviews, Rate, Relation
from shared.seeds import derive_seed


class PooledReview(NamedTuple):
    """All reviews of one edit. `valid` is the majority of the decided ones; None for a tie.

    Valid means that the ground truth still holds, and that the reviewer does not deny that the edit is shown.
    """

    method: str
    accepted: bool
    valid: bool | None
    edit_shown: bool | None
    realism: float | None


@dataclass(frozen=True, slots=True)
class Reviews:
    """The reviews of a job's edits, by id of the edit.

    `prioritised` are the edits that were not sampled. `first_open` is the first edit without a review, by method and
    whether the checks accepted it.
    """

    by_edit: dict[str, PooledReview]
    prioritised: frozenset[str]
    first_open: dict[tuple[str, bool], str]

    def drawn(self, name: str) -> bool:
        """Whether an edit is in the random sample, and people decided on it."""
        review = self.by_edit.get(name)
        if review is None or review.valid is None or name in self.prioritised:
            return False
        end = self.first_open.get((review.method, review.accepted))
        return end is None or name < end

    def missing(self, method: str, accepted: bool = True) -> int:
        """How many more sampled edits need a decided review until the method's validity can be estimated."""
        if (method, accepted) not in self.first_open:
            return 0
        drawn = sum(self.drawn(name) and review[:2] == (method, accepted) for name, review in self.by_edit.items())
        return max(0, (LEAST_ACCEPTED if accepted else LEAST_REJECTED) - drawn)


def load_reviews(session: Session, job_id: str) -> Reviews:
    """The reviews of a job, all in memory: there are only as many as people have written."""
    c = Counterfactual
    by_edit: defaultdict[str, list[Review]] = defaultdict(list)
    kinds: dict[str, tuple[str, bool]] = {}
    rows = select(Review, c.method, c.accepted).join(c, Review.counterfactual_id == c.id)
    for review, method, accepted in session.execute(rows.where(Review.job_id == job_id)):
        by_edit[review.counterfactual_id].append(review)
        kinds[review.counterfactual_id] = (method, accepted)
    reviewed = select(Review.counterfactual_id).where(Review.job_id == job_id)
    rendered = [c.job_id == job_id, c.arm == "edit", c.image_digest.is_not(None)]
    first = select(c.method, c.accepted, func.min(c.id)).where(*rendered, c.id.not_in(reviewed))
    return Reviews(
        by_edit={name: _pooled(*kinds[name], reviews) for name, reviews in by_edit.items()},
        prioritised=frozenset(takewhile(by_edit.__contains__, to_review(session, job_id))),
        first_open={
            (method, accepted): name for method, accepted, name in session.execute(first.group_by(c.method, c.accepted))
        },
    )


def to_review(session: Session, job_id: str) -> list[str]:
    """The ids of `metrics.review`, as the report has them now; none before there is a report."""
    listed = session.scalar(select(Report.metrics["review"]).where(Report.job_id == job_id))
    return [str(name) for name in listed or ()]


def _pooled(method: str, accepted: bool, reviews: Sequence[Review]) -> PooledReview:
    decided = [review for review in reviews if review.verdict != "unsure"]
    votes = [review.verdict == "valid" and review.edit_shown is not False for review in decided]
    grades = [review.realism for review in reviews if review.realism is not None]
    return PooledReview(
        method,
        accepted,
        _majority(votes),
        _majority([review.edit_shown for review in reviews if review.edit_shown is not None]),
        sum(grades) / len(grades) if grades else None,
    )


def _majority(votes: list[bool]) -> bool | None:
    yes = sum(votes)
    return None if 2 * yes == len(votes) else 2 * yes > len(votes)


class _Sample:
    """The random sample, edit by edit."""

    def __init__(self) -> None:
        self._valid, self._source = array("b"), array("q")

    def add(self, valid: bool, source: int) -> None:
        self._valid.append(valid)
        self._source.append(source)

    def random_sample(self) -> RandomSample:
        return RandomSample(np.asarray(self._valid).astype(bool), np.asarray(self._source))


class _ModelColumns:
    """The reviews of a method's edits whose pairs count, by whether one model flipped on them."""

    def __init__(self) -> None:
        self.samples: defaultdict[tuple[str, bool], _Sample] = defaultdict(_Sample)
        self.cells: defaultdict[Cell, tuple[Tally, Tally]] = defaultdict(lambda: (Tally(), Tally()))
        self.whole = (Tally(), Tally())

    def reviewed(self) -> Reviewed:
        return Reviewed({key: drawn.random_sample() for key, drawn in self.samples.items()}, self.cells, self.whole)


class ReviewedJob:
    """Takes in one source image after the other, then computes what a job's reviews show."""

    def __init__(self, reviews: Reviews, relation: Relation, methods: Iterable[str], models: Iterable[str]) -> None:
        self._reviews, self._relation = reviews, relation
        self._methods, self._models = list(methods), list(models)
        self._tallies = {(method, accepted): Tally() for method in self._methods for accepted in (True, False)}
        self._drawn = {key: _Sample() for key in self._tallies}
        self._shown = {method: _Sample() for method in self._methods}
        self._columns = {(model, method): _ModelColumns() for method in self._methods for model in self._models}

    def add(self, group: int, rows: SourceRows) -> None:
        """Take in the edits of a source image of this group, with the predictions for them."""
        if not self._reviews.by_edit:
            return
        by_model = {model: rows.predictions_of(model) for model in self._models}
        for row in rows.counterfactuals:
            key = (row.method, row.accepted)
            if row.arm != "edit" or not row.rendered or key not in self._tallies:
                continue
            review, drawn = self._reviews.by_edit.get(row.id), self._reviews.drawn(row.id)
            valid = None if review is None else review.valid
            self._tallies[key].add(valid)
            if drawn and review is not None:
                self._drawn[key].add(bool(valid), group)
                if row.accepted and review.edit_shown is not None:
                    self._shown[row.method].add(review.edit_shown, group)
            for model, predictions in by_model.items():
                if row.counted and row.id in predictions:
                    flipped = bool(predictions[row.id].flipped)
                    columns = self._columns[model, row.method]
                    columns.whole[flipped].add(valid)
                    labels = rows.labels(predictions.get(row.source_image_id), self._relation)
                    for cell in dict.fromkeys(cell for label in labels for cell in cells_of(row, label)):
                        columns.cells[cell][flipped].add(valid)
                    for factor in {"", *(change["factor"] for change in row.changes)} if drawn else ():
                        columns.samples[factor, flipped].add(bool(valid), group)

    def enough(self, method: str) -> bool:
        """Whether the validity of a method's accepted edits can be estimated from the sample."""
        return self._tallies[method, True].total > 0 and not self._reviews.missing(method)

    def reviewed(self, model: str, method: str) -> Reviewed:
        """The reviews of the accepted edits of a method, for one model."""
        return self._columns[model, method].reviewed()

    def figures(self, seed: int) -> list[MethodReviews]:
        """The figures of each method with reviews; `seed` is the analysis's."""
        reviewed = {review.method for review in self._reviews.by_edit.values()}
        methods = [method for method in self._methods if method in reviewed]
        return [self._figures(method, derive_seed(seed, "reviews", method)) for method in methods]

    def _figures(self, method: str, seed: int) -> MethodReviews:
        random = np.random.default_rng(seed)
        accepted, rejected = self._tallies[method, True], self._tallies[method, False]
        reviews = {name: review for name, review in self._reviews.by_edit.items() if review.method == method}
        enough = self.enough(method)
        enough_rejected = enough and self._reviews.missing(method, accepted=False) == 0 and rejected.total > 0
        valid = valid_counts(accepted, self._drawn[method, True].random_sample(), random)
        others = valid_counts(rejected, self._drawn[method, False].random_sample(), random)
        errors = check_errors(valid, accepted.total, others, rejected.total) if enough_rejected else (None, None)
        grades = [
            review.realism
            for name, review in reviews.items()
            if review.accepted and review.realism is not None and self._reviews.drawn(name)
        ]
        shown = self._shown[method].random_sample()
        return MethodReviews(
            method=method,
            accepted=accepted.valid + accepted.invalid,
            rejected=rejected.valid + rejected.invalid,
            undecided=sum(review.valid is None for review in reviews.values()),
            by_lot=len(self._drawn[method, True].random_sample().valid),
            more=self._reviews.missing(method),
            more_rejected=self._reviews.missing(method, accepted=False),
            valid=estimate(valid, accepted.total) if enough else None,
            valid_rejected=estimate(others, rejected.total) if enough_rejected else None,
            accepted_if_valid=errors[0],
            accepted_if_invalid=errors[1],
            flipped=[self._flipped(model, method, seed) for model in self._models] if enough else [],
            edit_shown=_rate(shown),
            realism=sum(grades) / len(grades) if grades else None,
            graded=len(grades),
        )

    def _flipped(self, model: str, method: str, seed: int) -> FlippedReviews:
        reviewed = self._columns[model, method].reviewed()
        held, flipped = reviewed.drawn(reviewed.whole, derive_seed(seed, model))
        return FlippedReviews(
            model=model,
            reviewed=reviewed.whole[True].valid + reviewed.whole[True].invalid,
            flipped=reviewed.whole[True].total,
            valid=estimate(flipped, reviewed.whole[True].total),
            of_valid=estimate(flipped, held + flipped),
        )


def _rate(shown: RandomSample) -> Rate | None:
    return clustered_rate(shown.valid, shown.source) if len(shown.valid) else None
