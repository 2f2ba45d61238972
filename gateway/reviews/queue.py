"""What a person is shown next: failures that tell most, mixed with accepted and rejected edits drawn by lot.

Which of the three it is follows from a seed, so that nobody can tell by its turn what the checks said of a picture.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.analysis.reviews import LEAST_REJECTED
from gateway.database.tables import Counterfactual, Job, Review
from gateway.methods import METHODS
from gateway.reviews.rows import load_reviews, to_review
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
    """The next picture for a reviewer, None when there is none left, and the one that they reviewed last.

    `reviewed`: how many they have reviewed. `missing`: how many decided reviews it takes, by lot, of accepted and
    rejected edits of all methods, until the report says something of the pictures that nobody looked at.
    """

    counterfactual: str | None
    before: str | None
    reviewed: int
    missing: int


def next_up(session: Session, job: Job, reviewer: str) -> NextUp:
    """What a reviewer looks at next, never twice at the same."""
    c = Counterfactual
    mine = (Review.job_id == job.id, Review.reviewer == reviewer)
    said = list(session.scalars(select(Review.counterfactual_id).where(*mine).order_by(Review.reviewed_at)))
    methods = [method.name for method in job.methods if METHODS[method.name].checked]
    edits = [c.job_id == job.id, c.arm == "edit", c.image_digest.is_not(None), c.method.in_(methods)]
    new = c.id.not_in(select(Review.counterfactual_id).where(*mine))
    seen = set(said)
    rejected = session.scalar(select(func.count()).where(*edits, c.accepted.is_(False))) or 0
    kept = select(c.id).where(*edits, c.accepted.is_(False)).order_by(c.id)
    kept = kept.limit(max(LEAST_REJECTED, math.ceil(KEPT * rejected)))
    candidates = {
        "failure": next((name for name in to_review(session, job.id) if name not in seen), None),
        "accepted": session.scalar(select(c.id).where(*edits, c.accepted, new).order_by(c.id).limit(1)),
        "rejected": next((name for name in session.scalars(kept) if name not in seen), None),
    }
    turn = _TURNS[derive_seed("review", job.id, reviewer, len(said)) % len(_TURNS)]
    following = [candidates[turn], *candidates.values()]
    reviews = load_reviews(session, job.id)
    return NextUp(
        counterfactual=next((name for name in following if name is not None), None),
        before=said[-1] if said else None,
        reviewed=len(said),
        missing=sum(reviews.missing(method, accepted) for method in methods for accepted in (True, False)),
    )
