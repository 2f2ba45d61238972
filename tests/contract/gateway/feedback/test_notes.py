"""Status and note of findings: over HTTP, in results, report, export, and by the command line."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator

import httpx
import pytest

from contrafact.cli import app
from contrafact.client import Client
from gateway.auth.keys import create_key
from gateway.database.tables import Answer
from gateway.feedback import notes
from gateway.report.build import build_report
from shared.problems import NotFound
from shared.schemas.finding_notes import FindingNoteRequest
from tests.support.drawn_job import serve_drawn_job
from tests.support.gateway_under_test import Gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with serve_drawn_job(tmp_path_factory.mktemp("notes"), per_class=14) as served:
        yield served


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    client = Client(str(gateway.client.base_url))
    yield client
    client.close()


def noted_in_results(http: httpx.Client) -> list[str]:
    metrics = http.get("/jobs/drawn/results?limit=1").json()["metrics"]
    cells = [cell for figures in metrics["results"] for cell in figures["cells"]]
    return [f"{cell['note']['status']}: {cell['note']['note']}" for cell in cells if cell["note"]]


@pytest.mark.slow
def test_a_note_is_in_the_results_and_the_export_at_once_and_in_the_report_when_it_is_rebuilt(
    gateway: Gateway, client: Client
) -> None:
    (finding,) = client.findings("drawn").findings
    assert (finding.model, finding.effect.cell.value, finding.effect.note) == ("night-bus", "night", None)
    view = client.note_finding("drawn", finding.id, FindingNoteRequest(status="known", note="<b>ticket</b> 7"))
    assert view.effect.note is not None
    assert (view.effect.note.status, view.effect.note.author) == ("known", "local")
    assert noted_in_results(gateway.client) == ["known: <b>ticket</b> 7"]
    with tarfile.open(fileobj=io.BytesIO(gateway.client.get("/jobs/drawn/export").content)) as archive:
        described = archive.extractfile("contrafact.json")
        assert described
        exported = json.load(described)["findings"]
    assert [entry["effect"]["note"]["note"] for entry in exported] == ["<b>ticket</b> 7"]
    assert "ticket" not in client.report("drawn").decode()
    build_report(gateway.context.sessions, gateway.context.store, "drawn")
    assert "&lt;b&gt;ticket&lt;/b&gt; 7" in client.report("drawn").decode()
    assert "**known**" in client.report("drawn", "md").decode()
    assert client.findings("drawn").findings[0].id == finding.id, "a rebuilt report keeps the id"


def test_a_new_note_replaces_the_old_one_and_an_empty_one_removes_it(gateway: Gateway, client: Client) -> None:
    finding = client.findings("drawn").findings[0].id
    with gateway.context.sessions.begin() as session:
        notes.record(session, "local", "ann", "drawn", finding, FindingNoteRequest(note="first"))
    client.note_finding("drawn", finding, FindingNoteRequest(status="fixed"))
    assert noted_in_results(gateway.client) == ["fixed: "]
    client.note_finding("drawn", finding, FindingNoteRequest())
    assert noted_in_results(gateway.client) == []
    with gateway.context.sessions() as session:
        assert session.query(Answer).all() == []


@pytest.mark.parametrize(
    ("body", "words"), [({"status": "wrong"}, "status"), ({"note": "x" * 2_001}, "note"), ({"remark": ""}, "remark")]
)
def test_what_no_note_is_is_refused(gateway: Gateway, client: Client, body: dict[str, str], words: str) -> None:
    finding = client.findings("drawn").findings[0].id
    reply = gateway.client.put(f"/jobs/drawn/findings/{finding}", json=body)
    assert reply.status_code == 422
    assert words in reply.json()["detail"]


def test_only_findings_have_notes(client: Client) -> None:
    with pytest.raises(NotFound, match="GET /jobs/drawn/findings lists them"):
        client.note_finding("drawn", "0" * 16, FindingNoteRequest(note="x"))
    with pytest.raises(NotFound):
        client.findings("none")


def test_the_commands_set_and_list_notes(
    gateway: Gateway, client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTRAFACT_URL", str(gateway.client.base_url))
    finding = client.findings("drawn").findings[0].id

    def run(*arguments: str) -> str:
        app(arguments, standalone_mode=False)
        return capsys.readouterr().out

    assert finding in run("notes", "drawn")
    run("note", "drawn", finding, "paint is too dark", "--status", "artefact")
    assert "artefact" in run("findings", "drawn")
    listed = json.loads(run("notes", "drawn", "--json"))
    assert (listed["id"], listed["effect"]["note"]["note"]) == (finding, "paint is too dark")
    run("note", "drawn", finding)
    assert "artefact" not in run("findings", "drawn")


def test_the_form_refuses_other_sites_and_shows_what_is_wrong(gateway: Gateway, client: Client) -> None:
    finding = client.findings("drawn").findings[0].id
    data = {"finding": finding, "status": "fixed", "note": "x"}
    foreign = {"Origin": "http://evil.example"}
    assert gateway.client.post("/jobs/drawn/notes", data=data, headers=foreign).status_code == 403
    refused = gateway.client.post("/jobs/drawn/notes", data={**data, "note": "x" * 2_001})
    assert refused.status_code == 422
    assert 'role="alert"' in refused.text
    saved = gateway.client.post("/jobs/drawn/notes", data=data)
    assert (saved.status_code, saved.headers["location"]) == (303, f"/jobs/drawn/notes#{finding}")
    assert noted_in_results(gateway.client) == ["fixed: x"]


def test_a_key_that_may_review_may_note(locked: Gateway) -> None:
    with locked.context.sessions.begin() as session:
        keys = {scope: create_key(session, "ann", [scope]) for scope in ("review", "submit")}

    def status(scope: str) -> int:
        headers = {"Authorization": f"Bearer {keys[scope]}"}
        return locked.client.put("/jobs/none/findings/x", json={"note": "x"}, headers=headers).status_code

    assert (status("review"), status("submit")) == (404, 403)


def test_a_browser_with_a_login_may_send_the_form_from_our_own_page_alone(locked: Gateway, key: str) -> None:
    own = str(locked.client.base_url).rstrip("/")
    locked.client.post("/login", data={"key": key}, headers={"Origin": own})
    form = {"finding": "x", "status": "", "note": "x"}

    def status(headers: dict[str, str]) -> int:
        return locked.client.post("/jobs/none/notes", data=form, headers=headers).status_code

    assert [status({"Origin": own}), status({"Origin": "http://evil.example"}), status({})] == [404, 403, 403]
