"""Findings beside the job's own images that show their value, which the tiny profile's trained scorer chooses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import func, select, update

from embedded.serving import ListeningPort
from evaluator_service.app import create_app
from gateway.database.sessions import Sessions
from gateway.database.tables import LOCAL_OWNER, Counterfactual, RecordedCall, SourceImage
from gateway.model_services.clients import ModelServices
from gateway.model_services.recorded import ImageShelf, RecordedServices
from gateway.model_services.recorded_embeddings import recorded_embeddings
from gateway.report.build import write_report
from gateway.worker.corroboration_step import corroborated
from shared.profiles import load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.estimates import Corroboration
from shared.schemas.evaluation import EmbedRequest
from shared.schemas.results import CellEffect, JobResults
from shared.schemas.service import SERVICES
from shared.storage import DirectoryStore
from tests.support.databases import ON_SQLITE
from tests.support.drawn_job import add_drawn_job, add_night_buses
from tests.support.service_settings import settings
from tests.support.small_profile import NOWHERE, write_profile

pytestmark = ON_SQLITE


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServices]:
    """The evaluator with the trained scorer."""
    profile = write_profile(tmp_path_factory.mktemp("profile"))
    trained = load_profile("tiny").evaluator.scorer.path
    profile.write_text(profile.read_text().replace('path = "scorer"', f'path = "{Path(str(trained)).resolve()}"'))
    port = ListeningPort()
    port.serve(create_app(settings(profile)))
    services = ModelServices({"evaluator_service": port.base_url})
    yield services
    services.close()
    port.close()


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def build(sessions: Sessions, store: DirectoryStore, services: ModelServices) -> JobResults:
    return write_report(
        sessions, store, "drawn", "reports/page.html", [], corroborate=partial(corroborated, sessions, store, services)
    )


def night_buses(results: JobResults) -> tuple[CellEffect, Corroboration]:
    finding = next(effect for figures in results.results for effect in figures.findings)
    assert (finding.cell.label, finding.cell.value, finding.cell.direction) == ("bus", "night", "to")
    assert finding.corroboration is not None
    return finding, finding.corroboration


def test_own_images_with_the_value_stand_beside_the_finding(
    sessions: Sessions, store: DirectoryStore, services: ModelServices
) -> None:
    add_drawn_job(sessions, store, per_class=16)
    nights = add_night_buses(sessions, store, 12)
    finding, own = night_buses(build(sessions, store, services))
    assert "day" in own.others
    assert own.showing.n + own.rest.n == 28
    shown = {image.id for image in own.images}
    assert len(shown & set(nights)) >= 8
    assert len(shown - set(nights)) <= 3
    assert own.showing.value is not None
    assert own.rest.value is not None
    assert own.difference == pytest.approx(own.showing.value - own.rest.value)
    assert own.difference < -0.4
    assert own.interval is not None
    assert own.interval.high < 0
    assert "own images" in finding.sentence
    probabilities = [image.probability for image in own.images]
    assert probabilities == sorted(probabilities, reverse=True)
    page = store.get("reports/page.html").decode()
    assert 'id="own"' in page
    assert f'alt="{own.images[0].file_name}"' in page


def test_a_report_built_again_calls_the_scorer_no_more(
    sessions: Sessions, store: DirectoryStore, services: ModelServices
) -> None:
    add_drawn_job(sessions, store, per_class=14)
    add_night_buses(sessions, store, 2)
    first = build(sessions, store, services)
    page = store.get("reports/page.html")
    with sessions() as session:
        calls = session.scalar(select(func.count()).select_from(RecordedCall))
    assert calls == 1 + 14 + 2
    assert build(sessions, store, services) == first
    assert store.get("reports/page.html") == page
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(RecordedCall)) == calls


def test_embeddings_that_the_checks_recorded_are_read(
    sessions: Sessions, store: DirectoryStore, services: ModelServices
) -> None:
    add_drawn_job(sessions, store, per_class=1)
    with sessions() as session:
        images = select(SourceImage.digest, Counterfactual.image_digest).join(Counterfactual)
        source, edited = session.execute(images.where(Counterfactual.image_digest.is_not(None))).first() or ("", "")
    shelf = ImageShelf(store, sessions, LOCAL_OWNER)
    recorded = RecordedServices(services, sessions, shelf, LOCAL_OWNER, source_digest=source)
    payloads = [ImagePayload(png=shelf.load(digest)) for digest in (source, edited)]
    reply = recorded.embed(EmbedRequest(images=payloads, texts=["a bus"]))
    recorded.embed(EmbedRequest(texts=["a car"]))
    revision = services.revision("evaluator_service")
    vectors = recorded_embeddings(sessions, store, LOCAL_OWNER, [source, "0" * 64], revision)
    assert list(vectors) == [source]
    assert np.array_equal(vectors[source], reply.images[0])
    assert recorded_embeddings(sessions, store, LOCAL_OWNER, [source], "another revision") == {}
    assert recorded_embeddings(sessions, store, "another owner", [source], revision) == {}


def test_without_captions_of_another_value_there_is_nothing_to_compare(
    sessions: Sessions, store: DirectoryStore, services: ModelServices
) -> None:
    add_drawn_job(sessions, store, per_class=14)
    with sessions.begin() as session:
        session.execute(update(Counterfactual).values(caption=""))
    results = build(sessions, store, services)
    finding = next(effect for figures in results.results for effect in figures.findings)
    assert (finding.corroboration, results.not_corroborated) == (None, "")
    assert 'id="own"' not in store.get("reports/page.html").decode()


def test_a_report_does_not_wait_for_an_unreachable_scorer(sessions: Sessions, store: DirectoryStore) -> None:
    add_drawn_job(sessions, store, per_class=14)
    nowhere = ModelServices(dict.fromkeys(SERVICES, NOWHERE), wait=0.1)
    results = build(sessions, store, nowhere)
    nowhere.close()
    assert "evaluator_service" in results.not_corroborated
    assert all(effect.corroboration is None for figures in results.results for effect in figures.findings)
    assert "could not be called" in store.get("reports/page.html").decode()
