"""`/jobs` and `/images`: the shortest form, full specs, archives, digests, refusals."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.auth.keys import create_key
from gateway.database.tables import Job, SourceImage
from tests.support.archives import tarred, zipped
from tests.support.gateway_under_test import Gateway, picture, serve_gateway

TASK = "classify the vehicle"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with serve_gateway(tmp_path) as served:
        yield served


def images(*shades: int) -> list[tuple[str, tuple[str, bytes]]]:
    return [("images", (f"{shade}.png", picture(shade))) for shade in shades]


def create(gateway: Gateway, files: Any = None, key: str | None = None, **spec: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    data = {"spec": json.dumps({"task": TASK, **spec})}
    return gateway.client.post("/jobs", files=files or images(1, 2), data=data, headers=headers)


def labels(gateway: Gateway, job: str) -> list[str | None]:
    with gateway.context.sessions() as session:
        return [source.ground_truth for source in session.get_one(Job, job).source_images]


def assert_refused(reply: httpx.Response, status: int, *words: str) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["Content-Type"] == "application/problem+json"
    document: dict[str, Any] = reply.json()
    assert document["status"] == status
    for word in words:
        assert word in document["detail"]
    return document


def test_the_shortest_form_makes_a_job_with_the_profiles_defaults(gateway: Gateway) -> None:
    reply = gateway.client.post("/jobs", files=images(1, 2, 3), data={"task": TASK})
    assert reply.status_code == 202, reply.text
    job = reply.json()
    assert reply.headers["Location"] == f"/jobs/{job['id']}"
    assert job["state"] == "running"
    assert [method["name"] for method in job["methods"]] == ["dillema"]
    assert job["methods"][0]["parameters"]["counterfactuals_per_image"] == 4  # complete, not only what was sent
    assert job["models"] == ["street-classifier", "street-classifier-night-bus"]
    assert job["classes"] == ["car", "bus", "boat"]
    assert (job["images"], job["labelled"]) == (3, 0)
    assert job["progress"]["images"]["waiting"] == 3
    assert gateway.wakes == [None]
    assert gateway.client.get(reply.headers["Location"]).json() == job


def test_a_full_spec_is_kept(gateway: Gateway) -> None:
    methods = [{"name": "dillema", "parameters": {"counterfactuals_per_image": 2}}]
    job = create(gateway, methods=methods, models=[], classes=["car", "van"], seed=7).json()
    assert (job["models"], job["classes"], job["seed"]) == ([], ["car", "van"], 7)
    assert job["methods"][0]["parameters"]["counterfactuals_per_image"] == 2
    assert create(gateway, methods=["dillema"]).status_code == 202


def test_labels_come_from_manifest_folders_or_nowhere(gateway: Gateway) -> None:
    manifest = ("manifest", ("labels.csv", b"file,label\n1.png,car\n2.png,\n"))
    assert labels(gateway, create(gateway, [*images(1, 2), manifest]).json()["id"]) == ["car", None]
    folders = [("images", ("set.zip", zipped({"automobile/1.png": picture(1), "bus/2.png": picture(2)}, "set/")))]
    assert_refused(create(gateway, folders), 422, "'automobile'", "label_map")
    assert labels(gateway, create(gateway, folders, label_map={"automobile": "car"}).json()["id"]) == ["car", "bus"]
    assert labels(gateway, create(gateway, folders, ground_truth="none").json()["id"]) == [None, None]
    job = create(gateway, folders, models=[]).json()
    assert job["classes"] == ["automobile", "bus"]


def test_one_bad_image_fails_alone(gateway: Gateway) -> None:
    packed = tarred({"good.png": picture(1), "bad.png": b"no picture"}, mode="w:gz")
    job = create(gateway, [("images", ("set.tar.gz", packed))]).json()
    assert job["progress"]["images"] == {"waiting": 1, "in_progress": 0, "done": 0, "failed": 1, "cancelled": 0}
    (failure,) = job["failures"]
    assert (failure["position"], failure["name"]) == (1, "bad.png")
    assert "PNG" in failure["reason"]
    assert_refused(create(gateway, [("images", ("bad.png", b"no picture"))]), 422, "none of the 1 images")


def test_images_uploaded_before_make_a_job(gateway: Gateway) -> None:
    data, digest = picture(3), hashlib.sha256(picture(3)).hexdigest()
    entry = {"digest": digest, "label": "bus", "name": "bus/3.png"}
    missing = assert_refused(gateway.client.post("/jobs", json={"task": TASK, "images": [entry]}), 422, "PUT /images")
    assert missing["missing"] == [digest]
    assert gateway.client.head(f"/images/{digest}").status_code == 404
    first = gateway.client.put(f"/images/{digest}", content=data)
    assert first.status_code == 200, first.text
    assert gateway.client.put(f"/images/{digest}", content=data).json() == first.json()
    assert gateway.client.head(f"/images/{digest}").status_code == 200
    job = gateway.client.post("/jobs", json={"task": TASK, "images": [entry]}).json()
    assert (job["images"], job["labelled"]) == (1, 1)
    with gateway.context.sessions() as session:
        rows = session.get_one(Job, job["id"]).source_images
        assert {row.digest for row in rows} == {first.json()["digest"]}
        assert [row.file_name for row in rows] == ["bus/3.png"]


def test_an_image_is_served_once_and_only_to_its_owner(tmp_path: Path) -> None:
    data, digest = picture(3), hashlib.sha256(picture(3)).hexdigest()
    with serve_gateway(tmp_path, authentication=True) as gateway:
        with gateway.context.sessions.begin() as session:
            keys = [create_key(session, name) for name in ("ann", "ben")]
        ann, ben = ({"Authorization": f"Bearer {key}"} for key in keys)
        upload = gateway.client.put(f"/images/{digest}", content=data, headers=ann).json()
        reply = gateway.client.get(f"/images/{upload['digest']}", headers=ann)
        assert reply.content == data
        assert reply.headers["Cache-Control"].startswith("private")
        again = gateway.client.get(f"/images/{digest}", headers={**ann, "If-None-Match": reply.headers["ETag"]})
        assert again.status_code == 304
        assert_refused(gateway.client.get(f"/images/{digest}", headers=ben), 404)
        job = gateway.client.post("/jobs", files=images(1), data={"task": TASK}, headers=ann).json()["id"]
        for path in ("", "/results", "/events", "/report"):
            assert_refused(gateway.client.get(f"/jobs/{job}{path}", headers=ben), 404)
        assert_refused(gateway.client.delete(f"/jobs/{job}", headers=ben), 404)
        assert gateway.client.get("/jobs", headers=ben).json()["jobs"] == []


def test_uploads_that_are_not_what_they_say_are_refused(gateway: Gateway) -> None:
    digest = hashlib.sha256(b"no picture").hexdigest()
    assert_refused(gateway.client.put(f"/images/{digest}", content=picture(1)), 422, "SHA-256")
    assert_refused(gateway.client.put(f"/images/{digest}", content=b"no picture"), 400, "PNG, JPEG or WebP")
    assert_refused(gateway.client.put("/images/abc", content=picture(1)), 422)


def test_the_same_idempotency_key_makes_one_job(gateway: Gateway) -> None:
    first = create(gateway, key="k1")
    again = create(gateway, key="k1")
    assert again.status_code == 202
    assert again.json() == first.json()
    assert_refused(create(gateway, key="k1", seed=1), 409, "Idempotency-Key")
    assert_refused(create(gateway, images(1, 3), key="k1"), 409)
    assert create(gateway, key="k2").json()["id"] != first.json()["id"]
    assert len(gateway.client.get("/jobs").json()["jobs"]) == 2


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"clases": ["car"]}, ("unknown field clases", "allowed are task_description, methods")),
        ({"methods": ["dilemma"]}, ("unknown method 'dilemma'", "dillema")),
        (
            {"methods": [{"name": "dillema", "parameters": {"step": 1}}]},
            ("field step", "counterfactuals_per_image"),
        ),
        ({"methods": [{"name": "dillema", "parameters": {"steps": 0}}]}, ("steps", "greater than or equal to 1")),
        ({"methods": [{"name": "dillema", "parameters": {"guidance": float("inf")}}]}, ("ordinary",)),
        ({"methods": ["dillema", "dillema"]}, ("more than once",)),
        ({"models": ["resnet"]}, ("unknown model under test 'resnet'", "street-classifier")),
        ({"task": ""}, ("task", "at least 3")),
        ({"seed": -1}, ("seed",)),
    ],
)
def test_a_wrong_spec_is_refused_with_a_reason(gateway: Gateway, spec: dict[str, Any], words: tuple[str, ...]) -> None:
    assert_refused(create(gateway, **spec), 422, *words)
    assert gateway.wakes == []


def test_a_form_may_call_the_task_description_task(gateway: Gateway) -> None:
    def sent(**parts: str) -> httpx.Response:
        return gateway.client.post("/jobs", files=images(1), data=parts)

    assert sent(task_description=TASK).json()["task_description"] == TASK
    assert sent(spec=json.dumps({"task_description": TASK}), task=TASK).json()["task_description"] == TASK
    assert_refused(sent(task_description=TASK, task="another task"), 422, "differ")
    assert_refused(sent(spec=json.dumps({"task_description": TASK}), task="another task"), 422, "differ")


def test_a_wrong_form_is_refused_with_a_reason(gateway: Gateway) -> None:
    post = gateway.client.post
    assert_refused(
        post("/jobs", files=images(1), data={"taks": TASK}),
        422,
        "unknown part taks",
        "images, masks, task_description, task, spec",
    )
    assert_refused(post("/jobs", files=images(1)), 422, "say what your model does")
    assert_refused(post("/jobs", files=[("spec", ("s", b'{"task": "abc"}'))]), 422, "no images")
    assert_refused(post("/jobs", files=images(1), data={"spec": "{"}), 400, "spec")
    assert_refused(post("/jobs", files=images(1), data={"spec": "[" * 100_000}), 400, "spec")
    assert_refused(post("/jobs", files=images(1), data={"spec": "[" * 100_000, "task": TASK}), 400, "spec")
    assert_refused(
        post("/jobs", files=[("images", (None, "text")), *images(1)], data={"task": TASK}), 422, "with the @"
    )
    assert_refused(post("/jobs", content=b"x", headers={"Content-Type": "text/plain"}), 415, "multipart/form-data")
    assert_refused(post("/jobs", json={"task": TASK, "images": []}), 422, "images")
    many = [("images", (f"{i}.png", b"x")) for i in range(1_001)]
    assert_refused(post("/jobs", files=many, data={"task": TASK}), 400, "zip or tar", "PUT /images")


NAMES = st.sampled_from(["task", "methods", "models", "classes", "label_map", "ground_truth", "seed", "images", "x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | st.just("dillema"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.just("name"), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=st.dictionaries(NAMES, VALUES, max_size=5), with_task=st.booleans(), as_json=st.booleans())
def test_any_spec_is_a_job_or_a_problem(gateway: Gateway, spec: dict[str, Any], with_task: bool, as_json: bool) -> None:
    spec = {**spec, "task": TASK} if with_task else spec
    if as_json:
        headers = {"Content-Type": "application/json"}
        reply = gateway.client.post("/jobs", content=json.dumps(spec), headers=headers)
    else:
        reply = gateway.client.post("/jobs", files=images(1), data={"spec": json.dumps(spec)})
    if reply.status_code != 202:
        assert reply.status_code in (400, 422), reply.text
        assert reply.headers["Content-Type"] == "application/problem+json"
        assert reply.json()["detail"]


def test_characters_that_no_database_keeps_are_refused(gateway: Gateway) -> None:
    assert_refused(create(gateway, task="a\0bc"), 422, "U+0000")
    assert_refused(gateway.client.get("/jobs/a%00b"), 400, "%00")
    assert_refused(gateway.client.get("/jobs?cursor=%00"), 400, "%00")
    manifest = ("manifest", ("m.csv", b"file,label\n1.png,\0\n2.png,\n"))
    assert_refused(create(gateway, [*images(1, 2), manifest]), 422, "U+0000")
    assert create(gateway, [("images", ("a\0b\u202f.png", picture()))]).status_code == 202


def test_unknown_parameters_and_paths_are_refused(gateway: Gateway) -> None:
    assert_refused(gateway.client.get("/jobs?limt=3"), 422, "unknown parameter limt", "cursor, limit")
    assert_refused(gateway.client.get("/methods?a=1"), 422, "unknown parameter a")
    assert_refused(gateway.client.get("/jobs?limit=0"), 422, "limit")
    assert_refused(gateway.client.get("/nothing"), 404)
    assert_refused(gateway.client.put("/jobs"), 405)
    assert_refused(gateway.client.get("/jobs/nothing"), 404, "GET /jobs lists yours")
    assert_refused(gateway.client.get("/jobs?cursor=abc"), 422, "cursor")


def test_jobs_are_listed_newest_first_page_by_page(gateway: Gateway) -> None:
    created = [create(gateway, images(1)).json()["id"] for _ in range(5)]
    listed: list[str] = []
    cursor: str | None = None
    while True:
        page = gateway.client.get("/jobs", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        listed += [job["id"] for job in page["jobs"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert listed == created[::-1]


def test_cancel_and_delete(gateway: Gateway) -> None:
    job = create(gateway).json()["id"]
    for _ in range(2):
        cancelled = gateway.client.post(f"/jobs/{job}/cancel")
        assert cancelled.status_code == 200
        assert cancelled.json()["state"] == "cancelled"
        assert cancelled.json()["progress"]["images"]["cancelled"] == 2
    assert gateway.client.delete(f"/jobs/{job}").status_code == 204
    assert_refused(gateway.client.get(f"/jobs/{job}"), 404)
    with gateway.context.sessions() as session:
        assert session.query(SourceImage).count() == 0
    done_job = create(gateway).json()["id"]
    with gateway.context.sessions.begin() as session:
        session.get_one(Job, done_job).state = "done"
    assert_refused(gateway.client.post(f"/jobs/{done_job}/cancel"), 409, "the job is done")
    assert_refused(gateway.client.get(f"/jobs/{done_job}/report"), 404, "when it is done")


def test_the_catalogue(gateway: Gateway) -> None:
    methods = {method["name"]: method for method in gateway.client.get("/methods").json()["methods"]}
    assert [name for name, method in methods.items() if method["default"]] == ["dillema"]
    assert {"reconstruction", "shifts"} <= set(methods)
    assert methods["dillema"]["parameters"]["properties"]["counterfactuals_per_image"]["default"] == 4
    models = gateway.client.get("/models").json()["models"]
    assert [model["name"] for model in models if model["default"]] == [
        "street-classifier",
        "street-classifier-night-bus",
    ]
    profiles = gateway.client.get("/profiles").json()["profiles"]
    assert [profile["name"] for profile in profiles if profile["active"]] == ["tiny"]
    assert gateway.client.get("/readyz").json() == {"status": "ready"}


def test_a_cancelled_job_is_taken_up_again(gateway: Gateway) -> None:
    job = create(gateway).json()["id"]
    assert_refused(gateway.client.post(f"/jobs/{job}/retry"), 409, "no image")
    assert gateway.client.post(f"/jobs/{job}/cancel").json()["progress"]["images"]["cancelled"] == 2
    before = len(gateway.wakes)
    again = gateway.client.post(f"/jobs/{job}/retry")
    assert again.status_code == 200, again.text
    assert (again.json()["state"], again.json()["progress"]["images"]["waiting"]) == ("running", 2)
    assert len(gateway.wakes) == before + 1
    assert_refused(gateway.client.post("/jobs/unknown/retry"), 404)
