"""Labelled natural output calibrates the shipped profile: every editor has errors and thresholds of its own."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest

from research.calibrate.natural import calibration_of, method_thresholds, with_calibration
from research.judges.label import Label
from research.judges.labelled import LabelledEdit
from research.judges.records import Record
from shared.profiles.profile import SHIPPED, load_profile

LABELS = ("bus", "car")
FACTORS = ("weather", "background", "domain")


def labelled(method: str, number: int, random: np.random.Generator) -> LabelledEdit:
    """An edit of its own source; the caption score tells valid from invalid, the other scores do not."""
    valid = bool(random.random() < 0.5)
    scores = {name: float(random.normal()) for name in ("structure", "fit")}
    scores |= {"caption": float(random.normal()) + 4 * valid, "label": float(random.random()), "label_margin": 0.5}
    record = Record(
        id=f"{number:05d}", arm="edit", source=f"{method}-{number}", image=f"{number}", label=LABELS[number % 2],
        field="weather", factor=FACTORS[number % 3], from_value="clear", to_value="rain", caption="", new_caption="",
        withheld=False, accepted=scores["caption"] > 1, check="" if scores["caption"] > 1 else "caption", scores=scores,
        kept=True, shown=True, others=(), predicted={}, weights="", method=method,
    )  # fmt: skip
    label = Label(
        image="", by="", arm="edit", label=record.label, field="weather", value="rain", class_kept=valid,
        edit_shown=valid, oracles_kept=True, oracles_shown=True, accepted=record.accepted,
    )  # fmt: skip
    return LabelledEdit(record, label, valid, scores)


@pytest.fixture(scope="module")
def edits() -> list[LabelledEdit]:
    random = np.random.default_rng(3)
    return [labelled(method, number, random) for method in ("dillema", "shifts") for number in range(180)]


def test_only_shifts_gets_thresholds_beside_the_calibration(edits: list[LabelledEdit]) -> None:
    calibration = calibration_of(edits)
    (shifts,) = method_thresholds(calibration).items()
    assert shifts[0] == "shifts"
    assert {"default", *FACTORS} == set(shifts[1]["caption"])
    assert set(shifts[1]) == {"caption", "label", "fit"}, "the fitted threshold of `structure` is below 0"
    dillema, of_shifts = calibration.methods
    assert of_shifts.fitted is not None
    assert of_shifts.fitted.auroc > 0.9, "measured on the half of the sources that did not choose the thresholds"
    assert {rates.label for rates in of_shifts.classes if rates.errors} == {"bus", "car"}
    text = (SHIPPED / "tiny.toml").read_text()
    written = with_calibration(text, calibration)
    profile, before = tomllib.loads(written), tomllib.loads(text)
    assert profile["methods"]["shifts"]["thresholds"] == shifts[1]
    assert set(profile["calibration"]["tinyworld"]["methods"]) == {"dillema", "shifts"}
    assert set(profile["calibration"]["tinyworld"]["classes"]["shifts"]) == {"bus", "car"}
    assert profile["thresholds"] == before["thresholds"]
    assert profile["methods"]["lance"] == before["methods"]["lance"]
    assert with_calibration(written, calibration) == written
    assert dillema.method == "dillema"


@pytest.mark.parametrize("method", ["dillema", "lance", "shifts"])
def test_the_shipped_profile_calibrates_each_editor_for_its_scorer(method: str) -> None:
    profile = load_profile("tiny")
    calibration = profile.calibration["tinyworld"]
    assert calibration.scorer == profile.evaluator.scorer.info("scorer").revision
    assert {"weather", "background", "domain", "adjective"} <= set(calibration.methods[method])
    assert calibration.thresholds[method]["validity"]["default"] > 0
    assert calibration.validity_model[method].images >= 100
    errors = calibration.classes.get(method, {}).values()
    assert all(counts.valid + counts.invalid >= 30 and min(counts.valid, counts.invalid) >= 10 for counts in errors)


def test_shifts_has_thresholds_of_its_own_without_a_calibration() -> None:
    profile = load_profile("tiny")
    thresholds = profile.methods["shifts"]["thresholds"]
    assert isinstance(thresholds, dict)
    assert set(thresholds) == {"caption", "label", "fit"}, "`structure` refused nothing"
    assert thresholds != profile.thresholds
