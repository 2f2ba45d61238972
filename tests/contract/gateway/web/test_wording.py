"""The wording of pages: the plan of a job, and pages with nothing to show."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from shared.media.images import encode
from tests.support.archives import zipped
from tests.support.drawn_job import add_drawn_job, serve_drawn_job
from tests.support.gateway_under_test import Gateway, picture, serve_gateway
from tests.support.pages import words_of
from tests.support.small_services import SEGMENTER


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with serve_drawn_job(tmp_path_factory.mktemp("wording"), per_class=2) as served:
        add_drawn_job(served.context.sessions, served.context.store, "running", per_class=1, state="running")
        yield served


def test_a_map_without_recorded_embeddings_says_so(gateway: Gateway) -> None:
    text = gateway.client.get("/jobs/drawn/map?verdict=rejected").text
    assert "No image with these filters has a recorded embedding." in text


def plan(gateway: Gateway, names: Sequence[str]) -> str:
    """The words of the plan for images of these names."""
    images = [{"digest": f"{number:064x}", "name": name} for number, name in enumerate(names)]
    fields = {"task": "classify the vehicle", "methods": "dillema", "listed": json.dumps({"images": images})}
    reply = gateway.client.post("/plan", data=fields, files={"manifest": ("", b"")})
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.unescape(reply.text)))


def test_a_plan_without_labels_says_what_the_job_tests(gateway: Gateway) -> None:
    assert "None: the job tests whether predictions stay the same." in plan(gateway, ["a.png"])


def test_a_plan_says_which_labels_models_know_and_what_the_images_can_show(gateway: Gateway) -> None:
    known = plan(gateway, [f"{label}/{number}.png" for label in ("bus", "car") for number in range(14)])
    assert "street-classifier knows all of them." in known
    assert "28 images, 28 with a label; 2 models under test." in known
    assert "What these images can show bus , 14 images, about 9 in a cell: too few to test; a cell needs 12." in known
    unknown = plan(gateway, ["automobile/1.png", "bus/1.png"])
    assert "street-classifier does not know automobile. It knows" in unknown
    assert "tick “The images have no labels” to test without labels" in unknown


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("gallery?class=zebra", "None with these filters."),
        ("review?sample=calibration&method=lance", "Nothing to review yet"),
    ],
)
def test_a_page_without_images_says_so(gateway: Gateway, address: str, words: str) -> None:
    assert words in gateway.client.get(f"/jobs/drawn/{address}").text


def test_a_plan_says_what_is_wrong_with_masks(gateway: Gateway) -> None:
    assert "the form does not say what the masks mean" in plan_of_masks(gateway)
    meaning = {"classes": [{"name": "road", "index": 0}], "void": [255]}
    assert "1 file cannot be used" in plan_of_masks(gateway, classes=json.dumps(meaning))


def plan_of_masks(gateway: Gateway, **typed: str) -> str:
    """The plan of two photographs, one with a mask of classes 0 and 7."""
    mask = encode(np.array([[0, 7]], np.uint8))
    data = zipped({"images/a.png": picture(1, size=4), "images/b.png": picture(2, size=2), "masks/a.png": mask})
    fields = {"task": "segment the street", "methods": "dillema", "models": SEGMENTER, **typed}
    return words_of(gateway.client.post("/plan", data=fields, files={"images": ("set.zip", data)}).text)


def test_a_plan_of_too_many_images_says_so(tmp_path: Path) -> None:
    with serve_gateway(tmp_path, max_images_per_job=1) as small:
        data = zipped({"bus/a.png": picture(1, size=4), "bus/b.png": picture(2, size=4)})
        fields = {"task": "classify the vehicle", "methods": "dillema"}
        fragment = small.client.post("/plan", data=fields, files={"images": ("set.zip", data)}).text
    assert "2 images are more than the 1 of one job; send several jobs" in fragment


def test_a_running_job_says_when_studies_can_be_made(gateway: Gateway) -> None:
    assert "Make a study when it is done." in gateway.client.get("/jobs/running/studies/view").text
