"""The sample of a job's own images."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from gateway.database.sessions import Sessions
from gateway.database.tables import SourceImage
from gateway.results import own_images
from tests.support.databases import ON_SQLITE
from tests.support.figures import effect, job_results, results
from tests.support.rows import add_job


@ON_SQLITE
def test_a_large_class_is_sampled_and_counted(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_images, "_captions", lambda *_: {"night": ["at night"], "day": ["by day"]})
    add_job(sessions, "job", 9)
    with sessions.begin() as session:
        for image in session.scalars(select(SourceImage)):
            image.state, image.ground_truth = "done", "car" if image.position in (7, 8) else "bus"
    weak = [effect("night", -50, label).model_copy(update={"standing": "weakness"}) for label in ("bus", "car")]
    with sessions() as session:
        images = own_images.load_own_images(session, "job", job_results(results("dillema", *weak)), most=3)
    assert images is not None
    assert images.sampled_of == {"bus": 7}
    assert sorted(image.label for image in images.photographs) == ["bus"] * 3 + ["car"] * 2
