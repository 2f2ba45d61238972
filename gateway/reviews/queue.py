"""The next edit to review: first a sample of each finding's changed images, then the most informative failures.

The latter are mixed with a random sample of accepted and rejected edits: a seed decides which of the three comes next,
so that the order does not reveal the checks' verdict on an image.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.analysis.reviews import LEAST_REJECTED
from gateway.database.tables import Counterfactual, Job, Review
from gateway.methods import METHODS
from gateway.results.reviewed_edits import first_to_review, load_reviews, review_list
from shared.seeds import derive_seed

REVIEWABLE_SHARE = 0.1  # share of the rejected edits whose images are kept for review
_TURNS: tuple[Literal["failure", "accepted", "rejected"], ...] = (
    "failure",
    "accepted",
    "failure",
    "accepted",
    "rejected",
)


class NextUp(NamedTuple):
    """The next edit for a reviewer (None if none is left), and the edit that they reviewed last.

    `reviewed`: the number of edits that they have reviewed. `missing`: the number of randomly sampled edits that still
    need a decided review, so that the report can estimate the validity of unreviewed edits.
    """

    counterfactual: str | None
    before: str | None
    reviewed: int
    missing: int


def next_up(session: Session, job: Job, reviewer: str) -> NextUp:
    """The next edit for a reviewer. They get an edit twice only if a finding rests on it and they saw it alone."""
    c = Counterfactual
    own_reviews = (Review.job_id == job.id, Review.reviewer == reviewer)
    rows = select(Review.counterfactual_id, Review.arm_shown).where(*own_reviews).order_by(Review.reviewed_at)
    with_arm = {row.counterfactual_id: row.arm_shown for row in session.execute(rows)}
    reviewed = list(with_arm)
    methods = [method.name for method in job.methods if METHODS[method.name].checked]
    edits = [c.job_id == job.id, c.arm == "edit", c.image_digest.is_not(None), c.method.in_(methods)]
    reviewed_ids = set(reviewed)
    unreviewed = c.id.not_in(select(Review.counterfactual_id).where(*own_reviews))
    rejected = session.scalar(select(func.count()).where(*edits, c.accepted.is_(False))) or 0
    reviewable = select(c.id).where(*edits, c.accepted.is_(False)).order_by(c.id)
    reviewable = reviewable.limit(max(LEAST_REJECTED, math.ceil(REVIEWABLE_SHARE * rejected)))
    candidates = {
        "failure": next((name for name in review_list(session, job.id) if name not in reviewed_ids), None),
        "accepted": session.scalar(select(c.id).where(*edits, c.accepted, unreviewed).order_by(c.id).limit(1)),
        "rejected": next((name for name in session.scalars(reviewable) if name not in reviewed_ids), None),
    }
    turn = _TURNS[derive_seed("review", job.id, reviewer, len(reviewed)) % len(_TURNS)]
    first = next((name for name in first_to_review(session, job.id) if not with_arm.get(name)), None)
    by_preference = [first, candidates[turn], *candidates.values()]
    reviews = load_reviews(session, job.id)
    return NextUp(
        counterfactual=next((name for name in by_preference if name is not None), None),
        before=reviewed[-1] if reviewed else None,
        reviewed=len(reviewed),
        missing=sum(reviews.missing(method, accepted) for method in methods for accepted in (True, False)),
    )
