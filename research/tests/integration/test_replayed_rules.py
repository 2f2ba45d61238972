"""Replays of the yardstick from a job's rows: populations of places, and both rules of findings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Counterfactual, Job, SourceImage
from research import replayed_rules
from research.replayed_designs import latest_rows, replayed_model
from research.replayed_rules import answers, by_todays_rules
from research.yardstick.formats import Answer, FoundCell
from shared.schemas.effects import Cell
from tests.support.drawn_job import add_drawn_job
from tests.support.gateway_under_test import serve_gateway

BUS_AT_NIGHT = Cell(label="bus", factor="weather", value="night", direction="to")


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """A finished job whose model `night-bus` fails on buses at night; `sound` errs at random. Every tenth image lost
    its null arm."""
    with serve_gateway(tmp_path_factory.mktemp("gateway")) as served:
        add_drawn_job(served.context.sessions, served.context.store, per_class=20)
        with served.context.sessions.begin() as session:
            tenth = select(SourceImage.id).where(SourceImage.position % 10 == 0)
            edits = (Counterfactual.arm == "edit", Counterfactual.source_image_id.in_(tenth))
            session.execute(update(Counterfactual).where(*edits).values(null_check="label"))
        yield served.context.sessions


def test_every_rule_finds_the_planted_cell_and_nothing_of_a_sound_model(sessions: Sessions) -> None:
    with reading(sessions) as session:
        before, both_arms, now = answers(session)
    assert before.models == both_arms.models == now.models == ["night-bus", "sound"]
    for answer in (before, both_arms, now):
        findings = [cell.cell for cell in answer.cells if cell.model == "night-bus" and cell.finding and cell.effect]
        assert BUS_AT_NIGHT in findings
        assert not any(cell.finding for cell in answer.cells if cell.model == "sound")
    assert {cell.cell for cell in now.cells} <= {cell.cell for cell in before.cells}


def test_the_filter_of_both_arms_gives_todays_effects(sessions: Sessions) -> None:
    with reading(sessions) as session:
        before, both_arms, now = (
            {(cell.model, cell.cell): (round(cell.effect or 0.0, 4), cell.images) for cell in answer.cells}
            for answer in answers(session)
        )
    assert both_arms == now != before


def test_jobs_of_another_size_are_left_out(sessions: Sessions) -> None:
    with reading(sessions) as session:
        (job,) = session.scalars(select(Job).where(Job.state == "done"))
        assert list(latest_rows(session, job.counts["images"])) == ["night-bus", "sound"]
        assert latest_rows(session, job.counts["images"] + 1) == {}


def test_a_population_has_the_pairs_of_a_place_and_all_its_edits(sessions: Sessions) -> None:
    with reading(sessions) as session:
        model = replayed_model("night-bus", latest_rows(session)["night-bus"], 300, 1_200)
    assert {place.partition("/")[0] for place in model.places} == {"bus", "car", "boat"}
    assert model.pairs["bus/night"].mean() < -0.5
    assert all(model.rendered[place] >= len(model.pairs[place]) > 0 for place in model.places)


def test_an_answer_is_tested_again_with_its_effects_and_images() -> None:
    effects = {"night": (-0.6, 40), "snow": (-0.07, 200), "fog": (0.0, 200), "rain": (-0.875, 8)}
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


@pytest.mark.parametrize("named", [False, True])
def test_a_file_is_written_only_where_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    committed = Path(replayed_rules.__file__).parent / "results"
    before = {path: path.stat().st_mtime_ns for path in committed.iterdir()}
    answer, out = tmp_path / "answer.json", tmp_path / "scores.json"
    answer.write_text(
        Answer(method="any", models=["night-bus-60"], factors=["weather"], cells=[]).model_dump_json(), encoding="utf-8"
    )
    options = ["--answer", str(answer), *(["--out", str(out)] if named else [])]
    monkeypatch.setattr(sys, "argv", ["replayed_rules", *options])
    replayed_rules.main()
    assert out.exists() == named
    assert {path: path.stat().st_mtime_ns for path in committed.iterdir()} == before
