"""schemathesis on the OpenAPI documents of all five services; each excluded check has its reason."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.engine import events, from_schema

from shared.media.images import encode
from tests.support.gateway_under_test import serve_gateway
from tests.support.hostile.small_services import APPS, serve_small, write_weights

pytestmark = pytest.mark.slow  # not even imported by `make test`

EVERY_DAY, LONG = 2, 30  # examples of an operation, beside those that walk along the borders of its schema
SMALL = {"steps": 2, "max_tokens": 40, "min_tokens": 4, "beams": 2}  # what a schema allows, but a test has no time for
BOUNDED = {"type": "string", "maxLength": 4}


@dataclass(frozen=True)
class Exclusion:
    """Failures of one check that are no failures, when the reply has these words."""

    check: str
    words: str
    reason: str


ACCEPTED, SOUND, SHAPED = "positive_data_acceptance", "not_a_server_error", "response_schema_conformance"
EXCLUSIONS = [
    Exclusion(ACCEPTED, "this cursor does not belong to this list", "cursors are opaque: only the gateway makes them"),
    Exclusion(ACCEPTED, "the body's SHA-256 is not the digest", "JSON Schema cannot bind a body to its path"),
    Exclusion(ACCEPTED, "a mask must be a PNG", "what a file is is seen when it is read"),
    Exclusion(ACCEPTED, "are not uploaded, first", "only what was uploaded before can be named"),
    Exclusion(ACCEPTED, "differ; send one of them", "JSON Schema cannot say that two fields are equal"),
    Exclusion(ACCEPTED, "unknown method", "names are the installation's: GET /methods lists them"),
    Exclusion(ACCEPTED, "the parameters of ", "parameters are the method's: GET /methods has their schemas"),
    Exclusion(ACCEPTED, "unknown model under test", "names are the installation's: GET /models lists them"),
    Exclusion(ACCEPTED, "there are no weights", "a model is files, which no schema describes"),
    Exclusion(ACCEPTED, "name the model with either", "one of two parts, and JSON Schema's anyOf lets both through"),
    Exclusion(ACCEPTED, "the preprocessing of this model's input", "what an ONNX file needs is said in words"),
    Exclusion(
        ACCEPTED, "takes no uploaded models", "where models come from is the operator's: CONTRAFACT_MODEL_ORIGIN"
    ),
    Exclusion(ACCEPTED, "let `model` be the digest", "JSON Schema cannot say that two fields are equal"),
    Exclusion(ACCEPTED, "is a classifier; send it to", "which alias is a segmenter is the profile's: GET /v1/models"),
    Exclusion(ACCEPTED, "shortest_edge", "JSON Schema cannot compare fields"),
    Exclusion(ACCEPTED, "std must be three numbers", "that each of three numbers is above 0 is said in words"),
    Exclusion(ACCEPTED, "mean must be three numbers", "that each of three numbers is bounded is said in words"),
    Exclusion(ACCEPTED, "does not know the labels", "labels are the model's: GET /models lists them"),
    Exclusion(ACCEPTED, "does not know the mask classes", "classes are the model's: GET /models lists them"),
    *(
        Exclusion(ACCEPTED, words, "which models segment is the installation's: GET /models lists their kinds")
        for words in ("tests no segmentation by default", "the ground truth is masks, but the model")
    ),
    *(
        Exclusion(ACCEPTED, words, "JSON Schema cannot say which parts and fields go together")
        for words in (
            "does not say what they mean",
            "but none was sent: put them",
            "but no image names its mask",
            "the images have labels, but the ground truth",
            "no image belongs to the masks",
            "two masks named",
            "two masks have the stem",
            "would belong to several",
            "leave `classes` out",
            "but `masks` are ground truth",
            "needs either an index or a colour",
            "not some by each",
            "appears more than once",
            "no class may be named",
            "must be among the classes",
        )
    ),
    *(
        Exclusion(ACCEPTED, words, "what two sides of a comparison have is the jobs': GET /jobs/{job}/results lists it")
        for words in (
            "choose a model of job",
            "choose a method of job",
            "has no model",
            "has no method",
            "both sides are the same",
            "both sides need the cell",
            "name a cell by its class",
            "name the cell's class",
            "compare jobs",
        )
    ),
    Exclusion(ACCEPTED, "Input should be a valid integer", "JSON Schema counts 5.0 as an integer"),
    Exclusion(ACCEPTED, "`object_masks` are for", "JSON Schema cannot say which parts and fields go together"),
    Exclusion(ACCEPTED, "no accepted counterfactual", "what a job came to, a repair finds in its rows"),
    Exclusion(ACCEPTED, "the manifest", "a manifest is CSV or JSON Lines that names the files sent"),
    Exclusion(ACCEPTED, "control character", "that no text is deceptive is said in words, not by a pattern"),
    Exclusion(ACCEPTED, "U+0000", "that no text holds NUL is said in words, not by a pattern"),
    Exclusion(ACCEPTED, "%00", "that no address holds NUL is said in words, not by a pattern"),
    Exclusion(ACCEPTED, "task: String should have at least 3", "a task of spaces is long enough for JSON Schema"),
    Exclusion(ACCEPTED, "more than once; name each once", "names are compared, not their objects"),
    Exclusion(ACCEPTED, "no second scorer", "the small profile has none"),
    Exclusion(ACCEPTED, "this profile has no judge", "the small profile has none"),
    Exclusion(ACCEPTED, "no editor of this profile carries out instructions", "the small profile has none"),
    Exclusion(
        ACCEPTED, "control items need a question", "JSON Schema cannot say which fields of a list a number needs"
    ),
    Exclusion(ACCEPTED, "two questions are named", "names are compared, not their objects"),
    Exclusion(ACCEPTED, "only one question can have label_kept", "JSON Schema cannot count one field over a list"),
    Exclusion(ACCEPTED, "doses rise, each once", "JSON Schema cannot say that numbers rise"),
    Exclusion(ACCEPTED, "none of the", "whether a file is a picture is seen when it is decoded"),
    Exclusion(ACCEPTED, "is an archive; send it alone", "what a file is is seen when it is read"),
    Exclusion(ACCEPTED, "a number is infinite, NaN or of thousands of digits", "JSON Schema knows no such bound"),
    Exclusion(ACCEPTED, "beam search does not sample", "two fields exclude each other"),
    Exclusion(ACCEPTED, "several captions per image need sampling", "two fields need each other"),
    Exclusion(ACCEPTED, "min_tokens is above max_tokens", "two fields bound each other"),
    Exclusion(ACCEPTED, "control word of the model", "which words those are is the weights' own affair"),
    Exclusion(ACCEPTED, "a text to score must have", "tokens are counted by the model"),
    Exclusion(ACCEPTED, "images; a message holds", "three lists together fill a message"),
    Exclusion(ACCEPTED, "must have the same size", "the sizes of pictures are seen when they are decoded"),
    Exclusion(ACCEPTED, "use one of its kinds of control", "which kinds there are is the profile's: GET /v1/info"),
    Exclusion(ACCEPTED, "pixels is too small", "the size of a picture is seen when it is decoded"),
    Exclusion(ACCEPTED, "the mask is in colour", "whether a picture is grey is seen when it is decoded"),
    Exclusion(SHAPED, "event: job", "the schema is that of each event's data; OpenAPI 3.1 has no word for the stream"),
    Exclusion(SOUND, "no reply before the deadline", "a nanosecond is a valid deadline, and 504 the promised answer"),
    Exclusion(SOUND, "has NaN or infinity", "an extreme guidance overflows: 500 `not-finite` is the promised answer"),
    Exclusion(SOUND, "the language model gave no valid reply", "two tokens hold no reply: 502 is the promised answer"),
    Exclusion(ACCEPTED, "phrase", "whether a phrase stands in the prompt is seen when it is read"),
]


def _pictures() -> st.SearchStrategy[str]:
    """Base64 of real pictures: noise of a few sizes and shapes."""
    random = np.random.default_rng(4)
    sizes = ((16, 16), (64, 64), (40, 64), (1, 1))
    noise = [encode(random.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes]
    return st.sampled_from([base64.b64encode(png).decode() for png in noise])


schemathesis.openapi.format("byte", _pictures())


@pytest.fixture(scope="module", params=["gateway", *APPS])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("services")
    if request.param == "gateway":
        with serve_gateway(folder) as gateway:
            yield gateway.client
    else:
        with serve_small(request.param, write_weights(folder)) as served:
            yield served


def _open(client: httpx.Client, examples: int) -> Any:
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    schema.config.update(base_url=str(client.base_url), request_timeout=120)
    schema.config.generation.update(max_examples=examples, deterministic=True)
    return schema


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Keep valid requests cheap, and satisfiable where a schema cannot say it."""
    if case.operation.path == "/jobs/{job}/events":  # which go on as long as the job does
        job = quote(str(case.path_parameters["job"]), safe="")
        httpx.post(f"{case.operation.base_url}/jobs/{job}/cancel", timeout=120)
    body = case.body
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    if case.headers and "X-Deadline-Seconds" in case.headers:
        case.headers["X-Deadline-Seconds"] = "60"
    if not isinstance(body, dict):
        return
    for field, most in SMALL.items():
        if isinstance(body.get(field), int) and not isinstance(body[field], bool) and body[field] > most:
            body[field] = most
    if isinstance(body.get("json_schema"), dict):
        body["json_schema"] = BOUNDED
    if "model" in body and isinstance(body["model"], str) and body["model"]:
        body["model"] = "first"


def failures(client: httpx.Client, examples: int) -> tuple[list[str], int]:
    """What is wrong, a line each, and how many requests were made."""
    wrong: list[str] = []
    requests = 0
    for event in from_schema(_open(client, examples)).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            wrong.append(f"schemathesis: {event}")
        if not isinstance(event, events.ScenarioFinished):
            continue
        requests += len(event.recorder.interactions)
        for case, checks in event.recorder.checks.items():
            reply = event.recorder.interactions[case].response
            body = reply.content.decode(errors="replace") if reply else ""
            for check in checks:
                if check.failure_info and not _excluded(check.name, body):
                    failure = check.failure_info.failure
                    curl = event.recorder.cases[case].value.as_curl_command()[:400]
                    wrong.append(
                        f"{event.recorder.label} {check.name}: {failure.message[:300]}\n {body[:300]}\n {curl}"
                    )
    return wrong, requests


def _excluded(check: str, body: str) -> bool:
    return any(exclusion.check == check and exclusion.words in body for exclusion in EXCLUSIONS)


def test_a_service_keeps_what_its_document_promises(client: httpx.Client) -> None:
    wrong, requests = failures(client, EVERY_DAY)
    assert not wrong, "\n\n".join(wrong[:20])
    assert requests > 50


def test_it_keeps_it_for_long(client: httpx.Client) -> None:
    wrong, requests = failures(client, LONG)
    assert not wrong, "\n\n".join(wrong[:20])
    assert requests > 60
