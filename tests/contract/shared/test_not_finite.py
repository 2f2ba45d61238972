"""Services whose weights overflow to NaN reply with a typed error, never with a text or vector."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

import caption_service.app
import evaluator_service.app
import llm_service.app
from shared.media.images import encode
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionRequest
from shared.schemas.evaluation import EmbedRequest, SegmentRequest
from shared.schemas.language import FillRequest, Gap, ScoreRequest
from shared.service.settings import ServiceSettings
from tests.support.broken_weights import spoil
from tests.support.language_requests import generate_request
from tests.support.serving import serving
from tests.support.small_diffusion import write_segmenter
from tests.support.small_evaluator import write_scorer
from tests.support.small_models import save_blip2, save_llama
from tests.support.small_profile import write_profile
from tests.support.small_texts import save_masked_words

IMAGE = ImagePayload(png=encode(np.zeros((32, 32, 3), np.uint8)))


def answer(
    create_app: Callable[[ServiceSettings], FastAPI], profile: Path, path: str, body: BaseModel
) -> httpx.Response:
    async def main() -> httpx.Response:
        async with serving(create_app(ServiceSettings(profile=str(profile), device="cpu", threads=1))) as client:
            return await client.post(path, content=body.model_dump_json())

    return asyncio.run(main())


def assert_not_finite(reply: httpx.Response) -> None:
    assert (reply.status_code, reply.json()["type"]) == (500, "urn:contrafact:problem:not-finite")


@pytest.mark.parametrize("beams", [1, 3])
def test_a_captioner_that_computes_nan_writes_no_caption(tmp_path: Path, beams: int) -> None:
    save_blip2(tmp_path / "captioner")
    spoil(tmp_path / "captioner", "decoder.final_layer_norm")
    profile = write_profile(tmp_path, caption_engine="blip2")
    request = CaptionRequest(images=[IMAGE], max_tokens=4, beams=beams)
    assert_not_finite(answer(caption_service.app.create_app, profile, "/v1/captions", request))


def test_a_language_model_that_computes_nan_writes_and_scores_nothing(tmp_path: Path) -> None:
    save_llama(tmp_path / "language")
    spoil(tmp_path / "language", "model.norm")
    profile = write_profile(tmp_path, language_engine="transformers")
    for path, body in (("/v1/generate", generate_request("A bus.")), ("/v1/score", ScoreRequest(texts=["A bus."]))):
        assert_not_finite(answer(llm_service.app.create_app, profile, path, body))


def test_a_masked_language_model_that_computes_nan_fills_no_gap(tmp_path: Path) -> None:
    save_masked_words(tmp_path / "masked")
    spoil(tmp_path / "masked", "embeddings.LayerNorm")
    save_llama(tmp_path / "language")
    profile = write_profile(tmp_path, language_engine="transformers")
    masked = "[diffusion]\n"
    words = 'masked_words = { path = "masked", licence = "none", gigabytes = 0.01 }\n'
    profile.write_text(profile.read_text().replace(masked, words + masked))
    request = FillRequest(gaps=[Gap(before="A photo of a ", after=" bus.")])
    assert_not_finite(answer(llm_service.app.create_app, profile, "/v1/fill", request))


def test_a_segmenter_under_test_that_computes_nan_gives_no_map(tmp_path: Path) -> None:
    write_scorer(tmp_path / "scorer")
    write_segmenter(tmp_path / "roads")
    spoil(tmp_path / "roads", "decode_head.classifier")
    profile = write_profile(tmp_path)
    alias = 'models_under_test.own = { path = "roads", kind = "segmentation", licence = "MIT", gigabytes = 0.01 }'
    profile.write_text(profile.read_text().replace("[evaluator]\n", f"[evaluator]\n{alias}\n"))
    request = SegmentRequest(model="own", images=[IMAGE])
    assert_not_finite(answer(evaluator_service.app.create_app, profile, "/v1/segmentations", request))


def test_a_scorer_that_computes_nan_of_images_gives_no_vector_of_them(tmp_path: Path) -> None:
    write_scorer(tmp_path / "scorer")
    spoil(tmp_path / "scorer", "visual_projection")
    profile = write_profile(tmp_path)
    create_app = evaluator_service.app.create_app
    assert_not_finite(answer(create_app, profile, "/v1/embeddings", EmbedRequest(images=[IMAGE], texts=["a bus"])))
    assert answer(create_app, profile, "/v1/embeddings", EmbedRequest(texts=["a bus"])).status_code == 200
