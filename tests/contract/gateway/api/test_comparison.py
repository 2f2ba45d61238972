"""`/jobs/{job}/comparison`: models, methods and jobs on the same images, through the clients and the command, too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from contrafact import AsyncClient, Client
from contrafact.cli import app
from gateway.database.tables import Job
from shared.problems import InvalidInput
from shared.schemas.base import JsonObject
from shared.schemas.comparisons import CellDifference, ComparisonChoice, JobComparison
from tests.support.compared_jobs import REFUSED, add_compared_jobs
from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.suite_site import SOURCES

MODELS = {"model": "weak", "method": "dillema", "other_model": "sound"}
NIGHT = {"class": "bus", "factor": "weather", "value": "night"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The jobs `made`, `copy`, and those of `REFUSED`."""
    with serve_gateway(tmp_path_factory.mktemp("gateway")) as served:
        add_compared_jobs(served)
        yield served


def compare(gateway: Gateway, job: str = "made", **choice: str) -> JobComparison:
    reply = gateway.client.get(f"/jobs/{job}/comparison", params=choice)
    assert reply.status_code == 200, reply.text
    return JobComparison.model_validate_json(reply.content)


def night_of(comparison: JobComparison) -> CellDifference:
    """The row of buses that became night."""
    (row,) = (
        row
        for row in comparison.cells
        if row.cell and (row.cell.label, row.cell.value, row.cell.direction) == ("bus", "night", "to")
    )
    return row


def test_two_models_differ_in_the_planted_cell_only(gateway: Gateway) -> None:
    comparison = compare(gateway, **MODELS)
    assert comparison.pairing == "edit"
    night = night_of(comparison)
    assert night.judgement == "worse"
    assert night.difference == pytest.approx(night.effect - night.other_effect)
    assert night.difference < -0.5
    assert {row.judgement for row in comparison.cells if row.cell and row.cell.label != "bus"} == {
        "no difference found"
    }
    assert comparison.cells[0].judgement == "worse"
    assert (comparison.only_this, comparison.only_other, comparison.relabelled) == (0, 0, 0)
    assert comparison.sources == 2 * SOURCES


def test_a_side_that_is_not_right_on_the_originals_is_said_first(gateway: Gateway) -> None:
    """A model that is never right loses nothing, and was called "better"."""
    assert compare(gateway, **MODELS).reserve == ""
    refused: JsonObject = {"weak": {"standing": "unsound", "sentence": "Not testable: right on 0 %."}}
    with gateway.context.sessions.begin() as session:
        job = session.get_one(Job, "made")
        spec, job.spec = job.spec, {**job.spec, "refused": refused}
        job.events += 1
    try:
        assert compare(gateway, **MODELS).reserve == "`weak`: Not testable: right on 0 %."
        assert "right on 0 %" in gateway.client.get("/jobs/made/compare", params=MODELS).text
    finally:
        with gateway.context.sessions.begin() as session:
            job = session.get_one(Job, "made")
            job.spec = spec
            job.events += 1


def test_the_same_comparison_is_computed_again_bit_for_bit(gateway: Gateway) -> None:
    assert compare(gateway, **MODELS) == compare(gateway, **MODELS)


@pytest.mark.slow
def test_disagreements_are_of_the_cell_the_largest_first_and_their_pages_do_not_overlap(gateway: Gateway) -> None:
    everything = compare(gateway, **MODELS, limit="100")
    sizes = [abs(row.effect - row.other_effect) for row in everything.disagreements]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) > 0
    assert len(sizes) == everything.disagreeing
    assert everything.next is None
    ids: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = compare(gateway, **MODELS, limit="4", **cursor)
        ids += [row.counterfactuals[0].id for row in page.disagreements]
        if page.next is None:
            break
        cursor = {"cursor": page.next}
    assert ids == [row.counterfactuals[0].id for row in everything.disagreements]
    night = compare(gateway, **MODELS, **NIGHT)
    assert night.disagreeing == 28, "seven buses of ten, of 40"
    for row in night.disagreements:
        (view,) = row.counterfactuals
        assert row.other_counterfactuals == [view]
        assert (row.source.ground_truth, view.changes[0].to_value) == ("bus", "night")
        right = {opinion.model: opinion.counterfactual and opinion.counterfactual.rank for opinion in view.predictions}
        assert right["weak"] != right["sound"]


def test_two_methods_are_paired_by_source_image(gateway: Gateway) -> None:
    """Every model is right on the edits of lance, and `weak` fails at night under dillema."""
    comparison = compare(gateway, model="weak", method="dillema", other_method="lance")
    assert comparison.pairing == "source image"
    assert night_of(comparison).judgement == "worse"
    assert night_of(comparison).other_effect == 0
    row = comparison.disagreements[0]
    assert {view.method for view in row.counterfactuals} == {"dillema"}
    assert {view.method for view in row.other_counterfactuals} == {"lance"}


def test_two_jobs_are_matched_by_their_images(gateway: Gateway) -> None:
    comparison = compare(gateway, **{**MODELS, "other_job": "copy", "other_method": "lance"})
    assert (comparison.other.job, comparison.other.method) == ("copy", "lance")
    assert comparison.sources == 2 * SOURCES
    assert night_of(comparison).judgement == "worse"
    for row in comparison.disagreements:
        images = {view.source.image for view in (*row.counterfactuals, *row.other_counterfactuals)}
        assert images == {row.source.image}
    same = compare(gateway, model="weak", method="dillema", other_job="copy")
    assert (same.pairing, same.other.method) == ("source image", "dillema")
    assert night_of(same).judgement == "no difference found"


@pytest.mark.parametrize("job", REFUSED)
def test_what_cannot_be_compared_is_refused(gateway: Gateway, job: str) -> None:
    reply = gateway.client.get(
        "/jobs/made/comparison", params={"model": "sound", "method": "dillema", "other_job": job}
    )
    status, words = REFUSED[job]
    assert reply.status_code == status, reply.text
    assert words in reply.json()["detail"]


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({}, "choose a model"),
        ({"model": "sound"}, "choose a method"),
        ({"model": "sound", "method": "dillema"}, "both sides are the same"),
        ({"model": "resnet"}, "no model 'resnet'"),
        ({**MODELS, "other_method": "shifts"}, "no method 'shifts'"),
        ({**MODELS, "class": "bus"}, "name a cell by"),
        ({**MODELS, "factor": "weather", "value": "night"}, "name the cell's class"),
        ({**MODELS, **NIGHT, "value": "flood"}, "both sides need the cell"),
        ({**MODELS, "cursor": "nonsense"}, ""),
        ({**MODELS, "modle": "sound"}, "unknown parameter"),
    ],
)
def test_refusals_say_what_to_change(gateway: Gateway, choice: dict[str, str], words: str) -> None:
    reply = gateway.client.get("/jobs/made/comparison", params=choice)
    assert reply.status_code == 422, reply.text
    assert words in reply.json()["detail"]


def test_the_clients_compare(gateway: Gateway) -> None:
    url, choice = str(gateway.client.base_url), ComparisonChoice.model_validate({**MODELS, **NIGHT})
    client = Client(url)
    comparison = client.compare("made", choice, limit=3)
    assert len(comparison.disagreements) == 3
    assert client.compare("made", choice, 3, comparison.next).disagreements[0] not in comparison.disagreements
    assert gateway.client.get(client.comparison_page_of("made", choice)).status_code == 200
    with pytest.raises(InvalidInput):
        client.compare("made", ComparisonChoice())
    client.close()

    async def compare_in_loop() -> JobComparison:
        async with AsyncClient(url) as asynchronous:
            return await asynchronous.compare("made", choice, limit=3)

    assert asyncio.run(compare_in_loop()) == comparison


def test_the_command_prints_a_table_or_json(gateway: Gateway) -> None:
    def run(*options: str, code: int = 0) -> str:
        env = {"CONTRAFACT_URL": str(gateway.client.base_url)}
        result = CliRunner().invoke(app, ["compare", "made", *options], env=env)
        assert result.exit_code == code, result.output
        return result.stdout

    names = ("--model", "weak", "--method", "dillema", "--other-model", "sound")
    (line,) = (line for line in run(*names).splitlines() if "to night" in line and line.startswith("bus"))
    assert line.split()[-1] == "worse"
    assert JobComparison.model_validate_json(run(*names, "--json")) == compare(gateway, **MODELS)
    assert run("--model", "resnet", code=3) == ""
