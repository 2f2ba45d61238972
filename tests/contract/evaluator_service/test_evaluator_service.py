"""evaluator_service over HTTP, on small weights: predictions, embeddings, structure agreement, refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification, AutoTokenizer, CLIPModel

from evaluator_service.app import create_app
from evaluator_service.similarity import Scorer
from shared.media.images import encode
from shared.profiles.weights import Weights
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import (
    EmbedRequest,
    ModelsReply,
    PredictRequest,
    StructureRequest,
)
from shared.service.endpoints import Services
from shared.service.settings import LARGEST_SUBMISSION
from tests.support.service_settings import settings
from tests.support.serving import call, serving
from tests.support.small_evaluator import CLASSES, write_classifier, write_scorer
from tests.support.small_profile import write_profile

RANDOM = np.random.default_rng(7)
MODELS = """[evaluator]
max_batch = 4
models_under_test.first = { path = "first", licence = "MIT", gigabytes = 0.01, description = "the first" }
models_under_test.second = { path = "second", licence = "MIT", gigabytes = 0.01 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluator")
    write_classifier(folder / "first", 1)
    write_classifier(folder / "second", 2)
    write_scorer(folder / "scorer")
    profile = write_profile(folder)
    profile.write_text(profile.read_text().replace("[evaluator]\n", MODELS))
    return folder


def pixels(width: int = 80, height: int = 64) -> np.ndarray:
    return RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8)


def payload(image: np.ndarray) -> ImagePayload:
    return ImagePayload(png=encode(image))


def test_predictions_are_the_models_own_on_its_own_preprocessing(folder: Path) -> None:
    image = pixels()
    model = AutoModelForImageClassification.from_pretrained(folder / "second").eval()
    inputs = AutoImageProcessor.from_pretrained(folder / "second", backend="pil")(
        Image.fromarray(image), return_tensors="pt"
    )
    with torch.inference_mode():
        expected = model(**inputs).logits.softmax(-1)[0].numpy()

    async def scenario() -> None:
        async with serving(create_app(settings(folder / "small.toml"))) as client:
            body = PredictRequest(model="second", images=[payload(image), payload(pixels(50, 99))])
            reply = await call(client, Services.predict, body)
            assert reply.classes == CLASSES
            assert np.allclose(reply.probabilities[0], expected, atol=1e-6)
            assert np.allclose(np.sum(reply.probabilities, axis=1), 1)
            other = body.model_copy(update={"model": "first"})
            first = await call(client, Services.predict, other)
            assert first.probabilities != reply.probabilities
            listed = ModelsReply.model_validate_json((await client.get("/v1/models")).content).models
            assert [(model.name, model.classes, model.licence, model.description) for model in listed] == [
                ("first", CLASSES, "MIT", "the first"),
                ("second", CLASSES, "MIT", ""),
            ]
            assert listed[0].revision != listed[1].revision

    asyncio.run(scenario())


def test_embeddings_are_clips_and_unit_length(folder: Path) -> None:
    image, texts = pixels(64, 64), ["A red car.", "snow " * 200, "A red car."]
    clip = CLIPModel.from_pretrained(folder / "scorer").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "scorer")
    processor = AutoImageProcessor.from_pretrained(folder / "scorer", backend="pil")
    tokens = tokenizer(["A red car."], return_tensors="pt")
    with torch.inference_mode():
        both = clip(**processor(Image.fromarray(image), return_tensors="pt"), **tokens)

    async def scenario() -> None:
        async with serving(create_app(settings(folder / "small.toml"))) as client:
            body = EmbedRequest(images=[payload(image)], texts=texts)
            reply = await call(client, Services.embed, body)
            assert np.allclose(reply.images[0], both.image_embeds[0].numpy(), atol=1e-5)
            assert np.allclose(reply.texts[0], both.text_embeds[0].numpy(), atol=1e-5), "padding changes nothing"
            assert reply.texts[2] == reply.texts[0] != reply.texts[1]
            assert np.allclose(np.linalg.norm(reply.images + reply.texts, axis=1), 1)
            assert np.isclose(reply.logit_scale, clip.logit_scale.exp().item())
            again = await call(client, Services.embed, EmbedRequest(texts=texts))
            assert again.texts == reply.texts
            assert again.images == []

    asyncio.run(scenario())


def test_more_texts_than_the_queue_holds_are_embedded_beside_images(folder: Path) -> None:
    texts = [f"a photo of a thing {number}." for number in range(100)]

    async def scenario() -> None:
        async with serving(create_app(settings(folder / "small.toml", capacity=LARGEST_SUBMISSION))) as client:
            body = EmbedRequest(images=[payload(pixels()) for _ in range(3)], texts=texts)
            reply = await call(client, Services.embed, body)
            assert (len(reply.images), len(reply.texts)) == (3, 100)
            single = EmbedRequest(texts=texts[70:71])
            again = await call(client, Services.embed, single)
            assert np.allclose(again.texts[0], reply.texts[70])

    asyncio.run(scenario())


def test_a_siglip_can_be_the_scorer(tmp_path: Path) -> None:
    write_scorer(tmp_path, "siglip")
    scorer = Scorer(Weights(path=tmp_path, licence="none", gigabytes=0.01), device="cpu")
    texts = scorer.embed_texts(["A red car.", "snow " * 200])
    both = np.concatenate([texts, scorer.embed_images([pixels(), pixels(30, 99)])])
    assert np.allclose(np.linalg.norm(both, axis=1), 1)
    assert np.allclose(texts[:1], scorer.embed_texts(["A red car."]), atol=1e-6)


def test_deterministic_replies_do_not_depend_on_the_batch(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(
            create_app(settings(folder / "small.toml", deterministic=True, max_wait_seconds=0.2))
        ) as client:
            requests = [PredictRequest(model="first", images=[payload(pixels())]) for _ in range(4)]
            alone = await call(client, Services.predict, requests[0])
            crowd = await asyncio.gather(*(call(client, Services.predict, body) for body in reversed(requests)))
            assert crowd[-1] == alone
            embed = EmbedRequest(images=[requests[0].images[0]])
            single = await call(client, Services.embed, embed)
            more = EmbedRequest(images=[payload(pixels()), *embed.images])
            together = await call(client, Services.embed, more)
            assert together.images[1] == single.images[0]

    asyncio.run(scenario())


def test_structure_agreement_counts_kept_edges(folder: Path) -> None:
    source = np.full((64, 80, 3), 200, np.uint8)
    source[20:50, 10:30], source[20:50, 50:70] = 30, 30
    half = source.copy()
    half[:, 40:] = 200
    dark = (source * 0.5).astype(np.uint8)
    blank = np.full_like(source, 99)
    left_half = np.zeros((64, 80), np.uint8)
    left_half[:, :40] = 255

    async def scenario() -> None:
        async with serving(create_app(settings(folder / "small.toml"))) as client:
            body = StructureRequest(source=payload(source), images=[payload(i) for i in (source, dark, half, blank)])
            reply = await call(client, Services.structure, body)
            assert reply.agreements[0] > 0.95
            assert reply.agreements[1] > 0.95, "light may change"
            assert abs(reply.agreements[2] - 0.5) < 0.1
            assert reply.agreements[3] == 0
            noise = body.model_copy(update={"images": [payload(pixels()) for _ in range(16)]})
            reply = await call(client, Services.structure, noise)
            # The mean over many is 0.15, that of 16 varies by 0.04. Without the correction for chance it is near 1.
            assert np.mean(reply.agreements) < 0.4, "edges everywhere agree by chance only"
            masked = body.model_copy(update={"mask": payload(left_half)})
            reply = await call(client, Services.structure, masked)
            assert reply.agreements[2] > 0.95, "what lies outside the mask does not count"
            moved = np.roll(source, (3, 5), (0, 1))
            asked = body.model_copy(update={"images": [payload(source), payload(moved)], "find_moves": True})
            reply = await call(client, Services.structure, asked)
            still, found = reply.moves
            assert still is None
            assert found is not None
            assert (round(found.right), round(found.down), round(found.zoom, 2)) == (5, 3, 1)
            assert reply.agreements[1] > 0.95, "outlines count where they were before the move"
            other = body.model_copy(update={"images": [payload(pixels(30, 30))]})
            refusal = await client.post("/v1/structure", content=other.model_dump_json())
            assert refusal.status_code == 422
            assert "same size" in refusal.json()["detail"]

    asyncio.run(scenario())


@pytest.mark.slow
def test_an_unknown_model_is_answered_with_those_that_exist(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(create_app(settings(folder / "small.toml"))) as client:
            body = PredictRequest(model="third", images=[payload(pixels())])
            reply = await client.post("/v1/predictions", content=body.model_dump_json())
            assert reply.status_code == 404
            assert "first, second" in reply.json()["detail"]

    asyncio.run(scenario())
