"""Replays of the yardstick from a job's rows: populations of places, and both rules of findings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.replayed_designs import latest_rows, replayed_model
from benchmarks.replayed_rules import answers, by_todays_rules
from gateway.database.sessions import Sessions, reading
from shared.schemas.results import Cell
from tests.support.drawn_job import add_drawn_job
from tests.support.gateway_under_test import serve_gateway
from tinyworld.yardstick.formats import Answer, FoundCell

BUS_AT_NIGHT = Cell(label="bus", factor="weather", value="night", direction="to")


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """A finished job whose model `night-bus` fails on buses at night; `sound` errs at random."""
    with serve_gateway(tmp_path_factory.mktemp("gateway")) as served:
        add_drawn_job(served.context.sessions, served.context.store, per_class=20)
        yield served.context.sessions


def test_both_rules_find_the_planted_cell_and_only_todays_tests_more_than_5_points(sessions: Sessions) -> None:
    with reading(sessions) as session:
        before, now = answers(session)
    assert before.models == now.models == ["night-bus", "sound"]
    for answer in (before, now):
        findings = [cell.cell for cell in answer.cells if cell.model == "night-bus" and cell.finding and cell.effect]
        assert BUS_AT_NIGHT in findings
        assert not any(cell.finding for cell in answer.cells if cell.model == "sound")
    assert {cell.cell for cell in now.cells} <= {cell.cell for cell in before.cells}


def test_a_population_has_the_pairs_of_a_place_and_all_its_edits(sessions: Sessions) -> None:
    with reading(sessions) as session:
        model = replayed_model("night-bus", latest_rows(session)["night-bus"], 300, 1_200)
    assert {place.partition("/")[0] for place in model.places} == {"bus", "car", "boat"}
    assert model.pairs["bus/night"].mean() < -0.5
    assert all(model.rendered[place] >= len(model.pairs[place]) > 0 for place in model.places)


def test_an_answer_is_tested_again_with_its_effects_and_images() -> None:
    effects = {"night": (-0.6, 40), "snow": (-0.12, 200), "fog": (0.0, 200), "rain": (-0.875, 8)}
    cells = [
        FoundCell(
            model="one",
            cell=Cell(label="bus", factor="weather", value=value, direction="to"),
            effect=effect,
            images=images,
            finding=value != "fog",
        )
        for value, (effect, images) in effects.items()
    ]
    answer = Answer(method="any", models=["one"], factors=["weather"], cells=cells)
    again = {cell.cell.value: cell for cell in by_todays_rules(answer).cells}
    assert {value: (cell.effect, cell.images) for value, cell in again.items()} == effects
    assert {value: cell.finding for value, cell in again.items()} == {
        "night": True,
        "snow": False,  # beyond 0, but not beyond 5 points
        "fog": False,
        "rain": False,  # too few images
    }
