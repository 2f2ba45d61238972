"""The links of raters: their limits, and a study that is deleted while a rater answers."""

from __future__ import annotations

import pytest
from sqlalchemy import select, text

from gateway.auth.keys import hash_of
from gateway.database.sessions import Sessions
from gateway.database.tables import LOCAL_OWNER, Answer, Study, StudyRater
from gateway.feedback import studies
from gateway.feedback.answers import store_answer
from gateway.feedback.raters import admit
from gateway.feedback.ratings import sync_reviews
from shared.problems import Overloaded
from shared.schemas.studies import StudyRequest
from tests.support.databases import ON_SQLITE
from tests.support.rows import add_job
from tests.support.threads import background
from tests.support.work_site import wait_for


def add_study(sessions: Sessions) -> None:
    """A study `study` whose raters `one` and `two` have their names as tokens."""
    add_job(sessions, "job", 0)
    with sessions.begin() as session:
        session.add(Study(id="study", job_id="job", request=StudyRequest()))
        session.flush()
        for name in ("one", "two"):
            session.add(StudyRater(id=name, study_id="study", token_hash=hash_of(name), items=[]))


@ON_SQLITE
def test_requests_of_a_link_use_up_its_limit_and_no_other(sessions: Sessions) -> None:
    add_study(sessions)
    for _ in range(2):
        with sessions.begin() as session:
            assert admit(session, "one", per_minute=2).rater.id == "one"
    with sessions.begin() as session, pytest.raises(Overloaded):
        admit(session, "one", per_minute=2)
    with sessions.begin() as session:
        assert admit(session, "two", per_minute=2).rater.id == "two"


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_study_is_deleted_while_a_rater_answers(sessions: Sessions) -> None:
    add_study(sessions)
    session = sessions()

    def remove() -> None:
        with sessions.begin() as other:
            studies.remove(other, LOCAL_OWNER, "study")

    def is_waiting() -> bool:
        with sessions() as other:
            return bool(other.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")))

    study = admit(session, "one", per_minute=9).study
    with background(remove, release=session.close):
        wait_for(is_waiting)
        store_answer(session, "job", "rating", "item", "one", {"label_kept": "yes"}, "study")
        sync_reviews(session, study)
        session.commit()
    with sessions() as session:
        assert session.scalars(select(Study)).all() == []
        assert session.scalars(select(Answer)).all() == []
