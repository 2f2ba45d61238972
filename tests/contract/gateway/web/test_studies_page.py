"""The page of a job's studies: made, invited, rated, uploaded and deleted by forms, with and without scripts."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from shared.schemas.studies import AnswersStored, StudyRequest, StudyView
from tests.support.browser import needs_browser, open_page, overflow, violations
from tests.support.command_line import contrafact
from tests.support.drawn_job import add_drawn_job, serve_drawn_job
from tests.support.gateway_under_test import Gateway, key_of
from tests.support.study_raters import careful, csv_of, invite, items_of, make_study, rate_all

PAGE = "/jobs/drawn/studies/view"
FORM = {"questions": "dillema", "sample": "accepted", "per_method": "2", "raters_per_item": "1", "controls": "1"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a finished job `drawn` and one `running`."""
    with serve_drawn_job(tmp_path_factory.mktemp("studies"), per_class=2) as served:
        add_drawn_job(served.context.sessions, served.context.store, "running", per_class=1, state="running")
        yield served


@pytest.fixture
def no_studies(gateway: Gateway) -> Gateway:
    for study in gateway.client.get("/jobs/drawn/studies").json()["studies"]:
        gateway.client.delete(f"/studies/{study['id']}")
    return gateway


def shown(gateway: Gateway, path: str = PAGE, status: int = 200) -> str:
    reply = gateway.client.get(path)
    assert reply.status_code == status, reply.text
    return html.unescape(reply.text)


def create(gateway: Gateway, **fields: str) -> str:
    """A study made by the form; returns its id."""
    reply = gateway.client.post(PAGE, data={**FORM, **fields})
    assert reply.status_code == 303, html.unescape(reply.text)
    study = re.fullmatch(rf"{PAGE}\?study=(\w+)#study", reply.headers["location"])
    assert study
    return study[1]


def test_a_study_is_made_by_the_form_as_by_the_api(no_studies: Gateway) -> None:
    text = shown(no_studies)
    assert "New study" in text
    assert 'id="studies"' not in text
    study = create(no_studies, title="Buses", questions="lance", consensus="0.75", attention="2")
    (view,) = no_studies.client.get("/jobs/drawn/studies").json()["studies"]
    expected = {"title": "Buses", "questions": "lance", "per_method": 2, "raters_per_item": 1, "consensus": 0.75}
    assert expected.items() <= view["request"].items()
    text = shown(no_studies)
    for words in ("Buses", "How real does the changed image look?", "Nobody has answered yet.", "0 of 2"):
        assert words in text
    assert f"/studies/{study}/items.csv" in text
    own = [{"name": "still", "text": "Is it still a {label}?", "label_kept": True}]
    create(no_studies, questions="own", own_questions=json.dumps(own))
    assert "Is it still a {label}?" in shown(no_studies), "the newest study is shown"
    assert "How real" in shown(no_studies, f"{PAGE}?study={study}")
    shown(no_studies, f"{PAGE}?study=none", 404)
    shown(no_studies, "/jobs/none/studies/view", 404)


def test_the_command_has_every_option_of_the_form(no_studies: Gateway) -> None:
    options: dict[str, str | float] = {"questions": "lance", "sample": "misclassified", "per-method": 3}
    options |= {
        "model": "night-bus",
        "raters-per-item": 2,
        "items-per-rater": 4,
        "consensus": 0.75,
        "controls": 2,
        "attention": 0,
        "least-control-score": 0.5,
        "element": "bus",
        "per-factor": 3,
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    study = contrafact(str(no_studies.client.base_url), "study", "create", "drawn", *flags)[0].strip()
    stored = no_studies.client.get(f"/studies/{study}").json()["request"]
    assert {name.replace("-", "_"): value for name, value in options.items()}.items() <= stored.items()
    assert set(StudyRequest.model_fields) == {*(name.replace("-", "_") for name in options), "title", "methods"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"per_method": "0"}, "per_method"),
        ({"questions": "own", "own_questions": "not JSON"}, "own_questions"),
        ({"questions": "other"}, "questions"),
        ({"methods": "magic"}, "methods"),
        ({"controls": "few"}, "controls"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_refusal_is_on_the_form_with_its_input(no_studies: Gateway, fields: dict[str, str], field: str) -> None:
    reply = no_studies.client.post(PAGE, data={**FORM, "title": "Kept & <shown>", **fields})
    assert reply.status_code in (400, 422), reply.text
    text = html.unescape(reply.text)
    problem = re.search(r'<p id="problem" class="problem" role="alert">([^<]+)</p>', text)
    assert problem
    assert field.removeprefix("own_") in problem[1] or "method" in problem[1]
    assert "<shown>" not in reply.text
    assert 'value="Kept & <shown>"' in text
    assert no_studies.client.get("/jobs/drawn/studies").json()["studies"] == []


def test_links_are_shown_once_and_their_answers_become_results(no_studies: Gateway) -> None:
    study = create(no_studies)
    reply = no_studies.client.post(f"/jobs/drawn/studies/{study}/invitations", data={"raters": "2"})
    assert reply.status_code == 200
    links = re.findall(r"http://[^\s<]+(/rate/[\w-]+)", html.unescape(reply.text))
    assert len(links) == 2
    assert "/rate/" not in shown(no_studies)
    view = no_studies.client.get(f"/studies/{study}").json()
    rate_all(no_studies, links[0], view)
    text = re.sub(r"<[^>]+>|\s+", " ", shown(no_studies))
    assert "2 of 2 edits are rated by enough raters; 0 of 2 raters are left out" in re.sub(" +", " ", text)
    figures = no_studies.client.get(f"/studies/{study}/results").json()["figures"]
    assert figures[0]["yes"]["count"] == 2
    assert "(2 of 2;" in text
    assert "1 of 2" in text, "raters who finished"
    refused = no_studies.client.post(f"/jobs/drawn/studies/{study}/invitations", data={"raters": "0"})
    assert refused.status_code == 422
    assert 'name="raters" type="number" min="1" max="500" value="0" required aria-invalid="true"' in refused.text


def test_answers_come_as_a_file_and_a_study_is_deleted(no_studies: Gateway) -> None:
    study = create(no_studies)
    view = no_studies.client.get(f"/studies/{study}").json()
    names = ["label_kept", "realistic"]
    questions = StudyRequest().question_list
    items = items_of(no_studies, view["id"])
    rows = [["ann", id, *(careful(item, question) for question in questions)] for id, item in items.items()]
    address = f"/jobs/drawn/studies/{study}/answers"
    data = csv_of(["rater", "item", *names], rows)
    reply = no_studies.client.post(address, files={"answers": ("a.csv", data)})
    assert reply.status_code == 200
    stored = StudyView.model_validate(no_studies.client.get(f"/studies/{study}").json())
    assert stored.answered == len(rows)
    assert AnswersStored(answers=len(rows), raters=1, unchecked_raters=0).sentence in html.unescape(reply.text)
    assert "ann" in shown(no_studies)
    for wrong, words in ((b"rater,item\n", "needs each of"), (b"", "no file")):
        reply = no_studies.client.post(address, files={"answers": ("a.csv", wrong)})
        assert reply.status_code == 422
        assert words in reply.text
    assert no_studies.client.post(f"/jobs/drawn/studies/{study}/delete").headers["location"] == PAGE
    assert "Studies of this job" not in shown(no_studies)
    assert no_studies.client.post(f"/jobs/drawn/studies/{study}/delete").status_code == 404


def test_a_running_job_has_no_form(gateway: Gateway) -> None:
    text = shown(gateway, "/jobs/running/studies/view")
    assert "<form" not in text
    assert gateway.client.post("/jobs/running/studies/view", data=FORM).status_code == 409


def test_with_keys_the_forms_need_a_session_of_this_site(locked: Gateway) -> None:
    key = key_of(locked, "ann")["Authorization"].removeprefix("Bearer ")
    site = {"Origin": str(locked.client.base_url).rstrip("/")}
    assert locked.client.post("/login", data={"key": key}, headers=site).status_code == 303
    for path in ("view", "some/invitations", "some/answers", "some/delete"):
        address = f"/jobs/drawn/studies/{path}"
        foreign = locked.client.post(address, data={"raters": "1"}, headers={"Origin": "https://elsewhere.example"})
        assert foreign.status_code == 403
        own = locked.client.post(address, data={"raters": "1"}, headers=site)
        assert own.status_code in (404, 415), (path, own.text)


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_accessible_fits_and_works_by_keyboard(
    no_studies: Gateway, browser: Browser, dark: bool, phone: bool
) -> None:
    view = make_study(no_studies, {"per_method": 2, "raters_per_item": 1, "questions": "lance", "title": "First"})
    rate_all(no_studies, str(invite(no_studies, view["id"])[0]["link"]), view)
    with open_page(browser, str(no_studies.client.base_url).rstrip("/") + PAGE, phone=phone, dark=dark) as page:
        for summary in page.locator("summary").all():
            summary.click()
        assert not violations(page)
        assert overflow(page) <= 0
        page.locator('[name="title"]').fill("Second")
        page.locator('[name="per_method"]').fill("1")
        page.locator('[name="per_method"]').press("Enter")
        expect(page.get_by_role("heading", level=2, name="Second")).to_be_visible()
        page.locator('[name="raters"]').fill("3")
        page.locator('[name="raters"]').press("Enter")
        expect(page.get_by_label("3 new links")).to_be_visible()
        assert page.get_by_label("3 new links").input_value().count("/rate/") == 3
        assert not violations(page)
        assert overflow(page) <= 0
