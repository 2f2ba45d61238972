"""The form for a new job, as browsers without scripts send it: choices, submission, refusals."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from gateway.database.tables import Job
from shared.media.images import encode
from tests.support.gateway_under_test import Gateway, picture, serve_gateway
from tests.support.small_services import SEGMENTER

TASK = "segment the street"
INDICES = {"classes": [{"name": "road", "index": 0}, {"name": "car", "index": 7}], "void": [255]}
COLOURS = {"classes": [{"name": "road", "colour": "#804080"}, {"name": "car", "colour": "#00008e"}]}
GREY_MASK = encode(np.repeat(np.array([[0, 7, 255, 0]], np.uint8), 4, axis=0))
COLOURED_MASK = encode(np.repeat(np.array([[[0x80, 0x40, 0x80], [0, 0, 0x8E]] * 2], np.uint8), 4, axis=0))
NOTHING = ("", b"")  # what a browser sends of a field for files in which none was chosen
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def submit_form(
    gateway: Gateway,
    typed: dict[str, Any],
    images: list[tuple[str, bytes]],
    masks: list[tuple[str, bytes]] | None = None,
    classes: tuple[str, bytes] = NOTHING,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """The form with these fields, as a browser sends it: every field is there, and the boxes that are ticked."""
    fields = {"task": "", "classes": "", "shifts": "", "methods": ["dillema"], **typed}
    body = b""
    for name, value in fields.items():
        for text in value if isinstance(value, list) else [value]:
            body += f'--edge\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'.encode()
    files = {"images": images or [NOTHING], "manifest": [NOTHING], "masks": masks or [NOTHING], "classes": [classes]}
    for name, chosen in files.items():
        for file, data in chosen:
            body += f'--edge\r\nContent-Disposition: form-data; name="{name}"; filename="{file}"\r\n'.encode()
            body += b"Content-Type: application/octet-stream\r\n\r\n" + data + b"\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=edge"}
    return gateway.client.post("/", content=body + b"--edge--\r\n", headers={**(headers or BROWSER), **kind})


def job_of(gateway: Gateway, reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 303, html.unescape(reply.text)
    page = reply.headers["Location"]
    assert gateway.client.get(page).status_code == 200
    job: dict[str, Any] = gateway.client.get(page.removesuffix("/view")).json()
    return job


def refusal_on_page(reply: httpx.Response, status: int) -> tuple[str, str]:
    """The sentence on the form, and the whole page."""
    assert reply.status_code == status, reply.text
    assert reply.headers["Content-Type"].startswith("text/html")
    text = html.unescape(reply.text)
    alert = re.search(r'<p id="problem"[^>]*role="alert"[^>]*>(.*?)</p>', text)
    assert alert
    assert "hidden" not in alert[0]
    return alert[1], text


def ticked(text: str, name: str) -> set[str]:
    return set(re.findall(rf'<input name="{name}" type="checkbox" value="([^"]+)" checked>', text))


def test_every_method_of_the_catalogue_is_offered_with_what_it_does(gateway: Gateway) -> None:
    text = html.unescape(gateway.client.get("/").text)
    methods = gateway.client.get("/methods").json()["methods"]
    assert len(methods) >= 6
    for method in methods:
        assert f'name="methods" type="checkbox" value="{method["name"]}"' in text
        assert method["summary"] in text
    assert ticked(text, "methods") == {method["name"] for method in methods if method["default"]} == {"dillema"}
    for name, model in gateway.context.profile.evaluator.models_under_test.items():
        assert f'name="models" type="checkbox" value="{name}"' in text
        assert model.description in text
    assert ticked(text, "models") == set()


def test_the_job_does_what_is_ticked(gateway: Gateway) -> None:
    typed = {
        "task": "classify the vehicle",
        "methods": ["shifts", "corruptions"],
        "shifts": "in thick fog\r\n\r\n at dusk ",
    }
    job = job_of(gateway, submit_form(gateway, typed, [("a.png", picture())]))
    assert [method["name"] for method in job["methods"]] == ["shifts", "corruptions"]
    assert [shift["phrase"] for shift in job["methods"][0]["parameters"]["shifts"]] == ["in thick fog", "at dusk"]
    assert job["models"] == gateway.context.profile.defaults.models
    plain = job_of(gateway, submit_form(gateway, {"task": TASK, "models": ["m1"]}, [("a.png", picture())]))
    assert ([method["name"] for method in plain["methods"]], plain["models"]) == (["dillema"], ["m1"])


def test_edits_of_people_are_made_only_where_their_box_is_ticked(gateway: Gateway) -> None:
    image = ("a.png", picture(80))
    refused = job_of(gateway, submit_form(gateway, {"task": TASK}, [image]))
    allowed = job_of(gateway, submit_form(gateway, {"task": TASK, "protected_characteristics": "allow"}, [image]))
    with gateway.context.sessions() as session:
        kept = [session.get_one(Job, job["id"]).stored_spec.protected_characteristics for job in (refused, allowed)]
    assert kept == ["refuse", "allow"]
    text = submit_form(gateway, {"task": TASK, "protected_characteristics": "allow"}, []).text
    assert ticked(text, "protected_characteristics") == {"allow"}


@pytest.mark.parametrize(("meaning", "mask"), [(INDICES, GREY_MASK), (COLOURS, COLOURED_MASK)])
@pytest.mark.parametrize("as_file", [False, True])
def test_masks_come_by_index_and_by_colour(
    gateway: Gateway, meaning: dict[str, Any], mask: bytes, as_file: bool
) -> None:
    classes = json.dumps(meaning, indent=1)
    typed = {"task": TASK, "models": [SEGMENTER], "classes": "" if as_file else classes}
    file = ("classes.json", classes.encode()) if as_file else NOTHING
    images = [("a.png", picture(size=4)), ("b.png", picture(9, size=4))]
    job = job_of(gateway, submit_form(gateway, typed, images, [("a.png", mask)], file))
    assert (job["kind"], job["images"], job["labelled"]) == ("segmentation", 2, 1)
    assert (job["classes"], job["failures"]) == (["road", "car"], [])


@pytest.mark.parametrize(
    ("typed", "masks", "words"),
    [
        ({"task": "ab"}, [], "at least 3 characters"),
        ({"methods": []}, [], "no method is chosen"),
        ({"methods": ["magic"]}, [], "'magic'"),
        ({"shifts": "in thick fog"}, [], "need the method shifts"),
        ({"models": ["nobody"]}, [], "'nobody'"),
        ({}, ["a.png"], "description of their values"),
        ({"classes": "road: 0"}, ["a.png"], "Invalid JSON"),
        ({"classes": '{"classes": [{"name": "road"}]}'}, ["a.png"], "an index or a colour"),
        ({"classes": json.dumps(INDICES)}, ["a.png"], "tick one of the models"),
        ({"classes": json.dumps(INDICES), "models": ["m1"]}, ["a.png"], "'m1' classifies"),
        ({"classes": json.dumps(INDICES), "models": [SEGMENTER]}, [], "there are no masks"),
        ({"classes": json.dumps(INDICES), "models": [SEGMENTER]}, ["b.png"], "'b.png'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_refusal_is_shown_on_the_form_with_its_input(
    gateway: Gateway, typed: dict[str, Any], masks: list[str], words: str
) -> None:
    typed = {"task": 'segment "streets" & <roads>', "methods": ["dillema", "corruptions"], **typed}
    wakes = len(gateway.wakes)
    reply = submit_form(gateway, typed, [("a.png", picture(size=4))], [(name, GREY_MASK) for name in masks])
    sentence, text = refusal_on_page(reply, 400 if "Invalid JSON" in words else 422)
    assert words in sentence
    assert f'name="task" value="{typed["task"]}"' in text
    assert "<roads>" not in reply.text
    assert f">{typed.get('shifts', '')}</textarea>" in text
    assert f">{typed.get('classes', '')}</textarea>" in text
    assert ticked(text, "methods") == set(typed["methods"]) - {"magic"}
    assert ticked(text, "models") == set()
    assert len(gateway.wakes) == wakes


def test_a_wrong_file_of_mask_classes_comes_back_as_text_to_correct(gateway: Gateway) -> None:
    wrong = json.dumps({"classes": [{"name": "road", "indx": 0}]}).encode()
    typed = {"task": TASK, "models": ["street-classifier"]}
    reply = submit_form(gateway, typed, [("a.png", picture())], [("a.png", GREY_MASK)], ("classes.json", wrong))
    sentence, text = refusal_on_page(reply, 422)
    assert "indx" in sentence
    assert f">{wrong.decode()}</textarea>" in text
    assert ticked(text, "models") == {"street-classifier"}
    both = {**typed, "classes": json.dumps(INDICES)}
    reply = submit_form(gateway, both, [("a.png", picture())], [("a.png", GREY_MASK)], ("classes.json", wrong))
    sentence, text = refusal_on_page(reply, 422)
    assert "as text" in sentence
    assert f">{both['classes']}</textarea>" in text
    for content, status in ((b"\xff\xfe", 400), (b"[" * 100_000, 413)):
        reply = submit_form(gateway, typed, [("a.png", picture())], [("a.png", GREY_MASK)], ("classes.json", content))
        assert "the meaning of the masks" in refusal_on_page(reply, status)[0]
        assert f'value="{TASK}"' in reply.text


def test_a_form_without_images_is_refused(gateway: Gateway) -> None:
    assert "there are no images" in refusal_on_page(submit_form(gateway, {"task": TASK}, []), 422)[0]


def test_a_script_gets_the_problem_itself(gateway: Gateway) -> None:
    reply = submit_form(gateway, {"task": TASK, "methods": []}, [("a.png", picture())], headers={"Accept": "*/*"})
    assert (reply.status_code, reply.headers["Content-Type"]) == (422, "application/problem+json")
    assert "no method is chosen" in reply.json()["detail"]
    other = gateway.client.post("/", content=b"{}", headers={**BROWSER, "Content-Type": "application/json"})
    assert (other.status_code, other.headers["Content-Type"]) == (415, "text/html; charset=utf-8"), "it asks for HTML"


def test_the_forms_own_limits_are_those_of_jobs(tmp_path: Path) -> None:
    with serve_gateway(tmp_path, max_request_bytes=100_000) as gateway:
        assert job_of(gateway, submit_form(gateway, {"task": TASK}, [("a.png", picture(size=4) + bytes(80_000))]))
        assert submit_form(gateway, {"task": TASK}, [("a.png", picture() + bytes(120_000))]).status_code == 413
