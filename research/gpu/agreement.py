"""Part A: the shipped small models on the device against the same on the CPU in float32: pixels and embeddings.

The setting for types leaves weights whose profile says float32 as they are, the scorer's among them.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from diffusion_service.app import create_app as diffusion_app
from evaluator_service.app import create_app as evaluator_app
from research.full_services.generating import GUIDANCE, source_of
from research.full_services.generators import CAPTION, NIGHT
from research.full_services.served import serving
from research.gpu.rows import Run
from shared.media.images import decode
from shared.schemas.diffusion import Rendering, RenderRequest
from shared.schemas.evaluation import EmbedRequest
from shared.service.endpoints import Services
from shared.service.settings import ServiceSettings

SIDE = 128  # pixels of the source
STEPS = (1, 4, 20)
Arrays = dict[str, np.ndarray[Any, np.dtype[np.float64]]]


def measure(run: Run) -> None:
    """A row per type of the weights: the largest and the mean difference of each result."""
    expected: Arrays = {}
    with run.row(device="cpu", dtype="float32") as row:
        expected = asyncio.run(_results("cpu", "float32"))
        row["results"] = len(expected)
    for dtype in ("float32", "bfloat16"):
        with run.row(device=run.device, dtype=dtype) as row:
            found = asyncio.run(_results(run.device, dtype))
            for name, values in found.items():
                difference = np.abs(values - expected[name])
                row[name] = {"largest": float(difference.max()), "mean": float(difference.mean())}


async def _results(device: str, dtype: str) -> Arrays:
    """Pixels (0 … 255) by steps, and embeddings of unit length."""
    settings = ServiceSettings.model_validate({"profile": "tiny", "device": device, "dtype": dtype, "threads": 1})
    source = source_of(SIDE)
    results: Arrays = {}
    async with serving(diffusion_app(settings)) as client:
        for steps in STEPS:
            request = RenderRequest(
                source=source, renderings=[Rendering(prompt=NIGHT, seed=1)], steps=steps, guidance=GUIDANCE
            )
            (image,) = (await client.ask(Services.render, request)).images
            assert image is not None
            results[f"pixels after {steps} steps"] = decode(image.png).astype(float)
    async with serving(evaluator_app(settings)) as client:
        reply = await client.ask(Services.embed, EmbedRequest(images=[source], texts=[CAPTION]))
        results["image embedding"] = np.asarray(reply.images, float)
        results["text embedding"] = np.asarray(reply.texts, float)
    return results
