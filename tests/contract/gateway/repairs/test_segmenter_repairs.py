"""`/repairs` of a trained segmenter: nights improve pixel by pixel, and the download is a segmenter."""

from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from torch import equal

from contrafact.repair_commands import result_tables
from evaluator_service.models_under_test.kinds.segmentation import ImageSegmenter
from evaluator_service.models_under_test.loading import load_folder
from evaluator_service.repair_worker import Trainer
from gateway.database.tables import LOCAL_OWNER, ModelUnderTest
from gateway.repairs.repairs import order
from gateway.settings import Settings
from shared.media.label_maps import class_indices, confusion, overlaps
from shared.media.storage import repair_key
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.repairs import RepairLease, RepairResult
from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.repair_site import keep_model, weights_in, work_off
from tests.support.segmenter_site import CLASSES, OWN, add_job, street, write_day_segmenter

pytestmark = pytest.mark.slow  # a repair of a trained segmenter

REQUEST = {"model": "streets", "steps": 40, "learning_rate": 5e-3, "batch_size": 8}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("day")
    write_day_segmenter(folder)
    with serve_gateway(tmp_path_factory.mktemp("gateway")) as served:
        add_job(served.context.sessions, served.context.store)
        package = keep_model(served.context.store, folder, "streets")
        with served.context.sessions.begin() as session:
            session.add(
                ModelUnderTest(
                    id="streets", owner_id=LOCAL_OWNER, name="streets", digest=package.digest, format=package.format,
                    bytes=package.bytes, kind="segmentation", classes=OWN, licence="Apache-2.0",
                )
            )  # fmt: skip
        yield served


def begin(gateway: Gateway, **changes: object) -> str:
    reply = gateway.client.post("/jobs/made/repairs", json={**REQUEST, **changes})
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


@pytest.fixture(scope="module")
def repair(gateway: Gateway) -> str:
    """A repair that is done."""
    repair = begin(gateway)
    work_off(gateway.context.sessions, gateway.context.store, Settings())
    return repair


def unpacked(gateway: Gateway, repair: str, folder: Path) -> Path:
    content = gateway.client.get(f"/repairs/{repair}/model").content
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_a_repair_wins_back_the_night_in_iou(gateway: Gateway, repair: str) -> None:
    view = gateway.client.get(f"/repairs/{repair}").json()
    assert (view["state"], view["failure"]) == ("done", "")
    result = RepairResult.model_validate(view["result"])
    assert (result.metric, result.classes) == ("iou", CLASSES)
    assert (result.sources_trained_on, result.sources_held_out) == (15, 15)
    assert result.values_not_trained_on == ["fog"]
    sets = {figures.set: {arm.arm: arm for arm in figures.arms} for figures in result.sets}
    assert sets.keys() == {"originals", "counterfactuals", "values not trained on"}
    # Seen with seeds 0 and 1, under AVX512 and SSE4.1: originals 0.93 to 0.95, counterfactuals 0.03 to 0.06 before and
    # 0.59 to 0.60 repaired, won back 0.60 to 0.62, the best control augmented (0.02 below).
    originals, edits = sets["originals"], sets["counterfactuals"]
    assert (originals["before"].accuracy.value or 0) > 0.7
    assert (edits["before"].accuracy.value or 0) < (originals["before"].accuracy.value or 0) - 0.2
    assert (edits["repaired"].accuracy.value or 0) > (edits["before"].accuracy.value or 0) + 0.15
    pooled = edits["repaired"].segmentation
    assert pooled is not None
    assert pooled.images == 30
    assert pooled.pixels == 30 * 31 * 32, "void rows are not judged"
    assert len(pooled.iou) == len(CLASSES)
    assert result.won_back is not None
    assert result.won_back.share > 0.3
    (of_edits,) = [figures for figures in result.sets if figures.set == "counterfactuals"]
    assert of_edits.best_control == "augmented" or of_edits.against_best_control.difference > 0
    cells = {(cell.label, cell.value): cell for cell in result.cells}
    assert {label for label, _ in cells} == {*CLASSES, ALL_CLASSES}
    night = cells[ALL_CLASSES, "night"]
    assert night.difference.difference == pytest.approx((night.repaired.value or 0) - (night.before.value or 0))
    assert any("IoU before" in sentence for sentence in result.sentences)


def test_the_repaired_model_loads_as_a_segmenter_with_the_reported_figures(
    gateway: Gateway, repair: str, tmp_path: Path
) -> None:
    folder = unpacked(gateway, repair, tmp_path)
    card = (folder / "README.md").read_text()
    for words in ("pipeline_tag: image-segmentation", "masks of sky, road, vehicle", "40 steps of 8", "mIoU", "seed 0"):
        assert words in card
    model = load_folder(folder, device="cpu")
    assert isinstance(model, ImageSegmenter)
    streets = [street("night", 77_000 + number) for number in range(12)]
    counts = np.zeros((3, 4), np.int64)
    for label_map, (_, mask) in zip(model.run([image for image, _ in streets]), streets, strict=True):
        counts += confusion(mask, class_indices(model.classes, CLASSES)[label_map], 3)
    result = RepairResult.model_validate(gateway.client.get(f"/repairs/{repair}").json()["result"])
    (cell,) = [cell for cell in result.cells if (cell.label, cell.value) == (ALL_CLASSES, "night")]
    # Seen: at most 0.01 apart.
    assert float(overlaps(counts).mean()) == pytest.approx(cell.repaired.value or 0, abs=0.15)


def test_the_command_shows_classes(gateway: Gateway, repair: str) -> None:
    result = RepairResult.model_validate(gateway.client.get(f"/repairs/{repair}").json()["result"])
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(result_tables(result))
    text = console.export_text()
    for words in ("IoU on held-out source images", "IoU of all pixels", "mIoU", "vehicle", "Won back"):
        assert words in text


class _StopAfter(threading.Event):
    """Set once it was asked so often: a trainer that is stopped midway."""

    def __init__(self, often: int) -> None:
        super().__init__()
        self._left = often

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0


@pytest.mark.slow
def test_a_stopped_trainer_is_followed_by_one_that_ends_in_the_same_weights(gateway: Gateway) -> None:
    store, weights = gateway.context.store, []
    for stops in (False, True):
        repair = begin(gateway, steps=16)
        if stops:
            lease = RepairLease(repair=repair, token="aa")
            store.put(repair_key(repair, "grant.json"), lease.model_dump_json().encode())
            midway = _StopAfter(len(order(store, repair).judged) + 12)
            Trainer(store, "tiny", "cpu", beat_seconds=5, stopping=midway).work(lease)
            remaining = [item.key for item in store.iterate(repair_key(repair) + "/")]
            assert repair_key(repair, "repaired", "checkpoint.tar") in remaining
            assert repair_key(repair, "aa", "outcome.json") not in remaining
        work_off(gateway.context.sessions, store, Settings())
        assert gateway.client.get(f"/repairs/{repair}").json()["state"] == "done"
        packages = [store.get(repair_key(repair, arm, "model.tar")) for arm in ("repaired", "augmented")]
        weights.append([weights_in(package) for package in packages])
    for mine, other in zip(*weights, strict=True):
        assert all(equal(mine[name], other[name]) for name in mine)


def test_jobs_that_a_repair_cannot_use_are_refused(gateway: Gateway) -> None:
    sessions, store = gateway.context.sessions, gateway.context.store
    reply = gateway.client.post("/jobs/made/repairs", json={"model": "m1"})
    assert reply.status_code == 422
    assert "classification" in reply.json()["detail"]
    add_job(sessions, store, "bare", sources=3, masks=False)
    reply = gateway.client.post("/jobs/bare/repairs", json=REQUEST)
    assert reply.status_code == 422
    assert "no accepted counterfactual" in reply.json()["detail"]
