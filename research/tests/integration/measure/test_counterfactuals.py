"""The measuring command with the shipped weights: its records can be read, labelled and reported."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from research.judges.editors import drawing
from research.judges.records import RECORDS, records
from research.measure.counterfactual_report import report
from research.measure.counterfactuals import FIRST, NULL_EVERY, Measurement, edits_in_turn, read_again, sheets
from research.measure.models import decibels, scenes_of
from shared.profiles.profile import load_profile
from tinyworld.objects.world import withheld


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
