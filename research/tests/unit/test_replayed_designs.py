"""Designs replayed from given pairs: what is planted is found, and an adaptive job finds more of it."""

from __future__ import annotations

import numpy as np

from research.replayed_designs import ANSWER, ReplayedModel, estimated_model, format_rows, measure, planted_places
from research.system.packed import read_text
from research.yardstick.__main__ import COMMITTED_KEY
from research.yardstick.formats import Answer, AnswerKey

KEY = AnswerKey.model_validate_json(read_text(COMMITTED_KEY))
PLACES = [f"{label}/{value}" for label in ("car", "bus", "truck", "boat") for value in ("night", "snow", "fog", "rain")]


def model(name: str, lost: dict[str, float]) -> ReplayedModel:
    """Forty pairs at each place; a share of them is lost."""
    pairs = {place: np.where(np.arange(40) < 40 * lost.get(place, 0.0), -1.0, 0.0) for place in PLACES}
    return ReplayedModel(name, 300, 1_200, pairs, dict.fromkeys(PLACES, 50))


def test_recall_is_of_planted_places_and_what_is_invented_of_all_others() -> None:
    assert planted_places(next(entry for entry in KEY.models if entry.name == "night-bus-60")) == {"bus/night": 60}
    models = [model("night-bus-60", {"bus/night": 0.6}), model("clean-01", {})]
    *_, figures = measure(models, KEY, jobs=6)
    (planted,) = figures.planted
    assert (planted.place, planted.dose, planted.pairs, round(planted.drop, 3)) == ("bus/night", 60, 40, 0.6)
    assert min(planted.recall.values()) == 1.0
    assert set(figures.invented.values()) == {0.0}
    assert "about 60 points, 1 cells, adaptive 1.00 (1.00 to 1.00)" in list(format_rows(figures))


def test_edits_are_spread_as_the_design_says() -> None:
    clean = model("clean-01", {})
    assert set(clean.free_edits().values()) == {1_200 // len(PLACES)}
    differences = clean.draw("bus/night", 1_000, np.random.default_rng(0))
    assert 740 < np.isfinite(differences).sum() < 860  # 40 of 50 count


def test_an_adaptive_job_finds_more_at_equal_edits() -> None:
    (figures,) = measure([model("night-bus-30", {"bus/night": 0.25})], KEY, jobs=30)
    (planted,) = figures.planted
    assert planted.recall["adaptive"] > planted.recall["even"]


def test_populations_have_the_effects_of_an_answer() -> None:
    answer = Answer.model_validate_json(read_text(ANSWER))
    for name in ("night-bus-30", "clean-01"):
        populations = estimated_model(name, answer.cells, 300, 1_200)
        cells = [cell for cell in answer.cells if cell.model == name and cell.cell.direction == "to"]
        assert len(populations.places) == len(cells) == 28
        for cell in cells:
            pairs = populations.pairs[f"{cell.cell.label}/{cell.cell.value}"]
            assert abs(pairs.mean() - (cell.effect or 0.0)) < 0.001
            assert set(pairs) <= {-1.0, 0.0, 1.0}
