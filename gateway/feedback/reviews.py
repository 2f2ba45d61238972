"""People's reviews of counterfactuals: stored, pooled by edit, and which edit comes next.

Edits are sampled in the order of their ids. Ids are digests, so this order is random. The random sample of a method
consists of the reviewed edits whose ids precede the first unreviewed one; accepted and rejected edits have separate
samples. Failures prioritised for review (the leading ones of the review list) are excluded.

A reviewer first gets a sample of each finding's changed images, then the most informative failures. These are mixed
with a random sample of accepted and rejected edits: a seed decides which of the three comes next, so that the order
does not reveal the checks' verdict on an image.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Literal, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.analysis.reviews import LEAST_ACCEPTED, LEAST_REJECTED
from gateway.database.pagination import SortKey, page_of
from gateway.database.tables import Answer, Counterfactual, Job, Report
from gateway.feedback.answers import Turn, is_answer, store_answer
from gateway.jobs import jobs
from gateway.methods import METHODS
from shared.problems import InvalidInput
from shared.schemas.results import FAILURE_MODES, FailureMode
from shared.schemas.reviews import ReviewRequest, ReviewsPage, ReviewView
from shared.seeds import derive_seed

REVIEWABLE_SHARE = 0.1  # share of the rejected edits whose images are kept for review
_TURNS: tuple[Literal["failure", "accepted", "rejected"], ...] = (
    "failure",
    "accepted",
    "failure",
    "accepted",
    "rejected",
)


def record(
    session: Session, owner: str, reviewer: str, job_id: str, counterfactual_id: str, review: ReviewRequest
) -> ReviewView:
    """Store a reviewer's review of a counterfactual. Replaces their earlier review.

    Raises NotFound, and InvalidInput for an edit without an image.
    """
    edit = jobs.find_edit(session, owner, job_id, counterfactual_id)
    if edit.image_digest is None:
        raise InvalidInput(f"the check {edit.check!r} rejected this edit before rendering, so it has no image")
    return _view(store_answer(session, job_id, "review", counterfactual_id, reviewer, review.model_dump()))


def review_of(session: Session, job_id: str, reviewer: str, counterfactual_id: str) -> ReviewView | None:
    """One reviewer's review of a counterfactual."""
    row = session.get(Answer, (job_id, "review", counterfactual_id, reviewer))
    return None if row is None else _view(row)


def listing(session: Session, owner: str, job_id: str, cursor: str | None, limit: int) -> ReviewsPage:
    """A page of a job's reviews, newest first. Raises NotFound."""
    jobs.find(session, owner, job_id)
    order: SortKey = {Answer.answered_at: datetime, Answer.item: str, Answer.author: str}
    query = select(Answer).where(is_answer(job_id, "review"))
    rows, next_cursor = page_of(session, query, order, cursor, limit, descending=True)
    return ReviewsPage(reviews=[_view(row) for row in rows], next=next_cursor)


def _view(row: Answer) -> ReviewView:
    about = {"counterfactual": row.item, "reviewer": row.author, "reviewed_at": row.answered_at}
    return ReviewView.model_validate({**row.content, **about})


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
    by_edit: defaultdict[str, list[ReviewRequest]] = defaultdict(list)
    kinds: dict[str, tuple[str, bool]] = {}
    rows = select(c.id, c.method, c.accepted, Answer.content).join(Answer, Answer.item == c.id)
    for name, method, accepted, content in session.execute(rows.where(is_answer(job_id, "review"))):
        by_edit[name].append(ReviewRequest.model_validate(content))
        kinds[name] = (method, accepted)
    reviewed = select(Answer.item).where(is_answer(job_id, "review"))
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


def open_samples(session: Session, job_id: str, reviewer: str) -> list[str]:
    """The images of the findings' samples that a reviewer has not judged beside their arms, in the order of review."""
    rows = session.scalars(select(Answer).where(is_answer(job_id, "review"), Answer.author == reviewer))
    with_arm = {row.item for row in rows if row.content["arm_shown"]}
    return [name for name in first_to_review(session, job_id) if name not in with_arm]


def pool(method: str, accepted: bool, reviews: Sequence[ReviewRequest]) -> PooledReview:
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


def next_up(session: Session, job: Job, reviewer: str) -> Turn[str]:
    """The next edit for a reviewer. They get an edit twice only if a finding rests on it and they saw it alone.

    It takes the randomly sampled edits that still need a decided review until the report can estimate the validity of
    unreviewed edits.
    """
    c = Counterfactual
    own_reviews = (is_answer(job.id, "review"), Answer.author == reviewer)
    reviewed = list(session.scalars(select(Answer.item).where(*own_reviews).order_by(Answer.answered_at)))
    methods = [method.name for method in job.methods if METHODS[method.name].checked]
    edits = [c.job_id == job.id, c.arm == "edit", c.image_digest.is_not(None), c.method.in_(methods)]
    reviewed_ids = set(reviewed)
    unreviewed = c.id.not_in(select(Answer.item).where(*own_reviews))
    rejected = session.scalar(select(func.count()).where(*edits, c.accepted.is_(False))) or 0
    reviewable = select(c.id).where(*edits, c.accepted.is_(False)).order_by(c.id)
    reviewable = reviewable.limit(max(LEAST_REJECTED, math.ceil(REVIEWABLE_SHARE * rejected)))
    candidates = {
        "failure": next((name for name in review_list(session, job.id) if name not in reviewed_ids), None),
        "accepted": session.scalar(select(c.id).where(*edits, c.accepted, unreviewed).order_by(c.id).limit(1)),
        "rejected": next((name for name in session.scalars(reviewable) if name not in reviewed_ids), None),
    }
    choice = _TURNS[derive_seed("review", job.id, reviewer, len(reviewed)) % len(_TURNS)]
    first = next(iter(open_samples(session, job.id, reviewer)), None)
    by_preference = [first, candidates[choice], *candidates.values()]
    reviews = load_reviews(session, job.id)
    missing = sum(reviews.missing(method, accepted) for method in methods for accepted in (True, False))
    following = next((name for name in by_preference if name is not None), None)
    return Turn(following, reviewed[-1] if reviewed else None, len(reviewed), len(reviewed) + missing)
