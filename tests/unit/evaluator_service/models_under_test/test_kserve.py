"""Models behind the Open Inference Protocol: a server of three kinds of models, written from its specification."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI, Request, Response
from numpy.typing import NDArray
from pydantic import ValidationError

from evaluator_service.models_under_test.endpoint import EndpointModel
from shared.media.images import Pixels, encode
from shared.problems import DependencyFailed, InvalidInput
from shared.profiles.evaluator import ModelEndpoint
from tests.support.listening import listen

HEAD = "Inference-Header-Content-Length"
Tensors = dict[str, NDArray[np.float32]]


def channel_means(images: NDArray[np.float32]) -> Tensors:
    return {"logits": 9 * images.mean(axis=(2, 3))}


def channels(images: NDArray[np.float32]) -> Tensors:
    return {"logits": images}


def bright_rectangles(images: NDArray[np.float32]) -> Tensors:
    """Images × 1 × 6, corners in pixels of the input, score, and the channel that is largest."""
    rows = np.zeros((len(images), 1, 6), np.float32)
    for row, image in zip(rows[:, 0], images, strict=True):
        ys, xs = np.nonzero(image.max(axis=0) > 0.9)
        row[:] = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1, 0.75, image.sum(axis=(1, 2)).argmax()]
    return {"output0": rows}


MODELS: dict[str, Callable[[NDArray[np.float32]], Tensors]] = {
    "classifier": channel_means,
    "segmenter": channels,
    "detector": bright_rectangles,
    "broken": lambda images: {"logits": channel_means(images)["logits"] * np.float32(np.inf)},
    "short": lambda images: {"logits": channel_means(images)["logits"][:, :2]},
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The infer endpoint of the protocol, with tensors in JSON or in the extension for binary data."""
    app = FastAPI()

    @app.post("/v2/models/{name}/infer")
    async def infer(name: str, request: Request) -> Response:
        body = await request.body()
        length = int(request.headers.get(HEAD, len(body)))
        content: dict[str, Any] = json.loads(body[:length])
        (tensor,) = content["inputs"]
        if tensor["name"] != "images" or tensor["datatype"] != "FP32":
            return Response(json.dumps({"error": f"unexpected input {tensor['name']!r}"}), 400)
        if size := tensor.get("parameters", {}).get("binary_data_size"):
            values = np.frombuffer(body[length : length + size], "<f4")
        else:
            values = np.array(tensor["data"], np.float32)
        outputs = MODELS[name](values.reshape(tensor["shape"]))
        reply: list[dict[str, Any]] = [
            {"name": key, "shape": list(array.shape), "datatype": "FP32", "data": array.ravel().tolist()}
            for key, array in outputs.items()
        ]
        if not content.get("parameters", {}).get("binary_data_output"):
            return Response(json.dumps({"model_name": name, "outputs": reply}))
        for entry in reply:
            entry["parameters"] = {"binary_data_size": 4 * len(entry.pop("data"))}
        head = json.dumps({"model_name": name, "outputs": reply}).encode()
        return Response(head + b"".join(array.tobytes() for array in outputs.values()), headers={HEAD: str(len(head))})

    with listen(app) as url:
        yield url


COLOURS = ["red", "green", "blue"]
SIZE = {"height": 64, "width": 64, "resample": "nearest"}


def model(server: str, name: str, **more: Any) -> EndpointModel:
    fields = {"url": f"{server}/v2/models/{name}/infer", "classes": COLOURS, "revision": "1", "licence": "none"}
    tensors = {"protocol": "kserve", "input": "images", "preprocessing": SIZE, "max_batch": 2}
    return EndpointModel(ModelEndpoint.model_validate({**fields, **tensors, **more}))


def answers(model: EndpointModel, images: list[Pixels]) -> list[Any]:
    return asyncio.run(model.outputs([encode(image) for image in images], time.monotonic() + 120))


def picture(channel: int) -> Pixels:
    """128 × 96 pixels with a bright rectangle of one colour."""
    pixels = np.full((96, 128, 3), 60, np.uint8)
    pixels[30:50, 20:60, channel] = 255
    return pixels


PICTURES = [picture(channel) for channel in (0, 1, 2)]


@pytest.mark.parametrize("binary", [False, True])
def test_models_of_all_kinds_are_read(server: str, binary: bool) -> None:
    classified = answers(model(server, "classifier", output="logits", binary=binary), PICTURES)
    assert [int(row.argmax()) for row in classified] == [0, 1, 2]
    assert np.allclose(np.sum(classified, axis=1), 1)

    maps = answers(model(server, "segmenter", kind="segmentation", binary=binary), PICTURES)
    assert [label_map.shape for label_map in maps] == [(96, 128)] * 3
    assert [int(label_map[40, 40]) for label_map in maps] == [0, 1, 2]

    letterbox = {**SIZE, "fit": "letterbox"}
    boxes = answers(
        model(server, "detector", kind="detection", output="end-to-end", preprocessing=letterbox, binary=binary),
        PICTURES,
    )
    for place, answer in enumerate(boxes):
        np.testing.assert_allclose(answer[0], [20, 30, 60, 50, 0.75, place], atol=0.01)
        assert not answer[1:].any()


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("classifier", {}, "needs `output`"),
        ("classifier", {"output": "probabilities"}, "not probabilities"),
        ("broken", {"output": "logits"}, "NaN or infinity"),
        ("short", {"output": "logits"}, "of 3 classes"),
        ("classifier", {"kind": "segmentation"}, "3 × height × width"),
        ("classifier", {"kind": "detection"}, "no known layout"),
    ],
)
def test_outputs_that_do_not_fit_are_a_failed_dependency(
    server: str, name: str, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(DependencyFailed, match=words):
        answers(model(server, name, **more), PICTURES[:2])


def test_what_the_server_refuses_is_quoted(server: str) -> None:
    with pytest.raises(InvalidInput, match="unexpected input 'pixels'"):
        answers(model(server, "classifier", output="logits", input="pixels"), PICTURES[:1])


def test_settings_of_another_protocol_are_refused_and_preprocessing_keys_predictions(server: str) -> None:
    for wrong in ({"input": ""}, {"preprocessing": None}, {"protocol": "contrafact"}, {"url": "http://a/v2/models/b"}):
        with pytest.raises(ValidationError):
            model(server, "classifier", **wrong)
    fields = {"url": "http://a/infer", "classes": COLOURS, "revision": "1", "licence": "", "input": "images"}
    revisions = {
        ModelEndpoint.model_validate({**fields, "protocol": "kserve", "preprocessing": {**SIZE, "scale": scale}})
        .info("model")
        .revision
        for scale in (1, 1 / 255)
    }
    assert len(revisions) == 2


def test_a_server_of_hugging_face_gets_one_image_at_a_time() -> None:
    app, payloads = FastAPI(), list[dict[str, Any]]()

    @app.post("/")
    async def detect(request: Request) -> list[dict[str, Any]]:
        payloads.append(await request.json())
        box = {"xmin": 1, "ymin": 2, "xmax": 30, "ymax": 40}
        return [{"label": "blue", "score": 0.5, "box": box}]

    with listen(app) as url:
        fields = {"url": url, "kind": "detection", "classes": COLOURS, "revision": "1", "licence": ""}
        found = answers(
            EndpointModel(ModelEndpoint.model_validate({**fields, "protocol": "huggingface"})), PICTURES[:2]
        )
    assert [answer[0].tolist() for answer in found] == [[1, 2, 30, 40, 0.5, 2]] * 2
    assert [(type(payload["inputs"]), payload["parameters"]) for payload in payloads] == [(str, {"threshold": 0.0})] * 2
