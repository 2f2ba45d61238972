"""A job's reviews as the analysis computes on them: what people said together, and which edits were drawn by lot.

The lot of an edit is its id, a digest of where it stands in the job, so the order of ids is a random one. Drawn by lot
are the reviewed edits of a method, accepted and rejected apart, whose ids come before the first one that nobody
reviewed. Those that were offered before it because they tell most (the leading ones of the review list) are no lots.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
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
    Lot,
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


class Said(NamedTuple):
    """What people said of one edit together. `valid` is what most say who decided; None where they are divided.

    Valid means that the ground truth is right, and that nobody says that the edit is not shown.
    """

    method: str
    accepted: bool
    valid: bool | None
    edit_shown: bool | None
    realism: float | None


@dataclass(frozen=True, slots=True)
class Reviews:
    """All that people said of a job's edits, by id. `first_open` is by method and whether the checks accepted."""

    said: dict[str, Said]
    picked: frozenset[str]
    first_open: dict[tuple[str, bool], str]

    def drawn(self, name: str) -> bool:
        """Whether an edit was drawn by lot, and people decided."""
        said = self.said.get(name)
        if said is None or said.valid is None or name in self.picked:
            return False
        end = self.first_open.get((said.method, said.accepted))
        return end is None or name < end

    def missing(self, method: str, accepted: bool = True) -> int:
        """How many more decided ones it takes, drawn by lot, until something is said of the method's edits."""
        if (method, accepted) not in self.first_open:
            return 0
        drawn = sum(self.drawn(name) and said[:2] == (method, accepted) for name, said in self.said.items())
        return max(0, (LEAST_ACCEPTED if accepted else LEAST_REJECTED) - drawn)


def load_reviews(session: Session, job_id: str) -> Reviews:
    """The reviews of a job: in memory, for there are as many as people have looked at."""
    c = Counterfactual
    by_edit: defaultdict[str, list[Review]] = defaultdict(list)
    kinds: dict[str, tuple[str, bool]] = {}
    rows = select(Review, c.method, c.accepted).join(c, Review.counterfactual_id == c.id)
    for review, method, accepted in session.execute(rows.where(Review.job_id == job_id)):
        by_edit[review.counterfactual_id].append(review)
        kinds[review.counterfactual_id] = (method, accepted)
    seen = select(Review.counterfactual_id).where(Review.job_id == job_id)
    rendered = [c.job_id == job_id, c.arm == "edit", c.image_digest.is_not(None)]
    first = select(c.method, c.accepted, func.min(c.id)).where(*rendered, c.id.not_in(seen))
    return Reviews(
        said={name: _together(*kinds[name], reviews) for name, reviews in by_edit.items()},
        picked=frozenset(takewhile(by_edit.__contains__, to_review(session, job_id))),
        first_open={
            (method, accepted): name for method, accepted, name in session.execute(first.group_by(c.method, c.accepted))
        },
    )


def to_review(session: Session, job_id: str) -> list[str]:
    """The ids of `metrics.review`, as the report has them now; none before there is a report."""
    listed = session.scalar(select(Report.metrics["review"]).where(Report.job_id == job_id))
    return [str(name) for name in listed or ()]


def _together(method: str, accepted: bool, reviews: Iterable[Review]) -> Said:
    reviews = list(reviews)
    votes = [one.verdict == "valid" and one.edit_shown is not False for one in reviews if one.verdict != "unsure"]
    grades = [one.realism for one in reviews if one.realism is not None]
    return Said(
        method,
        accepted,
        _most(votes),
        _most([one.edit_shown for one in reviews if one.edit_shown is not None]),
        sum(grades) / len(grades) if grades else None,
    )


def _most(votes: list[bool]) -> bool | None:
    yes = sum(votes)
    return None if 2 * yes == len(votes) else 2 * yes > len(votes)


class _Drawn:
    """What was drawn by lot, as it comes."""

    def __init__(self) -> None:
        self._valid, self._source = array("b"), array("q")

    def add(self, valid: bool, source: int) -> None:
        self._valid.append(valid)
        self._source.append(source)

    def lot(self) -> Lot:
        return Lot(np.asarray(self._valid).astype(bool), np.asarray(self._source))


class _ModelColumns:
    """What people said of the accepted edits of a method, by whether one model flipped on them."""

    def __init__(self) -> None:
        self.lots: defaultdict[tuple[str, bool], _Drawn] = defaultdict(_Drawn)
        self.cells: defaultdict[Cell, tuple[Tally, Tally]] = defaultdict(lambda: (Tally(), Tally()))
        self.whole = (Tally(), Tally())

    def reviewed(self) -> Reviewed:
        return Reviewed({key: drawn.lot() for key, drawn in self.lots.items()}, self.cells, self.whole)


class ReviewedJob:
    """Takes in one source image after the other, and then says what the reviews of a job come to."""

    def __init__(self, reviews: Reviews, relation: Relation, methods: Iterable[str], models: Iterable[str]) -> None:
        self._reviews, self._relation = reviews, relation
        self._methods, self._models = list(methods), list(models)
        self._tallies = {(method, accepted): Tally() for method in self._methods for accepted in (True, False)}
        self._drawn = {key: _Drawn() for key in self._tallies}
        self._shown = {method: _Drawn() for method in self._methods}
        self._columns = {(model, method): _ModelColumns() for method in self._methods for model in self._models}

    def add(self, number: int, rows: SourceRows) -> None:
        """Take in the edits of a source image and what models said of them."""
        if not self._reviews.said:
            return
        answers = {model: rows.predictions_of(model) for model in self._models}
        for row in rows.counterfactuals:
            key = (row.method, row.accepted)
            if row.arm != "edit" or not row.rendered or key not in self._tallies:
                continue
            said, drawn = self._reviews.said.get(row.id), self._reviews.drawn(row.id)
            valid = None if said is None else said.valid
            self._tallies[key].add(valid)
            if drawn and said is not None:
                self._drawn[key].add(bool(valid), number)
                if row.accepted and said.edit_shown is not None:
                    self._shown[row.method].add(said.edit_shown, number)
            for model, given in answers.items():
                if row.accepted and row.id in given:
                    flipped = bool(given[row.id].flipped)
                    taking = self._columns[model, row.method]
                    taking.whole[flipped].add(valid)
                    labels = rows.labels(given.get(row.source_image_id), self._relation)
                    for cell in dict.fromkeys(cell for label in labels for cell in cells_of(row, label)):
                        taking.cells[cell][flipped].add(valid)
                    for factor in {"", *(change["factor"] for change in row.changes)} if drawn else ():
                        taking.lots[factor, flipped].add(bool(valid), number)

    def enough(self, method: str) -> bool:
        """Whether something can be said of the accepted edits of a method that nobody looked at."""
        return self._tallies[method, True].total > 0 and not self._reviews.missing(method)

    def reviewed(self, model: str, method: str) -> Reviewed:
        """What people said of the accepted edits of a method, as it bears on a model."""
        return self._columns[model, method].reviewed()

    def figures(self, seed: int) -> list[MethodReviews]:
        """What people said, method by method of those of which they said something; `seed` is the analysis's."""
        said = {one.method for one in self._reviews.said.values()}
        return [
            self._figures(method, derive_seed(seed, "reviews", method)) for method in self._methods if method in said
        ]

    def _figures(self, method: str, seed: int) -> MethodReviews:
        random = np.random.default_rng(seed)
        accepted, rejected = self._tallies[method, True], self._tallies[method, False]
        mine = {name: one for name, one in self._reviews.said.items() if one.method == method}
        enough = self.enough(method)
        enough_rejected = enough and self._reviews.missing(method, accepted=False) == 0 and rejected.total > 0
        valid = valid_counts(accepted, self._drawn[method, True].lot(), random)
        others = valid_counts(rejected, self._drawn[method, False].lot(), random)
        errors = check_errors(valid, accepted.total, others, rejected.total) if enough_rejected else (None, None)
        grades = [
            one.realism
            for name, one in mine.items()
            if one.accepted and one.realism is not None and self._reviews.drawn(name)
        ]
        shown = self._shown[method].lot()
        return MethodReviews(
            method=method,
            accepted=accepted.valid + accepted.invalid,
            rejected=rejected.valid + rejected.invalid,
            undecided=sum(one.valid is None for one in mine.values()),
            by_lot=len(self._drawn[method, True].lot().valid),
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


def _rate(shown: Lot) -> Rate | None:
    return clustered_rate(shown.valid, shown.source) if len(shown.valid) else None
