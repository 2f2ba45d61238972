"""The links of raters."""

from __future__ import annotations

import pytest

from gateway.auth.keys import hash_of
from gateway.database.sessions import Sessions
from gateway.database.tables import Study, StudyRater
from gateway.feedback.raters import admit
from shared.problems import Overloaded
from shared.schemas.studies import StudyRequest
from tests.support.databases import ON_SQLITE
from tests.support.rows import add_job


@ON_SQLITE
def test_requests_of_a_link_use_up_its_limit_and_no_other(sessions: Sessions) -> None:
    add_job(sessions, "job", 0)
    with sessions.begin() as session:
        session.add(Study(id="study", job_id="job", request=StudyRequest()))
        session.flush()
        for name in ("one", "two"):
            session.add(StudyRater(id=name, study_id="study", token_hash=hash_of(name), items=[]))
    for _ in range(2):
        with sessions.begin() as session:
            assert admit(session, "one", per_minute=2).rater.id == "one"
    with sessions.begin() as session, pytest.raises(Overloaded):
        admit(session, "one", per_minute=2)
    with sessions.begin() as session:
        assert admit(session, "two", per_minute=2).rater.id == "two"
