"""Raters: their invitations, the items of each, and the token in the link that shows who rates.

A token has 256 random bits and is stored as SHA-256, like an API key. It begins like one, so that logs mask it.
"""

from __future__ import annotations

import secrets
import uuid
from collections import Counter
from typing import NamedTuple

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from gateway.auth.keys import PREFIX, hash_of
from gateway.auth.middleware import RATE_PATH
from gateway.auth.rate_limits import MINUTE, is_within, moved_ahead
from gateway.database.tables import Job, Study, StudyItem, StudyRater
from gateway.studies.ratings import count_usable, load_scores
from gateway.studies.studies import find
from shared.problems import InvalidInput, NotFound, Overloaded
from shared.schemas.studies import Invitation, InvitationsReply
from shared.seeds import derive_seed

MAX_RATERS = 5_000  # of one study


class Invited(NamedTuple):
    """A rater who came by a link, and their study."""

    rater: StudyRater
    study: Study


def invite(session: Session, owner: str, study_id: str, count: int) -> InvitationsReply:
    """Invite raters. Each gets the edits with the fewest answers and invitations, the control items, in random order.

    Answers and invitations of excluded raters do not count. Raises NotFound, and InvalidInput for too many raters.
    """
    study = find(session, owner, study_id)
    raters = session.scalars(select(StudyRater).where(StudyRater.study_id == study_id)).all()
    if len(raters) + count > MAX_RATERS:
        raise InvalidInput(f"a study has at most {MAX_RATERS:,} raters, and this one has {len(raters):,}")
    items = session.execute(select(StudyItem.id, StudyItem.kind).where(StudyItem.study_id == study_id)).all()
    edits = [row.id for row in items if row.kind == "edit"]
    checks = [row.id for row in items if row.kind != "edit"]
    scores = load_scores(session, study)
    answered = count_usable(session, study, scores)
    assigned = Counter(item for rater in raters if not scores[rater.id].failed for item in rater.items)
    invitations = []
    for _ in range(count):
        rater_id, token = uuid.uuid4().hex, f"{PREFIX}rate_{secrets.token_urlsafe(32)}"
        rank = {item: (answered[item].total(), assigned[item], derive_seed("turn", rater_id, item)) for item in edits}
        chosen = sorted(edits, key=lambda item: rank[item])[: study.request.items_per_rater]
        assigned.update(chosen)
        order = sorted([*chosen, *checks], key=lambda item: derive_seed("order", rater_id, item))
        session.add(StudyRater(id=rater_id, study_id=study_id, token_hash=hash_of(token), items=order))
        invitations.append(Invitation(rater=rater_id, link=f"{RATE_PATH}{token}", items=len(order)))
    return InvitationsReply(invitations=invitations)


def admit(session: Session, token: str, per_minute: int) -> Invited:
    """The rater with this token; counts a request. Raises NotFound, and Overloaded if they send too many."""
    r = StudyRater
    until = moved_ahead(r.requests_until, MINUTE / per_minute)
    has_token = r.token_hash == hash_of(token)
    counted = update(r).where(has_token, is_within(until, MINUTE)).values(requests_until=until).returning(r.id)
    rater_id = session.scalar(counted.execution_options(synchronize_session=False))
    if rater_id is None and session.scalar(select(r.id).where(has_token)) is not None:
        raise Overloaded(
            f"more than {per_minute:,} requests a minute came from this link; wait a moment", retry_after=1
        )
    raters = select(StudyRater, Study).join(Study, r.study_id == Study.id).join(Job, Study.job_id == Job.id)
    row = session.execute(raters.where(r.id == rater_id, Job.deleted_at.is_(None))).one_or_none()
    if row is None:
        raise NotFound("this link is not valid, or its study was deleted; ask the person who sent it")
    return Invited(*row)
