"""The originals are predicted first: a job whose models are all wrong on them renders nothing, and says why."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import func, select, update

from gateway.database.tables import Counterfactual, Job, Prediction, SourceImage
from gateway.model_services.clients import ModelServices
from gateway.report.markdown import report_markdown
from gateway.results.job_rows import load_rows
from gateway.results.measure import measure
from shared.media.images import decode, encode
from shared.media.label_maps import VOID
from shared.media.storage import image_key
from shared.schemas.base import ImagePayload
from shared.schemas.effects import Rate
from shared.schemas.evaluation import PredictRequest
from shared.schemas.service import SERVICES
from shared.words.verdicts import verdict_of
from tests.support.segmentation_jobs import add_job, scenes
from tests.support.small_services import CLASSES
from tests.support.work_site import Site

IMAGES = 15


def exchange_labels(site: Site, model: str, channels: int = 1, shift: int = 1) -> None:
    """Give every image of the job the class after the one that the model predicts.

    `channels`: -1 to predict on images with red and blue exchanged. `shift`: 0 for the predicted class itself.
    """
    services = ModelServices(dict.fromkeys(SERVICES, site.url), deadline=60, wait=1)
    site.clients.append(services)
    with site.sessions.begin() as session:
        for image in session.scalars(select(SourceImage)):
            pixels = decode(site.store.get(image_key(image.digest or "")))
            png = encode(np.ascontiguousarray(pixels[..., ::channels]))
            reply = services.predict(PredictRequest(model=model, images=[ImagePayload(png=png)]))
            (row,) = reply.probabilities
            assert isinstance(row, list)
            predicted = reply.classes[row.index(max(row))]
            image.ground_truth = CLASSES[(CLASSES.index(predicted) + shift) % len(CLASSES)]


def counterfactuals(site: Site) -> int:
    with site.sessions() as session:
        return session.scalar(select(func.count()).select_from(Counterfactual)) or 0


def test_a_model_that_is_never_right_gets_no_verdict_and_nothing_is_rendered(site: Site) -> None:
    """It had "✓ No weakness found in 15 tested cells"."""
    site.add_job(images=IMAGES, models=("m1",))
    exchange_labels(site, "m1")
    site.worker().step()
    assert (site.state(), counterfactuals(site)) == ("done", 0)
    assert not site.small.calls["render"]
    results = site.metrics()
    (of_model,) = results.results
    assert verdict_of(results, of_model).kind == "not testable"
    assert of_model.originals is not None
    assert isinstance(of_model.originals.right, Rate)
    assert (of_model.originals.right.count, of_model.originals.right.n) == (0, IMAGES)
    first = report_markdown(results).splitlines()[2]
    assert first.startswith("**`m1` has no verdict.")
    assert all(word in first for word in ("order of the classes", "label map")), first
    assert "No verdict" in site.report()


@pytest.mark.slow
def test_one_sound_model_is_enough_to_render(site: Site) -> None:
    site.add_job(images=IMAGES, models=("m1", "m2"))
    exchange_labels(site, "m1")
    site.worker().step()
    assert counterfactuals(site)


def test_a_refusal_is_stored_and_the_report_repeats_it(site: Site) -> None:
    """The worker judged a sample and the report all originals: they could contradict each other."""
    site.add_job(images=IMAGES, models=("m1",))
    exchange_labels(site, "m1")
    site.worker().step()
    with site.sessions.begin() as session:
        refused = session.get_one(Job, "job").stored_spec.refused["m1"]
        session.execute(
            update(SourceImage)
            .values(ground_truth=Prediction.predicted)
            .where(Prediction.source_image_id == SourceImage.id)
        )
        assert measure(load_rows(session, "job")).results[0].originals == refused
    assert refused.standing == "unsound"


@pytest.mark.slow
def test_a_model_that_gets_blue_for_red_is_told_so(site: Site) -> None:
    """It was right on 82 % instead of 98 %, and nothing said why."""
    site.add_job(images=IMAGES, models=("m1",))
    exchange_labels(site, "m1", channels=-1, shift=0)
    site.worker().step()
    (of_model,) = site.metrics().results
    assert of_model.originals is not None
    assert "red and blue exchanged" in of_model.originals.sentence
    assert "100% instead of" in of_model.originals.sentence


def test_a_segmenter_with_exchanged_class_ids_gets_no_verdict_and_nothing_is_rendered(site: Site) -> None:
    """Its masks were compared pixel by pixel, and it had no weakness."""
    ids = np.full(256, VOID, np.uint8)
    ids[:3] = [1, 2, 0]
    add_job(site, "job", [(image, None if mask is None else ids[mask]) for image, mask in scenes(IMAGES)])
    site.worker().step()
    assert (site.state(), counterfactuals(site)) == ("done", 0)
    results = site.metrics()
    (of_model,) = results.results
    assert verdict_of(results, of_model).kind == "not testable"
    first = report_markdown(results).splitlines()[2]
    assert all(word in first for word in ("class ids", "order of the classes", "exchanged")), first
