"""Every link of the results page to images says how many there are, and leads to exactly so many."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select, update

from gateway.database.tables import Counterfactual, Job, Prediction, SourceImage
from gateway.methods import read_method
from gateway.report.build import build_report
from tests.support.drawn_job import serve_drawn_job
from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.predictions import confusion_of, forget_truths
from tests.support.segmented_job import add_segmented_job

LINK = re.compile(r'<a [^>]*?href="(/jobs/\w+/gallery\?[^"]+)"([^>]*)>')
NUMBER = re.compile(r'(?:title|aria-label)="[^"]*?([\d,]+) counterfactuals?\b')


def complicate(gateway: Gateway, *, labelled: bool) -> None:
    """Give the job what figures must leave out or tell apart, and build its report again.

    Some null arms fail a check, some edits have two changes, one image has no ground truth, and wrong predictions are
    of more classes than a matrix has columns.
    """
    with gateway.context.sessions.begin() as session:
        session.get_one(Job, "drawn").methods = [read_method("dillema", {"recaption": True})]
        for row in session.scalars(select(Counterfactual).where(Counterfactual.arm == "edit")):
            row.null_check = None if row.image_digest is None else "likeness" if row.position % 5 == 4 else ""
            if row.position % 4 == 1 and row.changes:
                second = {**row.changes[0], "factor": "adjective", "from_value": "", "to_value": "red"}
                row.changes = [*row.changes, second]  # type: ignore[list-item]
                row.factor = row.from_value = row.to_value = None
            if row.position % 7 == 0 and row.image_digest is not None:
                row.scores = {**row.scores, "recaption": 0.5}
        predictions = select(Prediction).where(Prediction.job_id == "drawn").order_by(Prediction.id)
        for number, wrong in enumerate(session.scalars(predictions)):
            if number % 5 == 0:
                wrong.predicted = f"kind {number % 97:02}"
                wrong.scores = dict.fromkeys(wrong.scores, 0.0)
                wrong.detail = {**wrong.detail, "rank": 2}
        session.execute(update(SourceImage).where(SourceImage.position == 3).values(ground_truth=None))
        unlabelled = select(SourceImage.id).where(SourceImage.job_id == "drawn", SourceImage.position == 3)
        session.execute(update(Prediction).where(Prediction.source_image_id.in_(unlabelled)).values(scores={}))
        if not labelled:
            session.execute(update(SourceImage).values(ground_truth=None))
            forget_truths(session, "drawn")
    build_report(gateway.context.sessions, gateway.context.store, "drawn", [])


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with serve_drawn_job(tmp_path_factory.mktemp("labelled"), per_class=20) as gateway:
        complicate(gateway, labelled=True)
        yield gateway


@pytest.fixture(scope="module")
def segmented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with serve_gateway(tmp_path_factory.mktemp("segmented")) as gateway:
        add_segmented_job(gateway.context.sessions, gateway.context.store)
        yield gateway


def links_of(text: str) -> Mapping[str, int]:
    """Every link to images, with the number that it states."""
    links: dict[str, int] = {}
    for address, attributes in LINK.findall(text):
        number = NUMBER.search(attributes)
        assert number, f"no number: {address} {attributes}"
        stated = int(number[1].replace(",", ""))
        assert links.setdefault(html.unescape(address), stated) == stated, address
    return links


def shown_at(client: httpx.Client, address: str) -> int:
    reply = client.get(address)
    assert reply.status_code == 200, (address, reply.text)
    total = re.search(r"<b>([\d,]+)</b> counterfactual", reply.text)
    assert total
    return int(total[1].replace(",", ""))


def follow_all(client: httpx.Client, path: str) -> Mapping[str, int]:
    """Follow every link of a page; returns them with their numbers."""
    text = client.get(path).text
    squares = len(re.findall(r'<rect class="(?:share|lower|higher)"', text))
    linked = re.findall(r'<a href="[^"]+" aria-label="[^"]+">\s*<g><title>[^<]+</title>\s*<rect class="\w+"', text)
    assert len(linked) == squares > 20, "every cell of a matrix is a link"
    tiles = len(re.findall(r'<td class="tile (?!empty)', text))
    assert len(re.findall(r'<td class="tile (?!empty)[^"]*"><a href="', text)) == tiles > 0
    bars, steps = text.count('<rect x="0" y="2"'), len(re.findall(r'<td><a href="[^"]+" title="[^"]+"', text))
    assert bars <= steps, "every bar of the funnel is a link"
    links = links_of(text)
    wrong = {address: (number, shown_at(client, address)) for address, number in links.items()}
    assert {address: pair for address, pair in wrong.items() if pair[0] != pair[1]} == {}
    assert all(number > 0 for number in links.values())
    return links


@pytest.mark.slow
@pytest.mark.parametrize("query", ["", "?model=sound", "?threshold=0.75"])
def test_every_link_of_a_classifiers_results(labelled: Gateway, query: str) -> None:
    links = follow_all(labelled.client, f"/jobs/drawn/view{query}")
    parts = [
        "arm_check=likeness",
        "unchecked=recaption",
        "rendered=true",
        "value=red",
        "predicted_null=",
    ]
    parts += ["confidence_below=0.75", "confidence_from=0.75", "on=null"] if "threshold" in query else ["other_than="]
    for part in parts:
        assert any(part in address for address in links), part


@pytest.mark.slow
@pytest.mark.parametrize("job", ["segmented", "unmasked"])
def test_every_link_of_a_segmenters_results(segmented: Gateway, job: str) -> None:
    if job == "unmasked":
        add_segmented_job(segmented.context.sessions, segmented.context.store, job, masks=False)
    links = follow_all(segmented.client, f"/jobs/{job}/view")
    parts = ["pixels=", "on=original", "on=null", "unchecked=shapes", "arm_check=structure", "scored=all+classes"]
    for part in (*parts, *(["scored=tram"] if job == "unmasked" else ["class=tram"])):
        assert any(part in address for address in links), part
    assert any(address.count("pixels=") == 1 for address in links), "pixels of a class that the job does not have"


@pytest.mark.slow
@pytest.mark.parametrize("query", ["", "?threshold=0.75"])
def test_every_link_without_ground_truth(tmp_path: Path, query: str) -> None:
    with serve_drawn_job(tmp_path, per_class=14) as gateway:
        complicate(gateway, labelled=False)
        links = follow_all(gateway.client, f"/jobs/drawn/view{query}")
        assert any("predicted_original=" in address for address in links)


def test_a_link_leads_to_the_very_images(segmented: Gateway) -> None:
    """Those whose pixels of one class the segmenter takes for another on the null arm, counted from the rows."""
    text = segmented.client.get("/jobs/segmented/view").text
    link = next(address for address in links_of(text) if "on=null" in address and address.count("pixels=") == 2)
    listed = segmented.client.get(link.replace("/gallery", "/results") + "&limit=200").json()["counterfactuals"]
    places = httpx.URL(link).params.get_list("pixels")
    with segmented.context.sessions() as session:
        classes = session.get_one(Job, "segmented").classes
        row, column = map(classes.index, places)
        nulls = set()
        for prediction in session.scalars(select(Prediction).where(Prediction.counterfactual_id.like("segmented-%-0"))):
            counts = confusion_of(prediction)
            if [row, column] in [counts[at : at + 2] for at in range(0, len(counts), 3)]:
                nulls.add(prediction.source_image_id)
        edits = select(Counterfactual).where(Counterfactual.job_id == "segmented", Counterfactual.arm == "edit")
        expected = {edit.id for edit in session.scalars(edits) if edit.counted and edit.source_image_id in nulls}
    assert {view["id"] for view in listed} == expected != set()
