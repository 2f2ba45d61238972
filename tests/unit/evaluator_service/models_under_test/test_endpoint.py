"""Models behind HTTP: the requests to the server, and its replies and refusals."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from evaluator_service.models_under_test.endpoint import EndpointModel
from shared.media.images import decode, encode
from shared.problems import DeadlineExceeded, DependencyFailed, InvalidInput
from shared.profiles.evaluator import ModelEndpoint

RANDOM = np.random.default_rng(11)


def endpoint(answer: Callable[[httpx.Request], httpx.Response], **more: Any) -> EndpointModel:
    fields = {"url": "http://model:1/classify", "classes": ["car", "bus"], "revision": "1", "licence": "none", **more}
    return EndpointModel(ModelEndpoint.model_validate(fields), httpx.MockTransport(answer))


def rows(request: httpx.Request) -> NDArray[np.float64]:
    images = [base64.b64decode(image) for image in json.loads(request.content)["images"]]
    return np.array([[0.25, 0.75] if image == b"one" else [1.0, 0.0] for image in images])


def test_an_endpoint_is_asked_in_batches_and_again_while_it_is_busy() -> None:
    sizes: list[int] = []
    troubles = [httpx.Response(503), httpx.Response(429, headers={"Retry-After": "0"})]

    def answer(request: httpx.Request) -> httpx.Response:
        if troubles:
            return troubles.pop()
        sizes.append(len(rows(request)))
        return httpx.Response(200, json={"probabilities": rows(request).tolist()})

    async def scenario() -> None:
        model = endpoint(answer, max_batch=2, concurrency=1)
        probabilities = await model.outputs([b"one", b"two", b"one", b"one", b"two"], time.monotonic() + 120)
        assert np.array_equal(probabilities, [[0.25, 0.75], [1.0, 0.0], [0.25, 0.75], [0.25, 0.75], [1.0, 0.0]])
        assert sorted(sizes) == [1, 2, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (httpx.Response(401), "refused: status 401"),
        (httpx.Response(404), "refused: status 404"),
        (httpx.Response(302, headers={"Location": "http://10.0.0.1/"}), "refused: status 302"),
        (httpx.Response(200, content=b"<html>"), "did not return"),
        (httpx.Response(200, json={"error": "out of memory"}), "The reply begins: .*out of memory"),
        (httpx.Response(200, json={"probabilities": [[1.0, 0.0]] * 2}), "must return 1 rows of 2"),
        (httpx.Response(200, json={"probabilities": [[1.0]]}), "must return 1 rows of 2"),
        (httpx.Response(200, json={"probabilities": [[3.0, -2.0]]}), "not probabilities"),
        (httpx.Response(200, json={"probabilities": [[4.0, 3.0]]}), "not probabilities"),
    ],
)
def test_an_endpoint_that_answers_nonsense_is_a_failed_dependency(reply: httpx.Response, words: str) -> None:
    with pytest.raises(DependencyFailed, match=words):
        asyncio.run(endpoint(lambda request: reply).outputs([b"one"], time.monotonic() + 120))


def test_an_endpoint_that_fails_is_quoted() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500, headers={"Retry-After": "0"}, text="RuntimeError: weights.pt is missing\n")

    with pytest.raises(DependencyFailed, match=r"status 500: RuntimeError: weights\.pt is missing$"):
        asyncio.run(endpoint(answer).outputs([b"one"], time.monotonic() + 120))


@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_an_endpoint_that_refuses_an_image_makes_it_invalid_input_and_is_not_asked_again(status: int) -> None:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(status, content=b"smaller than 32 pixels" + b" " * 10_000)

    with pytest.raises(InvalidInput, match=f"status {status}: smaller than 32 pixels$"):
        asyncio.run(endpoint(answer).outputs([b"one"], time.monotonic() + 120))
    assert len(requests) == 1


def test_a_refusal_whose_compression_is_broken_is_still_a_refusal() -> None:
    broken = httpx.Response(422, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"not gzip"))
    with pytest.raises(InvalidInput, match="status 422"):
        asyncio.run(endpoint(lambda request: broken).outputs([b"one"], time.monotonic() + 120))


@pytest.mark.parametrize("wait", ["²", "9" * 400])
def test_an_odd_time_to_wait_is_no_error(wait: str) -> None:
    replies = [httpx.Response(503, headers={b"Retry-After": wait.encode()})]

    def answer(request: httpx.Request) -> httpx.Response:
        return replies.pop() if replies else httpx.Response(200, json={"probabilities": rows(request).tolist()})

    deadline = time.monotonic() + 3  # it waits no longer than this
    with suppress(DeadlineExceeded):
        assert asyncio.run(endpoint(answer).outputs([b"one"], deadline))[0].tolist() == [0.25, 0.75]
    assert not replies


def test_an_endpoint_that_refuses_a_batch_is_asked_for_its_images() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        probabilities = rows(request)
        whole = {"probabilities": probabilities.tolist()}
        return httpx.Response(413) if len(probabilities) > 1 else httpx.Response(200, json=whole)

    probabilities = asyncio.run(endpoint(answer).outputs([b"one", b"two", b"one"], time.monotonic() + 120))
    assert np.array_equal(probabilities, [[0.25, 0.75], [1.0, 0.0], [0.25, 0.75]])


def served_segmenter(answer: Callable[[httpx.Request], httpx.Response], **more: Any) -> EndpointModel:
    fields = {"url": "http://model:1/segment", "task": "segmentation", "classes": ["road", "car"], **more}
    endpoint = ModelEndpoint.model_validate({"revision": "1", "licence": "none", **fields})
    return EndpointModel(endpoint, httpx.MockTransport(answer))


def text_of(pixels: NDArray[np.uint8]) -> str:
    return base64.b64encode(encode(pixels)).decode()


SIZES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5)
TWO = RANDOM.integers(0, 2, (4, 6), dtype=np.uint8)
BOMB = bytearray(encode(TWO))
BOMB[16:24] = (60_000).to_bytes(4, "big") * 2  # says to be of 3.6 billion pixels


@hypothesis.given(seed=st.integers(0, 2**32), sizes=SIZES)
@hypothesis.settings(max_examples=20, deadline=None)
def test_maps_of_a_server_are_taken_as_they_are(seed: int, sizes: list[tuple[int, int]]) -> None:
    """PNGs or rows of integers, mixed, in batches of two, in the order of the images."""
    random = np.random.default_rng(seed)
    maps = [random.integers(0, 2, size, dtype=np.uint8) for size in sizes]
    pictures = [encode(np.repeat(label_map[..., None] * 255, 3, axis=2)) for label_map in maps]

    def answer(request: httpx.Request) -> httpx.Response:
        pictures_sent = [
            decode(base64.b64decode(image))[..., 0] // 255 for image in json.loads(request.content)["images"]
        ]
        assert len(pictures_sent) <= 2
        return httpx.Response(
            200, json={"maps": [labels.tolist() if len(labels) % 2 else text_of(labels) for labels in pictures_sent]}
        )

    label_maps = asyncio.run(served_segmenter(answer, max_batch=2).outputs(pictures, time.monotonic() + 120))
    assert all(
        label_map.dtype == np.uint8 and (label_map == expected).all()
        for label_map, expected in zip(label_maps, maps, strict=True)
    )


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ({"probabilities": [[1.0]]}, "base64 PNGs"),
        ({"maps": []}, "returned 0 maps for 1 images"),
        ({"maps": ["?"]}, "cannot be read"),
        ({"maps": [base64.b64encode(b"no picture").decode()]}, "a grey PNG"),
        ({"maps": [text_of(TWO[:, :5])]}, "it has 5×4 pixels, the image 6×4"),
        ({"maps": [base64.b64encode(BOMB).decode()]}, "it has 60000×60000 pixels"),
        ({"maps": [text_of(np.repeat(TWO[..., None], 3, axis=2))]}, "it is in colour"),
        ({"maps": [text_of(TWO + np.uint8(1))]}, "values from 1 to 2"),
        ({"maps": [(TWO.astype(int) - 1).tolist()]}, "values from -1 to 0"),
        ({"maps": [TWO.tolist()[:3]]}, r"shape \(3, 6\)"),
        ({"maps": [[[0, 1], [0]]]}, "cannot be read"),
        ({"maps": [[[0.5] * 6] * 4]}, "rows of integers"),
        ({"maps": ["A" * 100_000]}, "sent more than 65,728 bytes"),
    ],
)
def test_a_server_whose_maps_do_not_fit_is_a_failed_dependency(reply: dict[str, Any], words: str) -> None:
    model = served_segmenter(lambda request: httpx.Response(200, json=reply))
    with pytest.raises(DependencyFailed, match=words):
        asyncio.run(model.outputs([encode(np.zeros((4, 6, 3), np.uint8))], time.monotonic() + 120))


def test_an_endpoint_that_never_answers_costs_no_more_than_the_deadline() -> None:
    unavailable = httpx.Response(503, headers={"Retry-After": "100000"})  # a day: without an end, it would hang
    with pytest.raises(DeadlineExceeded):
        asyncio.run(endpoint(lambda request: unavailable).outputs([b"one"], time.monotonic() + 0.5))
