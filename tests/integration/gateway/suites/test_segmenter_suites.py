"""Suites of segmentation jobs: masks are kept, releases are compared by IoU, and nothing is rendered again."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import delete, select, update

from gateway.database.tables import LOCAL_OWNER, Counterfactual, Job, Prediction, SourceImage
from gateway.jobs import jobs
from gateway.operations.housekeeping import Graces, run_housekeeping
from gateway.suites import suites
from gateway.suites.runs import results
from shared.media.images import decode
from shared.media.storage import image_key
from shared.problems import InvalidInput
from shared.schemas.base import Kind
from shared.schemas.effects import Cell, MeanOverlap
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.scores import with_mean
from shared.schemas.suites import CellComparison, RunResults, SuiteRequest
from tests.support.databases import ON_SQLITE
from tests.support.json_values import value_at
from tests.support.segmentation_jobs import add_job, scenes
from tests.support.small_services import ROAD_CLASSES, SEGMENTER
from tests.support.work_site import Site, work_until

SOURCES = 16
RENDERING = ("caption", "generate", "render", "edit", "structure", "shapes", "corrupt")


def release(revision: str = "1", kind: Kind = "segmentation", classes: list[str] = ROAD_CLASSES) -> ModelUnderTestInfo:
    return ModelUnderTestInfo(
        name=SEGMENTER, kind=kind, classes=classes, weights="none", revision=revision, licence="Apache-2.0"
    )


def work_off(site: Site, job: str) -> None:
    worker = site.worker()
    work_until(worker, lambda: site.state(job) == "done")


def freeze(site: Site) -> str:
    with site.sessions.begin() as session:
        return suites.create(session, LOCAL_OWNER, SuiteRequest(job="job", name="roads"))


def run_of(site: Site, revision: str = "1") -> str:
    with site.sessions.begin() as session:
        run = suites.start_run(session, LOCAL_OWNER, "roads", release(revision))
    work_off(site, run)
    return run


def result(site: Site, run: str, baseline: str | None = None) -> RunResults:
    with site.sessions() as session:
        return results(session, LOCAL_OWNER, "roads", run, baseline, 5)


def worsen(site: Site, run: str) -> None:
    """In a weaker release's stead: of every second counterfactual the road is taken for sky."""
    with site.sessions.begin() as session:
        rows = session.scalars(
            select(Prediction)
            .join(Counterfactual, Prediction.counterfactual_id == Counterfactual.id)
            .where(Prediction.job_id == run, Counterfactual.arm == "edit", Counterfactual.ordinal % 2 == 0)
        )
        for row in rows:
            overlaps = {name: score for name, score in row.scores.items() if name != ALL_CLASSES}
            row.scores = with_mean({**overlaps, "road": 0.0, "sky": overlaps["sky"] / 2})


def by_cell(results: RunResults) -> dict[Cell, CellComparison]:
    return {comparison.cell: comparison for comparison in results.cells if comparison.cell is not None}


def masks_of(site: Site, job: str) -> list[tuple[NDArray[np.uint8], list[str]]]:
    with site.sessions() as session:
        rows = session.scalars(select(SourceImage).where(SourceImage.job_id == job).order_by(SourceImage.position))
        return [(decode(site.store.get(image_key(row.mask_digest or "")), "L"), row.mask_classes or []) for row in rows]


@pytest.mark.slow
def test_a_run_repeats_the_predictions_of_a_deleted_job(site: Site) -> None:
    add_job(site, "job", scenes(SOURCES))
    work_off(site, "job")
    effects = {effect.cell: effect for effect in site.metrics().results[0].cells}
    before = masks_of(site, "job")
    suite = freeze(site)
    with site.sessions.begin() as session:
        report = jobs.remove(session, LOCAL_OWNER, "job")
    site.store.delete(report or "")
    run_housekeeping(site.sessions, site.store, Graces(0, 0))
    rendered = Counter({name: site.small.calls[name] for name in RENDERING})
    run = run_of(site)
    assert Counter({name: site.small.calls[name] for name in RENDERING}) == rendered
    for job in (suite, run):
        frozen = masks_of(site, job)
        assert len(frozen) == SOURCES
        for (mask, classes), (expected, names) in zip(frozen, before, strict=True):
            assert (classes, (mask == expected).all()) == (names, True)
    results = result(site, run)
    assert (results.metric, results.relation, results.left_out, results.baseline) == ("iou", "labelled", 0, None)
    cells = by_cell(results)
    assert cells.keys() == effects.keys()
    for cell, comparison in cells.items():
        assert (comparison.sources, comparison.images) == (SOURCES, effects[cell].counterfactuals)
        assert comparison.difference == pytest.approx(effects[cell].delta_accuracy)
        assert comparison.p_value is not None
        assert isinstance(comparison.accuracy, MeanOverlap)
        assert comparison.accuracy.low <= (comparison.accuracy.value or 0) <= comparison.accuracy.high
        assert (comparison.accuracy.value or 0) - (comparison.against.value or 0) == pytest.approx(
            comparison.difference
        )
        assert "% IoU against" in comparison.sentence
    with site.sessions() as session:
        view = suites.show(session, LOCAL_OWNER, "roads")
        spec = session.get_one(Job, run).spec
    assert (view.kind, view.classes, view.sources) == ("segmentation", ROAD_CLASSES, SOURCES)
    assert value_at(spec, "masks", "void") == [255]


@pytest.mark.slow
@ON_SQLITE
def test_releases_are_compared_on_the_same_images_class_by_class(site: Site) -> None:
    add_job(site, "job", scenes(SOURCES))
    work_off(site, "job")
    freeze(site)
    old, new = run_of(site), run_of(site, "2")
    same = result(site, new, old)
    assert {comparison.difference for comparison in same.cells} == {0.0}
    assert [comparison.sources for comparison in same.cells if comparison.method == ""] == [SOURCES], (
        "the originals are compared too"
    )
    worsen(site, new)
    results = result(site, new, old)
    drops = {
        comparison.cell.label
        for comparison in results.cells
        if comparison.judgement == "drop" and comparison.cell is not None
    }
    assert "road" in drops
    assert "car" not in drops
    worst = next(comparison for comparison in results.cells if comparison.judgement == "drop")
    assert results.breaches[0] == worst.sentence
    assert {
        comparison.difference
        for comparison in results.cells
        if comparison.cell is not None and comparison.cell.label == "car"
    } == {0.0}
    assert [comparison.difference for comparison in results.cells if comparison.method == ""] == [0.0]
    (mean,) = [comparison for comparison in results.cells if comparison.method and comparison.cell is None]
    assert mean.images == 2 * SOURCES
    assert mean.difference < 0
    with site.sessions.begin() as session:  # an image that one of them did not answer
        first = select(SourceImage.id).where(SourceImage.job_id == old, SourceImage.position == 0)
        session.execute(delete(Prediction).where(Prediction.source_image_id.in_(first)))
    fewer = result(site, new, old)
    assert fewer.left_out == 2
    assert {comparison.sources for comparison in fewer.cells} == {SOURCES - 1}


@pytest.mark.slow
@ON_SQLITE
def test_without_masks_whole_images_must_stay_what_they_were(site: Site) -> None:
    add_job(site, "job", [(image, None) for image, _ in scenes(SOURCES)])
    work_off(site, "job")
    with site.sessions.begin() as session:  # a class that the job does not judge
        session.execute(update(Job).where(Job.id == "job").values(classes=["sky", "road"]))
    freeze(site)
    run = run_of(site)
    results = result(site, run)
    assert (results.relation, results.metric) == ("metamorphic", "iou")
    assert {comparison.cell.label for comparison in results.cells if comparison.cell is not None} == {""}
    assert all("all classes with" in comparison.sentence for comparison in results.cells if comparison.cell is not None)
    with site.sessions() as session:
        scores = session.scalars(select(Prediction.scores).where(Prediction.job_id == run)).all()
    assert {name for by_class in scores for name in by_class} == {"sky", "road", ALL_CLASSES}


@ON_SQLITE
def test_releases_of_another_kind_or_without_the_classes_are_refused(site: Site) -> None:
    add_job(site, "job", scenes(1))
    work_off(site, "job")
    freeze(site)
    for model, sentence in (
        (release(kind="classification"), "for classification"),
        (release(classes=["sky", "road"]), "does not know the labels 'car'"),
    ):
        with site.sessions.begin() as session, pytest.raises(InvalidInput, match=sentence):
            suites.start_run(session, LOCAL_OWNER, "roads", model)
