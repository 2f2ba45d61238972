"""`contrafact dose` against a running system: it renders the doses, and prints the findings with their curves."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from contrafact.cli import app
from embedded.run import run_embedded
from gateway.database.sessions import open_engine, open_sessions
from gateway.database.tables import Job, Prediction
from gateway.report.build import build_report
from shared.media.storage import DirectoryStore
from shared.schemas.service import SERVICES
from tests.support.drawn_job import add_drawn_job
from tests.support.small_services import SmallServices, serve


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A system of small services with the finished job `drawn`, whose model `m1` fails on buses at night."""
    directory = tmp_path_factory.mktemp("embedded")
    with (
        serve(SmallServices()) as services,
        run_embedded(directory, service_urls=dict.fromkeys(SERVICES, services)) as system,
    ):
        engine = open_engine(f"sqlite:///{directory / 'contrafact.db'}")
        sessions, store = open_sessions(engine), DirectoryStore(directory / "objects")
        add_drawn_job(sessions, store, per_class=14)
        with sessions.begin() as session:
            session.execute(update(Job).values(models=["m1"]))
            session.execute(update(Prediction).where(Prediction.model == "night-bus").values(model="m1"))
        build_report(sessions, store, "drawn", [])
        yield system.base_url
        engine.dispose()


def dose(url: str, *arguments: str, code: int = 0) -> str:
    """Everything that the command prints; it ends with `code`."""
    result = CliRunner().invoke(app, ["dose", *arguments], env={"CONTRAFACT_URL": url})
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.slow
def test_the_findings_are_printed_with_their_dose_curves(url: str) -> None:
    output = dose(url, "drawn", "--wait")
    assert "with the dose" in " ".join(output.split())
    metrics = json.loads(dose(url, "drawn", "--wait", "--json").splitlines()[-1])
    curves = [cell["dose"] for figures in metrics["results"] for cell in figures["cells"] if cell["dose"]]
    assert [[point["dose"] for point in curve["points"]] for curve in curves] == [[0.5, 1, 1.5]]


def test_what_cannot_be_dosed_ends_with_a_sentence_and_a_code(url: str) -> None:
    assert "1 (the finding's own)" in " ".join(dose(url, "drawn", "--doses", "0.5,2", code=2).split())
    assert "no weakness" in dose(url, "drawn", "--method", "lance", code=3)
    assert "there is no job" in dose(url, "nothing", code=3)
