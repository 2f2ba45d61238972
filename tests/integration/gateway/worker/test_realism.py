"""KID and perplexity in a job's results, by the evaluator's trained scorer and the small language model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import select, update

from embedded.serving import ListeningPort
from evaluator_service.app import create_app as evaluator
from gateway.database.tables import Counterfactual, SourceImage
from gateway.model_services.clients import Cancelled, ModelServices
from gateway.report.build import write_report
from gateway.results.job_rows import JobRows
from gateway.results.realism import load_pairs
from gateway.worker.analysis_step import with_realism, with_service_figures
from llm_service.app import create_app as language
from shared.profiles.profile import load_profile
from shared.schemas.effects import Realism
from shared.schemas.results import JobResults
from shared.service.endpoints import INFO
from tests.support.databases import ON_SQLITE
from tests.support.drawn_job import add_drawn_job
from tests.support.service_settings import settings
from tests.support.small_profile import NOWHERE, write_profile
from tests.support.work_site import Site

pytestmark = ON_SQLITE


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServices]:
    """The evaluator with the trained scorer, and the trained language model."""
    folder = tmp_path_factory.mktemp("profile")
    write_profile(folder, language_engine="transformers")
    tiny = load_profile("tiny")
    assert tiny.language.weights is not None
    profile = folder / "small.toml"
    text = profile.read_text()
    for name, weights in (("scorer", tiny.evaluator.scorer), ("language", tiny.language.weights)):
        text = text.replace(f'path = "{name}"', f'path = "{Path(str(weights.path)).resolve()}"')
    profile.write_text(text)
    ports = {"evaluator_service": ListeningPort(), "llm_service": ListeningPort()}
    ports["evaluator_service"].serve(evaluator(settings(profile)))
    ports["llm_service"].serve(language(settings(profile)))
    services = ModelServices({name: port.base_url for name, port in ports.items()})  # type: ignore[misc]
    yield services
    services.close()
    for port in ports.values():
        port.close()


def build(site: Site, services: ModelServices, **options: int) -> JobResults:
    def complete(_: JobRows, results: JobResults) -> JobResults:
        return partial(with_realism, site.sessions, site.store, services)(results, **options)  # type: ignore[arg-type]

    return write_report(site.sessions, site.store, "drawn", "reports/page.html", [], complete=complete)


def realism(results: JobResults) -> Realism:
    (row,) = results.realism
    assert row.method == "dillema"
    return row


@pytest.mark.slow
def test_edits_are_further_from_the_originals_than_null_arms(site: Site, services: ModelServices) -> None:
    add_drawn_job(site.sessions, site.store, per_class=6)
    with site.sessions.begin() as session:
        session.execute(update(Counterfactual).where(Counterfactual.arm == "edit").values(null_check=""))
    first = build(site, services)
    row = realism(first)
    assert row.sources == 18
    assert row.kid is not None
    assert row.kid_null is not None
    assert row.kid.low <= row.kid.value <= row.kid.high
    assert row.kid.value > row.kid_null.value
    assert row.perplexity is not None
    assert row.perplexity_edited is not None
    assert 1 < row.perplexity < row.perplexity_edited * 3
    assert row.not_measured == {}
    assert 'id="realism"' in site.store.get("reports/page.html").decode()
    recorded = site.recorded_calls()
    assert recorded == 18 + 2
    assert build(site, services) == first
    assert site.recorded_calls() == recorded
    assert (row.fid, row.fid_null) == (None, None), "too few images"
    large = realism(build(site, services, for_fid=18))
    assert large.fid is not None
    assert large.fid_null is not None
    assert large.fid > large.fid_null
    assert large.model_copy(update={"fid": None, "fid_null": None}) == row
    assert site.recorded_calls() == recorded, "the sample's vectors are recorded"


@pytest.mark.slow
def test_a_large_job_is_sampled_by_digest(site: Site, services: ModelServices) -> None:
    add_drawn_job(site.sessions, site.store, per_class=3)
    assert realism(build(site, services, most=5)).sources == 5
    with site.sessions() as session:
        first = session.scalars(select(SourceImage.digest).order_by(SourceImage.digest).limit(5)).all()
        assert [pair.original for pair in load_pairs(session, "drawn", 5)["dillema"]] == list(first)


def test_without_services_the_results_say_why(site: Site) -> None:
    add_drawn_job(site.sessions, site.store, per_class=2)
    away = NOWHERE.removesuffix("/v1")
    services = ModelServices({"evaluator_service": away, "llm_service": away}, wait=0)
    row = realism(build(site, services))
    services.close()
    assert (row.kid, row.perplexity) == (None, None)
    assert set(row.not_measured) == {"images", "captions"}
    assert "cannot be reached" in row.not_measured["images"]


def test_an_analysis_waits_for_absent_services_once(site: Site) -> None:
    add_drawn_job(site.sessions, site.store, per_class=2)
    away = NOWHERE.removesuffix("/v1")
    services = ModelServices({"evaluator_service": away, "llm_service": away}, wait=1)
    before = {name: attempts(name) for name in ("evaluator_service", "llm_service")}
    complete = partial(with_service_figures, site.sessions, site.store, services)
    results = write_report(site.sessions, site.store, "drawn", "reports/page.html", [], complete=complete)
    services.close()
    assert set(realism(results).not_measured) == {"images", "captions"}
    assert attempts("evaluator_service") - before["evaluator_service"] > 1
    assert attempts("llm_service") - before["llm_service"] == 1


def attempts(service: str) -> float:
    """How many descriptions of a service could not be fetched in this process."""
    labels = {"service": service, "path": INFO.path, "outcome": "unreachable"}
    return REGISTRY.get_sample_value("contrafact_service_call_seconds_count", labels) or 0


def test_a_cancelled_job_measures_no_further(site: Site, services: ModelServices) -> None:
    add_drawn_job(site.sessions, site.store, per_class=2)
    checks: list[int] = []

    def check() -> None:
        checks.append(len(checks))
        if len(checks) == 3:
            raise Cancelled

    def complete(_: JobRows, results: JobResults) -> JobResults:
        return with_realism(site.sessions, site.store, services, results, check)

    with pytest.raises(Cancelled):
        write_report(site.sessions, site.store, "drawn", "reports/page.html", [], complete=complete)
    assert site.recorded_calls() == 2
