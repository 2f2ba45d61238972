"""The measuring command with the shipped weights: its records can be read, labelled and reported."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from shared.profiles import load_profile
from tinyworld.judges.editors import drawing
from tinyworld.judges.records import RECORDS, records
from tinyworld.measure.counterfactual_report import report
from tinyworld.measure.counterfactuals import FIRST, NULL_EVERY, Measurement, edits_in_turn, read_again, sheets
from tinyworld.measure.models import decibels, scenes_of
from tinyworld.measure.scorers import score_twice, with_scorer
from tinyworld.objects.world import withheld
from tinyworld.system.folders import WEIGHTS


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two edits and the null arm of the first, in two denoising steps."""
    folder = tmp_path_factory.mktemp("measured")
    edits = list(edits_in_turn(FIRST, 2, ("weather", "colour")))
    with drawing("dillema", "tiny", {"steps": 2}, NULL_EVERY) as draw:
        rows = Measurement("dillema", load_profile("tiny"), draw, folder).batch(0, edits)
    (folder / RECORDS).write_text("".join(record.model_dump_json() + "\n" for record in rows))
    return folder


def test_every_image_has_a_complete_record(measured: Path) -> None:
    rows = records(measured)
    assert [(record.id, record.arm, record.field) for record in rows] == [
        ("00000", "edit", "weather"),
        ("00000n", "null", "weather"),
        ("00001", "edit", "colour"),
    ]
    profile = load_profile("tiny")
    for record in rows:
        assert (measured / record.image).exists()
        assert (measured / record.source).exists()
        assert set(record.predicted) == set(profile.evaluator.models_under_test)
        assert {"structure", "label", "label_margin"} <= set(record.scores)
        assert record.arm == "edit" or (record.accepted and "caption" not in record.scores)
    digests = {hashlib.sha256(np.asarray(Image.open(measured / record.image)).tobytes()).hexdigest() for record in rows}
    assert len(digests) == 3


def test_reading_the_images_again_gives_the_same_records(measured: Path) -> None:
    rows = records(measured)
    forgotten = [
        record.model_copy(update={"kept": not record.kept, "others": ("size",), "readable_fields": None})
        for record in rows
    ]
    assert read_again(measured, forgotten, list(edits_in_turn(FIRST, 2, ("weather", "colour")))) == rows


def test_the_profiles_scorer_again_changes_no_verdict_and_a_spoilt_one_changes_scores(
    measured: Path, tmp_path: Path
) -> None:
    profile = load_profile("tiny")
    shutil.copytree(WEIGHTS / "scorer", tmp_path, dirs_exist_ok=True)
    same = list(score_twice(measured, profile, with_scorer(profile, tmp_path)))
    assert [image.record.id for image in same] == ["00000", "00001"]
    for image in same:
        assert image.scores[0] == image.scores[1]
        assert image.accepted == (image.record.accepted, image.record.accepted)
        assert image.scores[0] == pytest.approx(image.record.scores, abs=1e-3)
    tensors = load_file(tmp_path / "model.safetensors")
    spoilt = {name: value if value.ndim < 2 else value * 0.9 for name, value in tensors.items()}
    save_file(spoilt, tmp_path / "model.safetensors", metadata={"format": "pt"})
    other = list(score_twice(measured, profile, with_scorer(profile, tmp_path)))
    assert all(image.scores[0]["likeness"] != image.scores[1]["likeness"] for image in other)
    assert all(image.scores[0]["structure"] == image.scores[1]["structure"] for image in other)


def test_the_report_and_the_sheets_come_from_the_records(measured: Path) -> None:
    rows = records(measured)
    text = report(rows, {"method": "dillema"})
    assert "2 counterfactuals" in text
    assert "== null arms (1)" in text
    assert {"sheet-weather.png", "sheet-colour.png"} <= {path.name for path in sheets(measured, rows)}


def test_seen_and_withheld_combinations_are_drawn_apart() -> None:
    assert all(withheld(scene) for scene in scenes_of(5, rare=True))
    assert not any(withheld(scene) for scene in scenes_of(5, rare=False))


def test_decibels_of_a_tenth_of_full_scale() -> None:
    assert float(decibels(np.float64(25.5**2))) == pytest.approx(20.0)
