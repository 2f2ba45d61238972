"""The page that compares two sides: its form, figures, links and refusals."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping

import httpx
import pytest

from gateway.database.tables import LOCAL_OWNER, Job
from gateway.methods import read_method
from gateway.report.build import build_report
from tests.support.compared_jobs import REFUSED, add_compared_jobs
from tests.support.gateway_under_test import serve_gateway

CHOICE = {"model": "weak", "method": "dillema", "other_model": "sound"}
NIGHT = {"class": "bus", "factor": "weather", "value": "night"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serve_gateway(tmp_path_factory.mktemp("pages")) as gateway:
        add_compared_jobs(gateway)
        with gateway.context.sessions.begin() as session:
            for job, models in (("alone", ["sound"]), ("untested", [])):
                row = Job(id=job, owner_id=LOCAL_OWNER, state="done", task_description="name it", profile="p")
                row.methods, row.models = [read_method("dillema", {})], models
                session.add(row)
        build_report(gateway.context.sessions, gateway.context.store, "made")
        yield gateway.client


def page(client: httpx.Client, choice: Mapping[str, str], status: int = 200) -> str:
    reply = client.get("/jobs/made/compare", params=choice)
    assert reply.status_code == status, reply.text
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert not re.search(r"<script>|<style|\son\w+=|\sstyle=|(?:src|href)=\"https?:", reply.text)
    return html.unescape(reply.text)


def selected(text: str) -> dict[str, str]:
    """The selected option of each list of the form."""
    lists = re.findall(r'<select name="(\w+)">(.*?)</select>', text, re.DOTALL)
    options = {name: re.search(r"<option[^>]*selected>([^<]*)<", content) for name, content in lists}
    return {name: option[1] for name, option in options.items() if option}


def test_the_page_of_a_job_leads_to_the_comparison(client: httpx.Client) -> None:
    assert 'href="/jobs/made/compare"' in client.get("/jobs/made/view").text


def test_without_choices_two_models_are_compared(client: httpx.Client) -> None:
    text = page(client, {})
    chosen = {"model": "sound", "method": "dillema", "other_model": "weak", "other_method": "dillema"}
    assert selected(text) == chosen
    assert re.search(r'bus, to night</a> <span class="tag better">better', text)


@pytest.mark.slow
def test_the_other_side_differs_in_one_thing(client: httpx.Client) -> None:
    text = page(client, {"model": "weak", "method": "dillema", "other_method": "lance"})
    assert selected(text)["other_model"] == "weak"
    assert "paired by source image" in text
    other = selected(page(client, {"model": "weak", "method": "dillema", "other_job": "copy"}))
    assert (other["other_model"], other["other_method"]) == ("weak", "dillema")


def test_a_cell_leads_to_its_images(client: httpx.Client) -> None:
    text = page(client, CHOICE)
    link = re.search(r'<a href="([^"#]+)#images">bus, to night</a> <span class="tag weak">worse', text)
    assert link
    shown = html.unescape(client.get(link[1]).text)
    assert all(f"{name}={value}" in link[1] for name, value in {**CHOICE, **NIGHT}.items())
    assert "bus, to night: 28 counterfactuals" in re.sub(r"\s+", " ", shown)
    assert shown.count('class="disagreement"') == 8
    assert set(selected(shown).values()) >= {"weak", "sound"}, "the choices stay"


def test_the_images_come_in_pages_that_do_not_overlap(client: httpx.Client) -> None:
    path: str | None = str(httpx.URL("/jobs/made/compare", params={**CHOICE, **NIGHT}))
    links: list[str] = []
    while path:
        text = html.unescape(client.get(path).text)
        links += re.findall(r'href="(/jobs/made/pairs/[^"]+)"', text)
        following = re.search(r'rel="next" href="([^"#]+)', text)
        path = following[1] if following else None
    assert len(links) == len(set(links)) == 28
    assert client.get(links[0]).status_code == 200


def test_two_jobs_show_the_images_of_both(client: httpx.Client) -> None:
    text = page(client, {**CHOICE, **NIGHT, "other_job": "copy"})
    row = text.partition('class="disagreement"')[2].partition("</article>\n</article>")[0]
    assert 'href="/jobs/made/pairs/' in row
    assert 'href="/jobs/copy/pairs/' in row


@pytest.mark.parametrize("job", REFUSED)
def test_what_cannot_be_compared_has_its_sentence_and_keeps_the_form(client: httpx.Client, job: str) -> None:
    status, words = REFUSED[job]
    text = page(client, {**CHOICE, "other_job": job}, status)
    problem = re.search(r'role="alert">([^<]+)<', text)
    assert problem
    assert words in problem[1]
    assert '<select name="other_job">' in text


@pytest.mark.parametrize("job", ["alone", "untested"])
def test_a_job_without_another_side_opens_with_what_to_choose(client: httpx.Client, job: str) -> None:
    reply = client.get(f"/jobs/{job}/compare")
    assert reply.status_code == 200
    assert 'role="status"' in reply.text
    assert 'class="problem"' not in reply.text
    assert '<select name="other_job">' in reply.text


def test_two_equal_sides_are_an_open_choice(client: httpx.Client) -> None:
    same = {"model": "weak", "method": "dillema", "other_model": "weak", "other_method": "dillema"}
    assert "Choose another side" in page(client, same)


def test_everything_that_the_page_loads_is_there(client: httpx.Client) -> None:
    loaded = set(re.findall(r'(?:src|<link[^>]* href)="([^"]+)"', page(client, CHOICE)))
    assert any("compare.js" in address for address in loaded)
    for address in loaded:
        assert client.get(address).status_code == 200, address


def test_an_unknown_job_is_not_found(client: httpx.Client) -> None:
    assert client.get("/jobs/nowhere/compare").status_code == 404
