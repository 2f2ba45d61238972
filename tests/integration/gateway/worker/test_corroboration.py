"""Findings beside the job's own images that show their value, which the tiny profile's trained scorer chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select, update

from evaluator_service.app import create_app
from gateway.database.tables import LOCAL_OWNER, Counterfactual, SourceImage
from gateway.jobs import jobs
from gateway.model_services.clients import Cancelled, ModelServices
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.model_services.vectors import recorded_embeddings
from gateway.report.build import write_report
from gateway.results.job_rows import JobRows
from gateway.worker.corroboration_step import corroborate
from shared.profiles.profile import load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.effects import CellEffect, Corroboration
from shared.schemas.evaluation import EmbedRequest
from shared.schemas.results import JobResults
from shared.schemas.service import SERVICES
from tests.support.databases import ON_SQLITE
from tests.support.drawn_job import add_drawn_job, add_night_buses
from tests.support.listening import listen_as
from tests.support.service_settings import settings
from tests.support.small_profile import NOWHERE, write_profile
from tests.support.work_site import Site

pytestmark = ON_SQLITE


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServices]:
    """The evaluator with the trained scorer."""
    profile = write_profile(tmp_path_factory.mktemp("profile"))
    trained = load_profile("tiny").evaluator.scorer.path
    profile.write_text(profile.read_text().replace('path = "scorer"', f'path = "{Path(str(trained)).resolve()}"'))
    with listen_as("evaluator_service", create_app(settings(profile))) as services:
        yield services


def build(site: Site, services: ModelServices) -> JobResults:
    return build_with(site, partial(corroborate, site.sessions, site.store, services))


def build_with(site: Site, add: Callable[[JobResults], JobResults]) -> JobResults:
    def complete(_: JobRows, results: JobResults) -> JobResults:
        return add(results)

    return write_report(site.sessions, site.store, "drawn", "reports/page.html", [], complete=complete)


def night_buses(results: JobResults) -> tuple[CellEffect, Corroboration]:
    finding = next(effect for figures in results.results for effect in figures.findings)
    assert (finding.cell.label, finding.cell.value, finding.cell.direction) == ("bus", "night", "to")
    assert finding.corroboration is not None
    return finding, finding.corroboration


@pytest.mark.slow
def test_own_images_with_the_value_stand_beside_the_finding(site: Site, services: ModelServices) -> None:
    add_drawn_job(site.sessions, site.store, per_class=16)
    nights = add_night_buses(site.sessions, site.store, 12)
    finding, corroboration = night_buses(build(site, services))
    assert "day" in corroboration.others
    assert (corroboration.showing.n + corroboration.rest.n, corroboration.sampled_of) == (28, None)
    shown = {image.id for image in corroboration.images}
    assert len(shown & set(nights)) >= 8
    assert len(shown - set(nights)) <= 3
    assert corroboration.showing.value is not None
    assert corroboration.rest.value is not None
    difference = corroboration.showing.value - corroboration.rest.value
    assert corroboration.difference == pytest.approx(difference)
    assert difference < -0.4
    assert corroboration.interval is not None
    assert corroboration.interval.high < 0
    assert "own images" in finding.details
    probabilities = [image.probability for image in corroboration.images]
    assert probabilities == sorted(probabilities, reverse=True)
    page = site.store.get("reports/page.html").decode()
    assert 'id="own"' in page
    assert f'alt="{corroboration.images[0].file_name}"' in page


@pytest.mark.slow
def test_a_report_built_again_calls_the_scorer_no_more(site: Site, services: ModelServices) -> None:
    add_drawn_job(site.sessions, site.store, per_class=14)
    add_night_buses(site.sessions, site.store, 2)
    first = build(site, services)
    page = site.store.get("reports/page.html")
    calls = site.recorded_calls()
    assert calls == 1 + 14 + 2
    assert build(site, services) == first
    assert site.store.get("reports/page.html") == page
    assert site.recorded_calls() == calls


def test_embeddings_that_the_checks_recorded_are_read(site: Site, services: ModelServices) -> None:
    add_drawn_job(site.sessions, site.store, per_class=1)
    with site.sessions() as session:
        source = session.scalars(select(SourceImage.digest)).first()
        edited = session.scalars(select(Counterfactual.image_digest).where(Counterfactual.accepted)).first()
    assert source is not None
    assert edited is not None
    shelf = ImageShelf(site.store, site.sessions, LOCAL_OWNER)
    recorded = RecordedServices(services, site.sessions, shelf, LOCAL_OWNER, source_digest=source)
    payloads = [ImagePayload(png=shelf.load(digest)) for digest in (source, edited)]
    reply = recorded.embed(EmbedRequest(images=payloads, texts=["a bus"]))
    recorded.embed(EmbedRequest(texts=["a car"]))
    revision = services.revision("evaluator_service")
    vectors = recorded_embeddings(site.sessions, site.store, LOCAL_OWNER, [source, "0" * 64], revision)
    assert list(vectors) == [source]
    assert np.array_equal(vectors[source], reply.images[0])
    assert recorded_embeddings(site.sessions, site.store, LOCAL_OWNER, [source], "another revision") == {}
    assert recorded_embeddings(site.sessions, site.store, "another owner", [source], revision) == {}


@pytest.mark.slow
def test_the_worker_compares_when_it_analyses(site: Site) -> None:
    """The small services embed all images and texts alike, so every image shows the first value."""
    add_drawn_job(site.sessions, site.store, per_class=14)
    with site.sessions.begin() as session:
        jobs.rebuild_report(session, LOCAL_OWNER, "drawn")
    site.worker().step()
    _, corroboration = night_buses(site.metrics("drawn"))
    assert (corroboration.showing.n, corroboration.rest.n, corroboration.difference, corroboration.interval) == (
        14,
        0,
        None,
        None,
    )


@pytest.mark.slow
def test_without_captions_of_another_value_there_is_nothing_to_compare(site: Site, services: ModelServices) -> None:
    add_drawn_job(site.sessions, site.store, per_class=14)
    with site.sessions.begin() as session:
        session.execute(update(Counterfactual).values(caption=""))
    results = build(site, services)
    finding = next(effect for figures in results.results for effect in figures.findings)
    assert (finding.corroboration, results.not_corroborated) == (None, "")
    assert 'id="own"' not in site.store.get("reports/page.html").decode()


@pytest.mark.slow
def test_a_report_does_not_wait_for_an_unreachable_scorer(site: Site) -> None:
    add_drawn_job(site.sessions, site.store, per_class=14)
    nowhere = ModelServices(dict.fromkeys(SERVICES, NOWHERE), wait=0.1)
    results = build(site, nowhere)
    nowhere.close()
    assert "evaluator_service" in results.not_corroborated
    assert all(effect.corroboration is None for figures in results.results for effect in figures.findings)
    assert "could not be called" in site.store.get("reports/page.html").decode()


@pytest.mark.slow
def test_a_large_class_is_sampled_and_the_result_says_of_how_many(site: Site, services: ModelServices) -> None:
    add_drawn_job(site.sessions, site.store, per_class=16)
    add_night_buses(site.sessions, site.store, 12)
    results = build_with(site, partial(corroborate, site.sessions, site.store, services, most=10))
    finding, corroboration = night_buses(results)
    assert (corroboration.showing.n + corroboration.rest.n, corroboration.sampled_of) == (10, 28)
    assert "10 of 28" in finding.details
    assert site.recorded_calls() == 1 + 10
    with site.sessions() as session:
        buses = select(SourceImage.id).where(SourceImage.ground_truth == "bus").order_by(SourceImage.digest).limit(10)
        assert {image.id for image in corroboration.images} <= set(session.scalars(buses))


def test_the_work_ends_between_two_lookups_of_recorded_embeddings(site: Site, services: ModelServices) -> None:
    """The lease of a cancelled job is checked before each of the three queries of 100 images."""
    checks: list[int] = []

    def check() -> None:
        checks.append(len(checks))
        if len(checks) == 3:
            raise Cancelled

    digests = [f"{number:064x}" for number in range(250)]
    revision = services.revision("evaluator_service")
    with pytest.raises(Cancelled):
        recorded_embeddings(site.sessions, site.store, LOCAL_OWNER, digests, revision, check)
    assert len(checks) == 3
