"""What a person reviews next: the most informative failures, mixed with a random sample of accepted and rejected edits.

A seed decides which of the three comes next, so that the order does not reveal the checks' verdict on an image.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.analysis.reviews import LEAST_REJECTED
from gateway.database.tables import Counterfactual, Job, Review
from gateway.methods import METHODS
from gateway.results.reviewed_edits import load_reviews, to_review
from shared.seeds import derive_seed

KEPT = 0.1  # of the rejected edits is kept for review, and at least as many as are needed
_TURNS: tuple[Literal["failure", "accepted", "rejected"], ...] = (
    "failure",
    "accepted",
    "failure",
    "accepted",
    "rejected",
)


class NextUp(NamedTuple):
    """The next edit for a reviewer, None when there is none left, and the one that they reviewed last.

    `reviewed`: how many they have reviewed. `missing`: how many more randomly sampled edits need a decided review until
    the report can estimate the validity of those that nobody reviewed.
    """

    counterfactual: str | None
    before: str | None
    reviewed: int
    missing: int


def next_up(session: Session, job: Job, reviewer: str) -> NextUp:
    """What a reviewer reviews next; never the same edit twice."""
    c = Counterfactual
    mine = (Review.job_id == job.id, Review.reviewer == reviewer)
    reviewed = list(session.scalars(select(Review.counterfactual_id).where(*mine).order_by(Review.reviewed_at)))
    methods = [method.name for method in job.methods if METHODS[method.name].checked]
    edits = [c.job_id == job.id, c.arm == "edit", c.image_digest.is_not(None), c.method.in_(methods)]
    new = c.id.not_in(select(Review.counterfactual_id).where(*mine))
    already = set(reviewed)
    rejected = session.scalar(select(func.count()).where(*edits, c.accepted.is_(False))) or 0
    kept = select(c.id).where(*edits, c.accepted.is_(False)).order_by(c.id)
    kept = kept.limit(max(LEAST_REJECTED, math.ceil(KEPT * rejected)))
    candidates = {
        "failure": next((name for name in to_review(session, job.id) if name not in already), None),
        "accepted": session.scalar(select(c.id).where(*edits, c.accepted, new).order_by(c.id).limit(1)),
        "rejected": next((name for name in session.scalars(kept) if name not in already), None),
    }
    turn = _TURNS[derive_seed("review", job.id, reviewer, len(reviewed)) % len(_TURNS)]
    following = [candidates[turn], *candidates.values()]
    reviews = load_reviews(session, job.id)
    return NextUp(
        counterfactual=next((name for name in following if name is not None), None),
        before=reviewed[-1] if reviewed else None,
        reviewed=len(reviewed),
        missing=sum(reviews.missing(method, accepted) for method in methods for accepted in (True, False)),
    )
