"""The papers' kits on stand-in folders of the data sets' layouts, drawn from tinyworld, through an embedded system."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from contrafact import Client
from embedded.run import run_embedded
from research.judges.trials import source_picture
from research.paper_tables.arms import scenes_of
from research.paper_tables.printing import rate
from research.papers.kits import SHIFT_MASKS
from shared.profiles.weights import REPOSITORY
from shared.schemas.results import JobResults
from tinyworld.objects.world import CLASSES
from tinyworld.roads.demo import demo_scenes
from tinyworld.roads.render import render
from tinyworld.roads.world import CLASSES as ROAD_CLASSES

pytestmark = pytest.mark.slow
WEIGHTS = REPOSITORY / "tinyworld/weights"


@contextlib.contextmanager
def running(place: Path, profile: str) -> Iterator[str]:
    with run_embedded(place, profile) as system, contextlib.closing(Client(system.base_url)) as client:
        client.models_when_ready()
        yield system.base_url


def run_kit(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    command = [sys.executable, "-m", "research.papers", *map(str, arguments)]
    return subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True
    )


def kit(*arguments: str | Path) -> str:
    """Run the command to its success; returns what it says beside its tables."""
    done = run_kit(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stderr


def results_in(folder: Path) -> JobResults:
    return JobResults.model_validate_json((folder / "results.json").read_bytes())


def write_imagenet(folder: Path, images: int) -> Path:
    """Scenes as JPEG files in folders named by synset, and the class list in the order of the models' outputs."""
    synsets = {label: f"n{place:08}" for place, label in enumerate(CLASSES, 1)}
    for number, scene in enumerate(scenes_of(images)):
        path = folder / "val" / synsets[scene.label] / f"ILSVRC2012_val_{number:08}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(source_picture(scene)).save(path, quality=95)
    lines = [f"{synset} {label}, {label} of the drawn world" for label, synset in synsets.items()]
    (folder / "classes.txt").write_text("\n".join(lines))
    return folder


def write_shift(folder: Path, images: int) -> Path:
    """Road scenes as SHIFT lays out its front camera: RGBA masks whose red channel is SHIFT's class; two sequences."""
    values = {mask_class.name: mask_class.index or 0 for mask_class in SHIFT_MASKS.classes}
    numbers = np.array([values.get(name, 0) for name in ROAD_CLASSES], np.uint8)
    for number, scene in enumerate(demo_scenes(images)):
        rendering, sequence = render(scene, 128, 128), f"{number % 2:04}-abcd"
        for kind in ("img", "semseg"):
            (folder / kind / sequence).mkdir(parents=True, exist_ok=True)
        Image.fromarray(rendering.image).save(folder / f"img/{sequence}/{number:08}_img_front.jpg", quality=95)
        mask = np.zeros((*rendering.classes.shape, 4), np.uint8)
        mask[..., 0] = numbers[rendering.classes]
        mask[..., 3] = 255
        Image.fromarray(mask).save(folder / f"semseg/{sequence}/{number:08}_semseg_front.png")
    return folder


def test_lance_on_imagenet_folders_and_again_without_a_new_job(tmp_path: Path) -> None:
    data = write_imagenet(tmp_path / "imagenet", 8)
    with running(tmp_path / "system", "tiny") as url:
        arguments: list[str | Path] = [
            *("lance", data / "val", "--classes", data / "classes.txt", "--out", tmp_path / "out", "--url", url),
            *("--model", f"street={WEIGHTS}/models_under_test/street-classifier"),
            *("--model", f"clip=zero-shot:{WEIGHTS}/scorer", "--features", WEIGHTS / "scorer"),
            *("--pilot", "2", "--most", "1", "--yes"),
        ]
        messages = kit(*arguments)
        results = results_in(tmp_path / "out")
        assert "8 source images" in messages
        assert {(entry.model, entry.method) for entry in results.results} == {
            (model, method) for model in ("street", "clip") for method in ("reconstruction", "lance-r", "lance")
        }
        table = (tmp_path / "out/tables.md").read_text()
        assert all(f"| {name} |" in table for name in ("reconstructed", "LANCE-R", "LANCE"))
        first = results.results[0].metrics
        assert first is not None
        cell = "; ".join(rate(level.all_originals) for level in first.accuracy if level.all_originals is not None)
        assert f"| originals, all | {cell} |" in table
        assert (tmp_path / "out/report.html").stat().st_size > 10_000
        kit(*arguments)
        assert results_in(tmp_path / "out").made.job == results.made.job


def test_dillema_on_imagenet_folders_whose_retraining_is_refused(tmp_path: Path) -> None:
    """Too few images to retrain on end the command, which has written its tables by then."""
    data = write_imagenet(tmp_path / "imagenet", 8)
    with running(tmp_path / "system", "tiny") as url:
        done = run_kit(
            *("dillema", data / "val", "--classes", data / "classes.txt", "--out", tmp_path / "out", "--url", url),
            *("--model", f"street={WEIGHTS}/models_under_test/street-classifier-night-bus"),
            *("--pilot", "2", "--most", "1", "--yes", "--repair"),
        )
    assert done.returncode == 1
    assert re.search(r"source images.*\b12\b", done.stderr, re.DOTALL)
    (entry,) = results_in(tmp_path / "out").results
    assert (entry.model, entry.method) == ("street", "dillema")
    assert entry.metrics is not None
    tables = (tmp_path / "out/tables.md").read_text()
    assert "8 source images of 8" in tables
    assert all(f"### {title}" in tables for title in ("Errors and validity (table I)", "Yield"))
    (row,) = [line for line in tables.splitlines() if line.startswith("| street |")]
    assert f"| {rate(entry.metrics.error_rate)} |" in row
    assert "| Table I | ResNet50, error, originals | 2.55 % | – |" in tables, "the job has another model"


def test_dillema_on_shift_folders_with_masks_and_sequences(tmp_path: Path) -> None:
    data = write_shift(tmp_path / "shift", 6)
    with running(tmp_path / "system", "tiny-roads") as url:
        model = f"mine={WEIGHTS}/roads/models_under_test/road-segmenter"
        messages = kit("dillema-roads", data, "--model", model, "--out", tmp_path / "out", "--url", url, "--pilot", "6")
        (entry,) = results_in(tmp_path / "out").results
        assert entry.segmentation is not None
        assert entry.segmentation.originals.mean_iou is not None
        assert entry.segmentation.originals.mean_iou > 0.5
        assert "not judged" in messages  # SHIFT has classes that the drawn world lacks
        assert entry.segmentation.all_originals is not None
        assert entry.segmentation.all_originals.images == 6
        tables = (tmp_path / "out/tables.md").read_text()
        (row,) = [line for line in tables.splitlines() if line.startswith("| mine |")]
        assert "(n = 6)" in row
        assert re.search(r"\| Figure 6 \| road, right, originals \| 99 % \| \d\d\.\d % \|", tables)
        assert "*each original once*" in tables, "the row to compare with the paper"
