"""A job's reviews for the analysis: the pooled verdict on each edit, and which edits are a random sample.

Edits are sampled in the order of their ids. Ids are digests, so this order is random. The random sample of a method
consists of the reviewed edits whose ids precede the first unreviewed one; accepted and rejected edits have separate
samples. Failures prioritised for review (the leading ones of the review list) are excluded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

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
from gateway.results.judged_shares import JudgedShares
from gateway.results.pairing import PredictionRow, change, labels, triples
from gateway.results.review_columns import PooledReview, ReviewColumns, Sample
from gateway.results.stream import SourceRows, cells_of
from shared.schemas.estimates import Estimate, Rate
from shared.schemas.review_results import FAILURE_MODES, FailureMode, FailureShare, FlippedReviews, MethodReviews
from shared.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class Reviews:
    """The reviews of a job's edits, by id of the edit.

    `prioritised`: the edits that were not sampled. `first_open`: the first edit without a review, by (method, accepted
    by the checks).
    """

    by_edit: dict[str, PooledReview]
    prioritised: frozenset[str]
    first_open: dict[tuple[str, bool], str]

    def is_sampled(self, name: str) -> bool:
        """Whether an edit is in the random sample and has a decided review."""
        review = self.by_edit.get(name)
        if review is None or review.valid is None or name in self.prioritised:
            return False
        end = self.first_open.get((review.method, review.accepted))
        return end is None or name < end

    def is_prioritised(self, name: str) -> bool:
        """Whether an edit was reviewed because it was listed first, and not at random."""
        return name in self.prioritised

    def missing(self, method: str, accepted: bool = True) -> int:
        """The number of sampled edits that still need a decided review to estimate the method's validity."""
        if (method, accepted) not in self.first_open:
            return 0
        size = sum(self.is_sampled(name) and review[:2] == (method, accepted) for name, review in self.by_edit.items())
        return max(0, (LEAST_ACCEPTED if accepted else LEAST_REJECTED) - size)


def load_reviews(session: Session, job_id: str) -> Reviews:
    """All reviews of a job, in memory, because people write few."""
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
        by_edit={name: pool(*kinds[name], reviews) for name, reviews in by_edit.items()},
        prioritised=frozenset(takewhile(by_edit.__contains__, review_list(session, job_id))),
        first_open={
            (method, accepted): name for method, accepted, name in session.execute(first.group_by(c.method, c.accepted))
        },
    )


def review_list(session: Session, job_id: str) -> list[str]:
    """The ids of `metrics.review` in the job's current report; empty if it has none."""
    ids = session.scalar(select(Report.metrics["review"]).where(Report.job_id == job_id))
    return [str(name) for name in ids or ()]


def first_to_review(session: Session, job_id: str) -> list[str]:
    """The leading ids of the review list that are samples of the findings."""
    count = session.scalar(select(Report.metrics["review_first"].as_integer()).where(Report.job_id == job_id))
    return review_list(session, job_id)[: count or 0]


def pool(method: str, accepted: bool, reviews: Sequence[Review]) -> PooledReview:
    """All reviews of one edit of a method, which the checks accepted or not."""
    decided = [review for review in reviews if review.verdict != "unsure"]
    votes = [
        review.verdict == "valid" and review.edit_shown is not False and review.failure is None for review in decided
    ]
    of_pair = [vote for vote, review in zip(votes, decided, strict=True) if review.arm_shown or not vote]
    grades = [review.realism for review in reviews if review.realism is not None]
    return PooledReview(
        method,
        accepted,
        majority(votes),
        majority(of_pair),
        majority([review.edit_shown for review in reviews if review.edit_shown is not None]),
        sum(grades) / len(grades) if grades else None,
        _most_named([review.failure for review in reviews if review.failure is not None]),
    )


def _most_named(modes: Sequence[FailureMode]) -> FailureMode | None:
    return max(FAILURE_MODES, key=modes.count) if modes else None


def majority(votes: list[bool]) -> bool | None:
    """What most votes say; None for a tie, and without votes."""
    yes = sum(votes)
    return None if 2 * yes == len(votes) else 2 * yes > len(votes)


class ReviewedJob:
    """Collects the reviews of a job, one source image at a time, then computes their figures."""

    def __init__(self, reviews: Reviews, methods: Iterable[str], models: Iterable[str]) -> None:
        self._reviews = reviews
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
            valid = None if review is None else review.valid
            self._tallies[key].add(valid)
            if row.accepted and not self._reviews.is_prioritised(row.id):
                self._judged[row.method].add(row.judged, valid if is_sampled else None, group)
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
                    for factor in {"", *(change["factor"] for change in row.changes)} if is_sampled else ():
                        columns.samples[factor, flipped].add(bool(valid), group)
                    for label in scored if is_sampled else ():
                        columns.classes[label, flipped].add(bool(valid), group)

    def _add_changed(self, group: int, rows: SourceRows, by_model: Mapping[str, Mapping[str, PredictionRow]]) -> None:
        """Add the counted edits of a source image that changed what a model does to the cells that they are in."""
        counted = [triple for triple in triples(rows.counterfactuals) if triple.edit.counted]
        for (model, method), columns in self._columns.items():
            for triple in counted:
                edit, compared = triple.edit, triple.predictions(by_model[model])
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
