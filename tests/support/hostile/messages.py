"""Messages to the model services that no gateway would send, and the refusal that each gets."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.media.images import encode
from tests.support.hostile.png import header, jpeg_of_size, png, ramp, saved

GOOD = {"png": base64.b64encode(saved(ramp(64, 64))).decode()}
TINY = {"png": base64.b64encode(saved(ramp(1, 1))).decode()}
STRIP = {"png": base64.b64encode(saved(ramp(1, 50))).decode()}
GREY = {"png": base64.b64encode(encode(np.zeros((64, 64), np.uint8))).decode()}
SEED = {"seed": 0}


@dataclass(frozen=True)
class HostileMessage:
    """A body that a service's path answers with `status`, in a sentence that contains `words`."""

    service: str
    path: str
    name: str
    body: bytes
    status: int
    words: str


def _picture(data: bytes) -> dict[str, str]:
    return {"png": base64.b64encode(data).decode()}


def _caption(name: str, body: Any, status: int, words: str) -> HostileMessage:
    return HostileMessage("caption_service", "/v1/captions", name, json.dumps(body).encode(), status, words)


def _schema(name: str, schema: Any, words: str, status: int = 422) -> HostileMessage:
    body = {"messages": [{"role": "user", "content": "Say it."}], "json_schema": schema, "max_tokens": 64}
    return HostileMessage("llm_service", "/v1/generate", name, json.dumps(body).encode(), status, words)


def _render(name: str, words: str, status: int = 422, /, **changes: Any) -> HostileMessage:
    body = {"source": GOOD, "renderings": [{"prompt": "a bus", "seed": 0}], "steps": 2, **changes}
    return HostileMessage("diffusion_service", "/v1/renderings", name, json.dumps(body).encode(), status, words)


def _predict(name: str, words: str, status: int = 404, /, **changes: Any) -> HostileMessage:
    body = {"model": "first", "images": [GOOD], **changes}
    return HostileMessage("evaluator_service", "/v1/predictions", name, json.dumps(body).encode(), status, words)


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"enum": ["a"]}
    for _ in range(levels):
        schema = {"type": "array", "maxItems": 1, "items": schema}
    return schema


BOUNDED = {"type": "string", "maxLength": 4}
INTERNAL = "http://169.254.169.254/latest"

PICTURES = [
    _caption("no base64", {"images": [{"png": "%%%"}]}, 422, "not valid base64"),
    _caption("base64 of nothing", {"images": [{"png": ""}]}, 400, "not a PNG, JPEG or WebP"),
    _caption("base64 of text", {"images": [_picture(b"hello")]}, 400, "not a PNG, JPEG or WebP"),
    _caption("an address", {"images": [{"png": INTERNAL}]}, 422, "not valid base64"),
    _caption("an address of its own", {"images": [{"url": INTERNAL}]}, 422, "unknown field url"),
    _caption("a digest", {"images": [{"digest": "a" * 64}]}, 422, "send the PNG itself"),
    _caption("a text", {"images": ["a.png"]}, 422, "images.0"),
    _caption("seventeen", {"images": [GOOD] * 17}, 422, "at most 16"),
    _caption("none", {"images": []}, 422, "at least 1"),
    _caption("a bomb", {"images": [_picture(jpeg_of_size(65_000, 65_000))]}, 413, "pixels"),
    _caption("a row that is missing", {"images": [_picture(png(header(900, 900), bytes(2_701)))]}, 400, "broken"),
    _caption("a strip", {"images": [_picture(saved(ramp(1, 2_000)))]}, 422, "times as long as wide"),
    _caption("one among good ones", {"images": [GOOD, _picture(b"x"), GOOD]}, 400, "not a PNG"),
    _caption("the model's own placeholder", {"images": [GOOD], "prompt": "<image><image>"}, 422, "control word"),
]
SCHEMAS = [
    _schema("a fetch by $ref", {"$ref": INTERNAL}, "$ref is not supported"),
    _schema("a fetch by a hidden $ref", {**BOUNDED, "dependentSchemas": {"a": {"$ref": INTERNAL}}}, "not supported"),
    _schema("a fetch by $schema", {**BOUNDED, "$schema": INTERNAL}, "does not fetch"),
    _schema("a fetch by $id", {**BOUNDED, "$id": INTERNAL}, "$id is not supported"),
    _schema("a pattern that backtracks", {**BOUNDED, "pattern": "(a+)+$"}, "pattern is not supported"),
    _schema("a thousand levels", _nested(70), "more than 40 levels"),
    _schema("too many places", {"enum": [["a"]] * 5_000}, "more than 40 levels or 2,000"),
    _schema("too many bytes", {"enum": ["x" * 300_000]}, "more than 262,144 bytes"),
    _schema("NaN", {"type": "number", "minimum": float("nan"), "maximum": 1}, "NaN"),
    _schema("Infinity", {"type": "number", "minimum": 0, "maximum": float("inf")}, "infinite"),
    _schema("a number of 400 digits", {"type": "integer", "minimum": 0, "maximum": 10**400}, "json_schema"),
    _schema("no end of text", {"type": "string"}, "needs `maxLength`"),
    _schema("nothing possible", {"type": "integer", "minimum": 5, "maximum": 1}, "json_schema cannot be"),
    _schema("an empty choice", {"enum": []}, "json_schema"),
    _schema("a list", [], "json_schema"),
    _schema("null", None, "json_schema"),
    HostileMessage("llm_service", "/v1/generate", "100,000 lists", b"[" * 100_000, 400, "JSON"),
    HostileMessage("llm_service", "/v1/generate", "no JSON", b"\xff\xfe", 400, "JSON"),
    HostileMessage("llm_service", "/v1/score", "no text", b'{"texts": [""]}', 422, "a text to score"),
    HostileMessage(
        "llm_service", "/v1/score", "65 texts", json.dumps({"texts": ["a"] * 65}).encode(), 422, "at most 64"
    ),
]
RENDERINGS = [
    _render("a strip", "times as long as wide", source=_picture(saved(ramp(2_000, 1)))),
    _render("no picture", "not a PNG", 400, source=_picture(b"x")),
    _render("too many steps", "steps", steps=10**9),
    _render("no prompt", "prompt", renderings=[{"prompt": "", "seed": 0}]),
    _render("a seed beyond 63 bits", "seed", renderings=[{"prompt": "a", "seed": 2**63}]),
    _render("sixteen renderings", "at most 15", renderings=[{"prompt": "a", "seed": 0}] * 16),
    _render("a control that is a path", "control", control="../../etc/passwd"),
    _predict("an address", "no model under test", model=INTERNAL),
    _predict("a pickle", "no model under test", model="model.pkl"),
    _predict("a path", "no model under test", model="../../weights"),
    _predict("a name of 201 characters", "at most 200", 422, model="x" * 201),
    _predict("a strip", "times as long as wide", 422, images=[_picture(saved(ramp(1, 2_000)))]),
]
MESSAGES = [*PICTURES, *SCHEMAS, *RENDERINGS]

ODD_PICTURES: dict[str, tuple[str, Callable[[dict[str, str]], dict[str, object]]]] = {
    "caption_service": ("/v1/captions", lambda image: {"images": [image], "max_tokens": 4}),
    "diffusion_service": (
        "/v1/renderings",
        lambda image: {"source": image, "renderings": [{"prompt": "a bus", "seed": 0}], "steps": 2},
    ),
    "evaluator_service": ("/v1/predictions", lambda image: {"model": "first", "images": [image]}),
}
