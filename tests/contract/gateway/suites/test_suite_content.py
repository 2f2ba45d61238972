"""`GET /suites/{suite}/counterfactuals` and its data set: what the suite keeps, also without the job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import update

from contrafact.client import Client
from contrafact.maite import suite_dataset
from gateway.database.tables import LOCAL_OWNER, Counterfactual, Image, Job, OwnedImage, SourceImage
from gateway.operations.deletion import remove_rows
from shared.media.images import from_array
from shared.media.storage import image_key
from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.suite_site import LABELS, SOURCES, add_job

LOST = 3  # accepted counterfactuals that do not count: their null arms fail a check


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway with a finished job and the suite `street` of it."""
    with serve_gateway(tmp_path) as served:
        add_job(served)
        with served.context.sessions.begin() as session:
            session.execute(update(Job).values(classes=list(LABELS)))
            lost = Counterfactual.id.in_([f"c{number}" for number in range(LOST)])
            session.execute(update(Counterfactual).where(lost).values(null_check="label"))
        reply = served.client.post("/suites", json={"job": "made", "name": "street"})
        assert reply.json()["counterfactuals"] == 2 * SOURCES - LOST
        yield served


def delete_job(gateway: Gateway) -> None:
    """Delete the job and its rows."""
    assert gateway.client.delete("/jobs/made").status_code == 204
    remove_rows(gateway.context.sessions, lambda _: False)
    with gateway.context.sessions() as session:
        assert session.get(Job, "made") is None
        assert session.get(SourceImage, "s0") is None


def test_it_is_what_counted_before_and_after_the_job_is_deleted(gateway: Gateway) -> None:
    with closing(Client(str(gateway.client.base_url))) as client:
        before = list(client.suite_counterfactuals("street"))
        delete_job(gateway)
        suite = client.suite("street")
        assert list(client.suite_counterfactuals(suite.id)) == before
        assert len(before) == len({view.id for view in before}) == suite.counterfactuals
    assert all(view.counted and view.null_image and not view.predictions for view in before)
    places = [view.source.position for view in before]
    assert places == list(range(LOST, 2 * SOURCES))


def test_the_data_set_is_the_suite(gateway: Gateway) -> None:
    with closing(Client(str(gateway.client.base_url))) as client:
        delete_job(gateway)
        dataset = suite_dataset(client, "street")
        assert len(dataset) == client.suite("street").counterfactuals
        image, target, metadata = dataset[0]
    assert np.shape(image) == (3, 8, 8)
    assert target.tolist() == [0, 1]  # the first image that counts is a car
    assert (metadata["factor"], metadata["to_value"]) == ("weather", "night")


def test_an_image_names_the_job_that_rendered_it(gateway: Gateway) -> None:
    rendered = from_array(np.full((8, 8, 3), 9, np.uint8))
    gateway.context.store.put(image_key(rendered.digest), rendered.png)
    with gateway.context.sessions.begin() as session:
        session.add(Image(digest=rendered.digest, width=8, height=8, bytes=len(rendered.png)))
        session.add(OwnedImage(owner_id=LOCAL_OWNER, digest=rendered.digest))
        session.flush()
        # Ids of copies begin with a hexadecimal digit; "z9" comes after all of them.
        session.execute(update(Counterfactual).where(Counterfactual.id == "c9").values(id="z9"))
        session.execute(update(Counterfactual).where(Counterfactual.id == "z9").values(image_digest=rendered.digest))
    gateway.client.post("/suites", json={"job": "made", "name": "again"}).raise_for_status()
    image = gateway.client.get(f"/images/{rendered.digest}").content
    assert b'Job="made"' in image
    assert b'Counterfactual="z9"' in image
    delete_job(gateway)
    assert gateway.client.get(f"/images/{rendered.digest}").content == image


@pytest.mark.slow
def test_pages_are_of_the_suite_alone(gateway: Gateway) -> None:
    place = "/suites/street/counterfactuals"
    first = gateway.client.get(place, params={"limit": 50}).json()
    second = gateway.client.get(place, params={"limit": 50, "cursor": first["next"]}).json()
    assert [len(page["counterfactuals"]) for page in (first, second)] == [50, 2 * SOURCES - LOST - 50]
    assert second["next"] is None
    assert gateway.client.get(place, params={"cursor": "nonsense"}).status_code == 422
    assert gateway.client.get("/suites/none/counterfactuals").status_code == 404
