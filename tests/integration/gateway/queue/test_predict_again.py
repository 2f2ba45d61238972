"""Predicting again for a finished job: which images are taken up, and what a worker makes of them."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, select, update

from gateway.database.tables import Counterfactual, Job, Prediction, SourceImage
from gateway.queue import job_states
from tests.support.work_site import Site


def finish(site: Site) -> None:
    """Work until nothing is left."""
    worker = site.worker()
    while site.state() == "running":
        worker.step()


def add(site: Site, *models: str) -> int | None:
    with site.sessions.begin() as session:
        count = job_states.predict_again(session, "job")
        session.execute(update(Job).values(models=["m1", *models]))
        return count


@pytest.mark.slow
def test_only_missing_predictions_are_made_even_if_the_weights_have_changed(site: Site) -> None:
    site.add_job(models=("m1",))
    assert add(site) is None, "not while it runs"
    finish(site)
    with site.sessions.begin() as session:
        failed = session.scalars(select(SourceImage).where(SourceImage.position == 2)).one()
        failed.state, failed.generated = "failed", False
        session.execute(delete(Prediction).where(Prediction.source_image_id == failed.id))
        session.execute(delete(Counterfactual).where(Counterfactual.source_image_id == failed.id))
        session.execute(update(Prediction).values(probability=0.125))  # so that a second writing of it would show
    counterfactuals, _ = site.results()
    site.small.calls.clear()
    site.small.revision = "2"  # what was recorded is not found any more
    assert add(site, "m2") == 2
    assert [image.state for image in site.images()] == ["pending", "pending", "failed"]
    finish(site)
    assert set(site.small.calls) == {"predict", "embed"}, "nothing was captioned or rendered; KID needs new embeddings"
    assert site.results()[0] == counterfactuals
    with site.sessions() as session:
        rendered = session.scalars(select(Counterfactual.id).where(Counterfactual.position < 2)).all()
        predictions = session.scalars(select(Prediction).where(Prediction.model == "m2")).all()
        assert {row.counterfactual_id for row in predictions} == {None, *rendered}
        kept = session.scalars(select(Prediction.probability).where(Prediction.model == "m1"))
        assert set(kept) == {0.125}
        assert all((row.flipped is None) == (row.counterfactual_id is None) for row in predictions)
    assert site.state() == "done"


@pytest.mark.slow
def test_a_model_that_was_deleted_fails_its_images_by_name_and_keeps_what_was_found(site: Site) -> None:
    site.add_job(models=("m1",))
    finish(site)
    with site.sessions.begin() as session:
        job_states.predict_again(session, "job")
        session.execute(update(Job).values(models=["m1", "gone"], uploaded_models={"gone": "a" * 64}))
    while site.state() == "running":
        with site.sessions.begin() as session:
            session.execute(update(SourceImage).values(not_before=None))
        site.worker().step()
    assert {image.state for image in site.images()} == {"failed"}
    assert "'gone'" in site.images()[0].failure
    with site.sessions() as session:
        assert set(session.scalars(select(Prediction.model))) == {"m1"}
