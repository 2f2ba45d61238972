"""The shapes check in segmentation jobs: verdicts, unchecked images, and the error rates."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from pydantic import JsonValue
from rich.console import Console
from sqlalchemy import select

from contrafact.printing import findings
from gateway.database.tables import Counterfactual, Job, SourceImage
from gateway.jobs.choices import plan
from gateway.jobs.task_description import task_description_of
from gateway.results.job_rows import load_rows
from gateway.results.measure import measure
from shared.media.images import decode
from shared.media.storage import image_key
from shared.problems import InvalidInput
from shared.profiles.profile import CheckCalibration, load_profile
from shared.schemas.effects import CheckErrors
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.jobs import JobSpec
from shared.schemas.masks import MaskSpec
from shared.schemas.results import Calibration, JobResults
from tests.support.databases import ON_SQLITE
from tests.support.json_values import value_at
from tests.support.segmentation_jobs import MASKS, add_job, scenes
from tests.support.small_services import ROAD_CLASSES
from tests.support.work_site import METHODS, Site

STRICT = [{**METHODS[0], "parameters": {**METHODS[0]["parameters"], "thresholds": {"shapes": {"default": 0.5}}}}]  # type: ignore[dict-item]


def rendered_rows(site: Site) -> Sequence[tuple[Counterfactual, SourceImage]]:
    with site.sessions() as session:
        rows = session.execute(
            select(Counterfactual, SourceImage)
            .join(SourceImage, Counterfactual.source_image_id == SourceImage.id)
            .where(Counterfactual.image_digest.is_not(None))
        )
        return [(row, image) for row, image in rows]


def moved(site: Site, row: Counterfactual, image: SourceImage) -> bool:
    """As the small services' segmenter has it."""
    after, before = (int(decode(site.store.get(image_key(str(d))))[0, 0, 0]) for d in (row.image_digest, image.digest))
    return after - before > 30


@pytest.mark.slow
def test_images_whose_shapes_moved_are_refused_and_null_arms_only_scored(site: Site) -> None:
    add_job(site, "job", scenes(8), STRICT)
    site.worker().step()
    assert site.state() == "done"
    rows = rendered_rows(site)
    for row, image in rows:
        gone = moved(site, row, image)
        assert row.scores["shapes"] == pytest.approx(0.2 if gone else 0.9)
        refused = gone and row.arm == "edit"
        assert (row.accepted, row.check) == (not refused, "shapes" if refused else "")
        if refused:
            assert ("20%" in row.reason, "50%" in row.reason) == (True, True), "the score and its threshold"
        assert "label" in value_at(row.lineage, "skipped_checks")
    assert {row.accepted for row, _ in rows} == {True, False}
    (funnel,) = site.metrics().funnels
    assert funnel.shapes_unchecked == 0
    assert [refusal.check for refusal in funnel.refused_by_image] == ["shapes"]


@pytest.mark.slow
@ON_SQLITE
def test_unjudged_images_are_counted_in_results_report_and_terminal(site: Site) -> None:
    site.small.judges = False
    add_job(site, "job", scenes(3), STRICT)
    site.worker().step()
    results = site.metrics()
    (funnel,) = results.funnels
    assert funnel.shapes_unchecked == funnel.rendered > 0
    page = site.report()
    assert f"</b> in {funnel.rendered} of {funnel.rendered} rendered" in page
    assert f"in {funnel.rendered} rendered images" in on_terminal(results)


@ON_SQLITE
def test_methods_without_checks_leave_nothing_unchecked(site: Site) -> None:
    add_job(site, "job", scenes(1), [{"name": "corruptions", "parameters": {"corruptions": ["fog"]}}])
    site.worker().step()
    assert [funnel.shapes_unchecked for funnel in site.metrics().funnels] == [None]
    assert "shapes" not in site.small.calls


@pytest.mark.slow
@ON_SQLITE
def test_errors_of_the_checks_count_in_segmentation_jobs_as_in_others(site: Site) -> None:
    add_job(site, "job", scenes(13))
    site.worker().step()
    plain = site.metrics()
    assert plain.provisional
    assert all(cell.among_valid is None for result in plain.results for cell in result.cells)
    with site.sessions() as session:
        rows = load_rows(session, "job")
    good = CheckErrors(valid=400, valid_accepted=390, invalid=400, invalid_accepted=2)
    blind = CheckErrors(valid=400, valid_accepted=200, invalid=400, invalid_accepted=200)
    shares = {}
    for name, errors in (("good", good), ("blind", blind)):
        results = measure(rows, calibration=Calibration(data="roads", errors={"dillema": {"default": errors}}))
        assert not results.provisional
        tested = [cell for result in results.results for cell in result.cells if cell.p_value is not None]
        assert tested
        shares[name] = [cell.among_valid.valid_low for cell in tested if cell.among_valid is not None]
        for cell in tested:
            assert cell.among_valid is not None
            assert cell.interval is not None
            assert cell.among_valid.interval.low <= cell.delta_accuracy <= cell.among_valid.interval.high
            assert cell.among_valid.stands is False or name == "good"
    assert min(shares["good"]) > max(shares["blind"])


def test_errors_measured_in_jobs_of_the_other_kind_are_refused() -> None:
    profile = load_profile("tiny")
    errors = {"dillema": {"default": CheckErrors(valid=1, valid_accepted=1, invalid=1, invalid_accepted=0)}}
    objects = CheckCalibration(judged_by="people", methods=errors)
    roads = CheckCalibration(kind="segmentation", judged_by="people", methods=errors)
    profile = profile.model_copy(update={"calibration": {"objects": objects, "roads": roads}})
    segmenter = ModelUnderTestInfo(
        name="roads", kind="segmentation", classes=ROAD_CLASSES, weights="", revision="", licence=""
    )
    spec = JobSpec(
        task_description="segment", models=["roads"], masks=MaskSpec.model_validate(MASKS), calibration="roads"
    )
    assert plan(spec, profile, [segmenter]).kind == "segmentation"
    with pytest.raises(InvalidInput, match="segmentation"):
        plan(spec.model_copy(update={"calibration": "objects"}), profile, [segmenter])


def test_methods_get_the_mask_classes_and_which_are_things() -> None:
    things: list[JsonValue] = [
        {"name": name, "index": n, "thing": name == "car"} for n, name in enumerate(ROAD_CLASSES)
    ]
    job = Job(task_description="segment", classes=["sky", "road", "vehicle"], kind="segmentation")
    job.spec = {"masks": {"classes": things}, "label_map": {"car": "vehicle"}}
    described = task_description_of(job)
    assert (described.mask_classes, described.things) == (("sky", "road", "vehicle"), ("vehicle",))
    job.spec = {}
    assert (task_description_of(job).mask_classes, task_description_of(job).things) == (("sky", "road", "vehicle"), ())
    job.kind = "classification"
    assert task_description_of(job).mask_classes == ()


def on_terminal(results: JobResults) -> str:
    out = io.StringIO()
    Console(width=400, file=out).print(findings(results))
    return out.getvalue()
