"""Segmentation jobs over HTTP on both databases: masks in, IoU per cell and pooled figures out."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import JsonValue
from sqlalchemy import select

from gateway.analysis.effects import differences
from gateway.database.tables import LOCAL_OWNER, Counterfactual, Job, Prediction, SourceImage
from gateway.jobs.task_description import protected_classes
from gateway.operations.housekeeping import Graces, run_housekeeping
from gateway.results.failure_points import failure_points_page
from gateway.results.filters import Filters, conditions
from gateway.results.job_rows import load_rows
from gateway.results.measure import measure
from shared.media.images import decode
from shared.media.label_maps import confusion, overlaps
from shared.media.storage import image_key
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.scores import with_mean
from tests.support.databases import ON_SQLITE
from tests.support.segmentation_jobs import MASKS, add_job, scenes
from tests.support.small_services import ROAD_CLASSES
from tests.support.work_site import Site, work_until


def test_a_job_with_masks_is_judged_pixel_by_pixel(site: Site) -> None:
    pairs = scenes(13)
    add_job(site, "job", pairs)
    site.worker().step()
    assert site.state() == "done"
    (result,) = site.metrics().results
    assert (result.metric, result.relation, result.metrics, result.sources) == ("iou", "labelled", None, 13)
    pixels = result.segmentation
    assert pixels is not None
    assert (pixels.classes, pixels.originals.images, pixels.nulls.images) == (ROAD_CLASSES, 13, 26)
    assert pixels.originals.mean_iou == 1.0
    assert pixels.originals.pixels == 13 * 12 * 11 * 2  # but for the void row, once for each of two edits
    with site.sessions() as session:
        rows = session.execute(
            select(SourceImage.position, Counterfactual.image_digest, Prediction)
            .join(Counterfactual, Prediction.counterfactual_id == Counterfactual.id)
            .join(SourceImage, Prediction.source_image_id == SourceImage.id)
            .where(Counterfactual.arm == "edit")
        ).all()
    together = np.zeros((3, 4), np.int64)
    for position, digest, row in rows:
        mask = pairs[position][1]
        assert mask is not None
        assert digest is not None
        assert row.image_digest is not None
        image = decode(site.store.get(image_key(digest)))
        predicted = np.minimum(image.mean(axis=2) // 86, 2).astype(np.uint8)
        counts = confusion(mask, predicted, 3)
        together += counts
        assert (decode(site.store.get(image_key(row.image_digest)), "L") == predicted).all()
        assert row.scores == pytest.approx(with_mean(dict(zip(ROAD_CLASSES, overlaps(counts), strict=True))))
        assert row.flipped == (overlaps(counts) < 0.5).any()
    assert pixels.counterfactuals.iou == pytest.approx(overlaps(together).tolist())
    cells = {effect.cell.label for effect in result.cells}
    assert cells == {*ROAD_CLASSES, ALL_CLASSES}
    tested = [effect for effect in result.cells if effect.p_value is not None]
    assert tested
    for effect in tested:
        assert effect.sources == 13
        assert effect.interval is not None
        assert effect.interval.low <= effect.delta_accuracy <= effect.interval.high
        assert "of IoU" in effect.sentence


@pytest.mark.slow
@ON_SQLITE
def test_a_cell_is_the_mean_over_counterfactuals_less_the_null_arm(site: Site) -> None:
    add_job(site, "job", scenes(3))
    site.worker().step()
    with site.sessions() as session:
        rows = load_rows(session, "job")
        overlap_of = {
            row.counterfactual_id or row.source_image_id: row.scores for row in session.scalars(select(Prediction))
        }
        edits = session.scalars(select(Counterfactual).where(Counterfactual.arm == "edit")).all()
        nulls = {
            (row.source_image_id, row.ordinal): row.id
            for row in session.scalars(select(Counterfactual).where(Counterfactual.arm == "null"))
        }
    (segmented,) = rows.models.values()
    for cell, members in segmented.scores.cells.items():
        scores = differences(segmented.scores, members)
        if cell.direction != "to" or cell.label != "car":
            continue
        per_source: dict[str, list[float]] = {}
        for edit in edits:
            if edit.to_value == cell.value:
                null = overlap_of[nulls[edit.source_image_id, edit.null_ordinal or 0]]
                change = overlap_of[edit.id]["car"] - null["car"]
                per_source.setdefault(edit.source_image_id, []).append(change)
        expected = [np.mean(changes) for _, changes in sorted(per_source.items())]
        assert scores.correct == pytest.approx(expected)
    again = measure(rows)
    assert again.results == site.metrics().results
    assert again.sensitivity is not None
    assert {shown.label for shown in again.sensitivity.classes} == set(ROAD_CLASSES)


@pytest.mark.slow
@ON_SQLITE
def test_without_masks_the_map_of_the_original_must_stay(site: Site) -> None:
    add_job(site, "job", [(image, None) for image, _ in scenes(3)])
    site.worker().step()
    (result,) = site.metrics().results
    assert result.segmentation is not None
    assert (result.relation, result.segmentation.originals.mean_iou) == ("metamorphic", 1.0)
    assert result.segmentation.originals.pixels == 144 * 3 * 2  # once for each of two edits
    assert 0 < (result.segmentation.counterfactuals.mean_iou or 0) < 1


@pytest.mark.slow
@ON_SQLITE
def test_an_image_without_a_mask_is_left_out_and_one_that_went_missing_fails_alone(site: Site) -> None:
    pairs = scenes(4)
    pairs[1] = (pairs[1][0], None)
    add_job(site, "job", pairs)
    lost = site.images()[2].mask_digest
    assert lost is not None
    site.store.delete(image_key(lost))
    worker = site.worker()
    work_until(worker, lambda: site.state() == "done")
    images = site.images()
    assert [image.state for image in images][:2] == ["done", "done"]
    assert images[2].state == "failed"
    assert lost in images[2].failure
    (result,) = site.metrics().results
    assert (result.sources, result.left_out) == (2, 2)


@pytest.mark.slow
@ON_SQLITE
def test_a_repeated_job_asks_nothing_again_and_maps_outlive_housekeeping(site: Site) -> None:
    add_job(site, "first", scenes(2))
    site.worker().step()
    before = site.small.calls.copy()
    add_job(site, "again", scenes(2))
    site.worker().step()
    assert site.small.calls == before
    assert site.metrics("again").results == site.metrics("first").results
    run_housekeeping(site.sessions, site.store, Graces(0.0, 0.0))
    with site.sessions() as session:
        needed = [*session.scalars(select(Prediction.image_digest)), *session.scalars(select(SourceImage.mask_digest))]
    assert needed
    assert all(digest and site.store.exists(image_key(digest)) for digest in needed)


def test_filters_know_the_classes_of_masks_and_what_was_lost(site: Site) -> None:
    pairs = scenes(2)
    add_job(site, "job", pairs)
    with site.sessions.begin() as session:
        session.get_one(SourceImage, "job-1").mask_classes = ["sky", "straße, naß", 'a "quoted" one']
    site.worker().step()
    with site.sessions() as session:
        for label, expected in (
            ("car", {0}), ("sky", {0, 1}), ("straße, naß", {1}), ('a "quoted" one', {1}), ("ca", set()), ("%", set()),
        ):  # fmt: skip
            filters = Filters.model_validate({"class": label})
            query = select(Counterfactual.position).where(Counterfactual.arm == "edit", *conditions(filters))
            assert set(session.scalars(query)) == expected, label
        flips = set(session.scalars(select(Prediction.flipped).where(Prediction.counterfactual_id.is_not(None))))
        assert None not in flips


@pytest.mark.slow
@ON_SQLITE
def test_the_failure_point_of_an_image_is_where_a_class_is_lost_first(site: Site) -> None:
    corruptions: list[dict[str, object]] = [{"name": "corruptions", "parameters": {"corruptions": ["fog"]}}]
    add_job(site, "job", scenes(2), corruptions)
    site.worker().step()
    with site.sessions() as session:
        page = failure_points_page(session, LOCAL_OWNER, "job", None, 10)
        flips = session.execute(
            select(Counterfactual.position, Counterfactual.to_value, Prediction.flipped)
            .join(Counterfactual, Prediction.counterfactual_id == Counterfactual.id)
            .where(Counterfactual.arm == "edit")
        ).all()
    for image in page.images:
        (point,) = image.points
        lost = sorted(int(str(value).rpartition(" ")[2]) for at, value, flip in flips if at == image.position and flip)
        assert point.severity == (lost[0] if lost else None)


def test_edits_may_not_name_things_or_else_any_class() -> None:
    things: list[JsonValue] = [
        {"name": name, "index": n, "thing": name == "car"} for n, name in enumerate(ROAD_CLASSES)
    ]
    job = Job(classes=["sky", "road", "vehicle"], kind="segmentation", spec={"masks": MASKS})
    assert protected_classes(job.stored_spec, job.classes) == ("sky", "road", "car")
    job.spec = {"masks": {"classes": things}, "label_map": {"car": "vehicle"}}
    assert protected_classes(job.stored_spec, job.classes) == ("car", "vehicle")
