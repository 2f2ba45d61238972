"""Clusters of edits in a job's results, by the evaluator's trained text embedder, on planted predictions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from embedded.serving import ListeningPort
from evaluator_service.app import create_app
from gateway.database.tables import Job, Prediction
from gateway.model_services.clients import ModelServices
from gateway.report.build import write_report
from gateway.results.job_rows import JobRows
from gateway.worker.analysis_step import cluster
from shared.profiles.profile import load_profile
from shared.schemas.effects import EditCluster
from shared.schemas.results import JobResults
from tests.support.databases import ON_SQLITE
from tests.support.drawn_job import add_drawn_job
from tests.support.service_settings import settings
from tests.support.small_profile import NOWHERE, write_profile
from tests.support.work_site import Site

pytestmark = ON_SQLITE


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServices]:
    """The evaluator with the trained scorer and text embedder."""
    profile = write_profile(tmp_path_factory.mktemp("profile"))
    tiny = load_profile("tiny").evaluator
    assert tiny.text_embedder is not None
    lines = {
        name: f'{name} = {{ path = "{Path(str(weights.path)).resolve()}", licence = "none", gigabytes = 0.01 }}\n'
        for name, weights in (("scorer", tiny.scorer), ("text_embedder", tiny.text_embedder))
    }
    old = 'scorer = { path = "scorer", licence = "none", gigabytes = 0.01 }\n'
    profile.write_text(profile.read_text().replace(old, "".join(lines.values())))
    port = ListeningPort()
    port.serve(create_app(settings(profile)))
    services = ModelServices({"evaluator_service": port.base_url})
    yield services
    services.close()
    port.close()


def build(site: Site, services: ModelServices, **options: int) -> JobResults:
    def complete(rows: JobRows, results: JobResults) -> JobResults:
        return cluster(site.sessions, site.store, services, rows, results, **options)  # type: ignore[arg-type]

    return write_report(site.sessions, site.store, "drawn", "reports/page.html", [], complete=complete)


def clusters(results: JobResults, model: str) -> list[EditCluster]:
    (figures,) = (figures_of_model for figures_of_model in results.results if figures_of_model.model == model)
    return figures.clusters


@pytest.mark.slow
def test_a_planted_weakness_is_a_confirmed_cluster_and_chance_is_none(site: Site, services: ModelServices) -> None:
    add_drawn_job(site.sessions, site.store, per_class=34)
    first = build(site, services)
    clusters_of_model = clusters(first, "night-bus")
    weak = [row for row in clusters_of_model if row.standing == "weakness"]
    assert [row.label for row in weak] == ["bus"]
    assert all("night" in phrase for phrase in weak[0].phrases)
    assert weak[0] == clusters_of_model[0]
    assert weak[0].screened < -0.5
    assert weak[0].delta_accuracy is not None
    assert weak[0].delta_accuracy < -0.5
    assert weak[0].q_value is not None
    assert weak[0].q_value < 0.05
    assert 12 <= weak[0].confirming_sources <= 17
    assert {row.label for row in clusters_of_model} == {"bus", "car", "boat"}
    assert not [row for row in clusters(first, "sound") if row.standing in ("weakness", "improvement")]
    assert first.not_clustered == ""
    assert 'id="clusters"' in site.store.get("reports/page.html").decode()
    recorded = site.recorded_calls()
    assert recorded == 1
    assert build(site, services) == first
    assert site.recorded_calls() == recorded


@pytest.mark.slow
def test_clusters_do_not_depend_on_outcomes(site: Site, services: ModelServices) -> None:
    add_drawn_job(site.sessions, site.store, per_class=18)
    before = clusters(build(site, services), "night-bus")
    with site.sessions.begin() as session:
        for row in session.scalars(select(Prediction)):
            row.scores, row.detail = dict.fromkeys(row.scores, 1.0), {**row.detail, "rank": 1, "truth_probability": 0.9}
    after = clusters(build(site, services), "night-bus")

    def formed(rows: list[EditCluster]) -> set[tuple[str, tuple[str, ...], int, int]]:
        return {(row.label, tuple(row.phrases), row.edits, row.sources) for row in rows}

    assert formed(before) == formed(after)
    assert {row.standing for row in after} == {"not tested"}


@pytest.mark.slow
def test_what_cannot_be_clustered_is_said(site: Site, services: ModelServices) -> None:
    add_drawn_job(site.sessions, site.store, per_class=18)
    sampled = build(site, services, most=3)
    assert "phrases" in sampled.not_clustered
    away = ModelServices({"evaluator_service": NOWHERE.removesuffix("/v1")}, wait=0)
    assert "cannot be reached" in build(site, away).not_clustered
    away.close()
    with site.sessions.begin() as session:
        job = session.get_one(Job, "drawn")
        job.spec = {**job.spec, "design": "adaptive"}
    recorded = site.recorded_calls()
    assert "adaptive" in build(site, services).not_clustered
    assert site.recorded_calls() == recorded
