"""Models under test of a profile, over HTTP: an ONNX folder, a segmenter, an HTTP endpoint."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI, HTTPException
from transformers import SegformerConfig, SegformerForSemanticSegmentation
from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil

from embedded.serving import ListeningPort
from evaluator_service.app import create_app
from shared.media.images import decode, encode
from shared.profiles.profile import ProfileError, load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import PredictReply, PredictRequest, SegmentReply, SegmentRequest
from shared.service.endpoints import Services
from shared.service.settings import ServiceSettings
from tests.support.serving import call, serving
from tests.support.small_evaluator import CLASSES, write_classifier, write_scorer
from tests.support.small_packages import Logits, as_onnx, onnx_files
from tests.support.small_profile import write_profile

IMAGE = np.random.default_rng(2).integers(0, 256, (50, 70, 3), dtype=np.uint8)
MODELS = """[evaluator]
models_under_test.resnet = { path = "resnet", licence = "MIT", gigabytes = 0.01 }
models_under_test.exported = { path = "exported", licence = "MIT", gigabytes = 0.01 }
models_under_test.exported-roads = { path = "exported-roads", task = "segmentation", licence = "MIT", gigabytes = 0.01 }
models_under_test.roads = { path = "roads", task = "segmentation", licence = "MIT", gigabytes = 0.01 }
"""
SERVED = """
[evaluator.endpoints.served]
url = "{url}/classify"
classes = ["bright", "dark"]
revision = "7"
licence = "none"
api_key_variable = "SERVED_MODEL_KEY"

[evaluator.endpoints.lit]
url = "{url}/segment"
task = "segmentation"
classes = ["dark", "bright"]
revision = "1"
licence = "none"
max_batch = 1
"""


def brightness() -> FastAPI:
    """A model server: how bright pictures are, and where. It is busy once."""
    app = FastAPI()
    busy = [True]

    @app.post("/segment")
    def segment(body: dict[str, list[str]]) -> dict[str, list[str]]:
        if busy:
            busy.clear()
            raise HTTPException(503, headers={"Retry-After": "0"})
        maps = [(decode(base64.b64decode(image)).mean(axis=2) > 127).astype(np.uint8) for image in body["images"]]
        return {"maps": [base64.b64encode(encode(label_map)).decode() for label_map in maps]}

    @app.post("/classify")
    def classify(body: dict[str, list[str]]) -> dict[str, list[list[float]]]:
        bright = [decode(base64.b64decode(image)).mean() / 255 for image in body["images"]]
        return {"probabilities": [[value, 1 - value] for value in bright]}

    return app


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("named")
    write_scorer(folder / "scorer")
    write_classifier(folder / "resnet", 1)
    (folder / "exported").mkdir()
    for name, data in onnx_files(folder / "resnet").items():
        (folder / "exported" / name).write_bytes(data)
    (folder / "exported" / "contrafact.json").write_text(json.dumps({"classes": CLASSES}))
    sizes = {"hidden_sizes": [8] * 4, "depths": [1] * 4, "num_attention_heads": [1] * 4, "decoder_hidden_size": 8}
    segmenter = SegformerForSemanticSegmentation(SegformerConfig(**sizes, id2label={0: "road", 1: "car"}))
    segmenter.save_pretrained(folder / "roads")
    SegformerImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(folder / "roads")
    (folder / "exported-roads").mkdir()
    (folder / "exported-roads" / "model.onnx").write_bytes(as_onnx(Logits(segmenter)))
    for name in ("config.json", "preprocessor_config.json"):
        (folder / "exported-roads" / name).write_bytes((folder / "roads" / name).read_bytes())
    port = ListeningPort()
    port.serve(brightness())
    path = write_profile(folder)
    named = path.read_text().replace("[evaluator]\n", MODELS)
    path.write_text(named + SERVED.format(url=port.base_url))
    yield path
    port.close()


def test_all_kinds_are_listed_and_answer(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVED_MODEL_KEY", "secret")
    images = [ImagePayload(png=encode(IMAGE))] * 2

    async def predict(client: httpx.AsyncClient, model: str) -> PredictReply:
        return await call(client, Services.predict, PredictRequest(model=model, images=images))

    async def segment(client: httpx.AsyncClient, model: str) -> SegmentReply:
        return await call(client, Services.segment, SegmentRequest(model=model, images=images))

    async def scenario() -> None:
        settings = ServiceSettings(profile=str(profile), device="cpu", threads=1)
        async with serving(create_app(settings)) as client:
            listed = (await client.get("/v1/models")).json()["models"]
            assert [(model["name"], model["kind"]) for model in listed] == [
                ("resnet", "classification"),
                ("exported", "classification"),
                ("exported-roads", "segmentation"),
                ("roads", "segmentation"),
                ("served", "classification"),
                ("lit", "segmentation"),
            ]
            assert listed[4]["revision"] == "7"
            assert "secret" not in (await client.get("/v1/info")).text
            hub, onnx, served = [await predict(client, name) for name in ("resnet", "exported", "served")]
            assert hub.classes == onnx.classes == CLASSES
            assert np.allclose(hub.probabilities, onnx.probabilities, atol=1e-6)
            assert served.classes == ["bright", "dark"]
            assert np.allclose(served.probabilities[1], [IMAGE.mean() / 255, 1 - IMAGE.mean() / 255])
            replies = [await segment(client, name) for name in ("roads", "exported-roads", "lit")]
            assert [reply.classes for reply in replies] == [["road", "car"]] * 2 + [["dark", "bright"]]
            of_hub, of_onnx, lit = [[decode(label_map.png, "L") for label_map in reply.maps] for reply in replies]
            assert of_hub[0].shape == IMAGE.shape[:2]
            assert (np.array(of_hub) == np.array(of_onnx)).mean() > 0.999
            assert (np.array(lit) == (IMAGE.mean(axis=2) > 127)).all()
            for model in ("roads", "lit"):
                body = PredictRequest(model=model, images=images)
                wrong = await client.post("/v1/predictions", content=body.model_dump_json())
                assert (wrong.status_code, "send it to /v1/segmentations" in wrong.text) == (422, True)
            segmentation = SegmentRequest(model="served", images=images)
            wrong = await client.post("/v1/segmentations", content=segmentation.model_dump_json())
            assert (wrong.status_code, "send it to /v1/predictions" in wrong.text) == (422, True)

    asyncio.run(scenario())


def test_an_endpoint_whose_key_is_missing_or_alias_is_taken_is_refused(profile: Path) -> None:
    async def scenario() -> None:
        settings = ServiceSettings(profile=str(profile), device="cpu", threads=1)
        with pytest.raises(AssertionError, match="SERVED_MODEL_KEY"):
            async with serving(create_app(settings)):
                pass

    asyncio.run(scenario())
    clashing = profile.with_name("clashing.toml")
    clashing.write_text(profile.read_text().replace("[evaluator.endpoints.served]", "[evaluator.endpoints.resnet]"))
    with pytest.raises(ProfileError, match="endpoints"):
        load_profile(str(clashing))
