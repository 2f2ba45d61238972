"""Part B: Stable Diffusion 1.5 and XL with a ControlNet on random weights, by the service and by diffusers' pipeline.

Both render the same batches in the same process, one after the other. The trace is of one batch of the service.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import torch
from diffusers import (
    AutoencoderKL,
    ControlNetModel,
    StableDiffusionControlNetPipeline,
    StableDiffusionXLControlNetPipeline,
    UNet2DConditionModel,
    UniPCMultistepScheduler,
)
from PIL import Image
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from diffusion_service.app import create_app
from research.full_services.generating import GUIDANCE, generator_profile, picture, source_of
from research.full_services.generators import NIGHT, SD15, SDXL, Architecture, write_generator
from research.full_services.served import Client, serving
from research.gpu.rows import Run
from shared.schemas.diffusion import Rendering, RenderRequest
from shared.service.endpoints import Services
from shared.service.settings import ServiceSettings

TINY = Architecture(
    unet={
        "sample_size": 8, "block_out_channels": (8, 16, 16, 16), "cross_attention_dim": 32, "attention_head_dim": 4,
    },
    texts=[
        {
            "hidden_size": 32, "intermediate_size": 32, "projection_dim": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "hidden_act": "quick_gelu",
        }
    ],
    vae=(8, 8, 8, 8), hint=(4, 4, 4, 8), groups=4,
)  # fmt: skip
PUBLIC = {"sd15": SD15, "sdxl": SDXL}
BATCHES, STEPS = (1, 2, 4, 8), (4, 20, 30)
REPEATS = 3  # after one that is not measured
TRACED_STEPS = 4


def measure(run: Run) -> None:
    """Rows for each architecture, batch and number of steps: ours, then diffusers'."""
    for name, architecture in ({"tiny": TINY} if run.tiny else PUBLIC).items():
        folder = run.weights / name
        if not (folder / "base").exists():
            write_generator(folder, architecture, ["canny"])
        batches, steps = ((1, 2), (1, 2)) if run.tiny else (BATCHES, STEPS)
        side = int(architecture.unet["sample_size"]) * 8
        asyncio.run(_ours(run, name, folder, side, batches, steps))
        gc.collect()
        torch.cuda.empty_cache()
        _plain(run, name, folder, side, batches, steps)
        gc.collect()
        torch.cuda.empty_cache()


async def _ours(run: Run, name: str, folder: Path, side: int, batches: Sequence[int], steps: Sequence[int]) -> None:
    path = generator_profile(folder, ["canny"], max_batch=max(batches))
    settings = ServiceSettings.model_validate({"profile": str(path), "device": run.device, "threads": 1})
    async with serving(create_app(settings)) as client:
        for batch in batches:
            for count in steps:
                request = _request(side, batch, count)
                await client.ask(Services.render, request)
                with run.row(weights=name, by="service", batch=batch, steps=count, repeats=REPEATS) as row:
                    for _ in range(REPEATS):
                        reply = await client.ask(Services.render, request)
                    row["finite"] = sum(image is not None for image in reply.images)
        await _trace(run, name, client, _request(side, max(batches), min(TRACED_STEPS, max(steps))))


def _request(side: int, batch: int, steps: int) -> RenderRequest:
    renderings = [Rendering(prompt=NIGHT, seed=seed) for seed in range(batch)]
    return RenderRequest(source=source_of(side), renderings=renderings, steps=steps, guidance=GUIDANCE)


async def _trace(run: Run, name: str, client: Client, request: RenderRequest) -> None:
    """Write the trace of one batch for chrome://tracing, compressed."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if run.on_gpu else [])
    with run.row(weights=name, by="service, traced", steps=request.steps) as row:
        every_thread = _ExperimentalConfig(profile_all_threads=True)  # the service computes in one of its own
        with profile(activities=activities, experimental_config=every_thread) as traced:
            await client.ask(Services.render, request)
        traced.export_chrome_trace(str(run.out / f"trace-{name}.json.gz"))
        events = sorted(traced.key_averages(), key=_self_time, reverse=True)[:10]
        row["slowest"] = {event.key: round(_self_time(event) / 1e6, 4) for event in events}


def _self_time(event: Any) -> float:
    """Microseconds on the device, or on the CPU without one."""
    return float(event.self_device_time_total or event.self_cpu_time_total)


def _plain(run: Run, name: str, folder: Path, side: int, batches: Sequence[int], steps: Sequence[int]) -> None:
    pipeline = plain_pipeline(folder, run.device)
    grey = cv2.cvtColor(picture(side), cv2.COLOR_RGB2GRAY)
    control = Image.fromarray(cv2.cvtColor(cv2.Canny(grey, 100, 200), cv2.COLOR_GRAY2RGB))
    for batch in batches:
        for count in steps:
            arguments: dict[str, Any] = {
                "prompt": [NIGHT] * batch, "image": [control] * batch, "height": side, "width": side,
                "num_inference_steps": count, "guidance_scale": GUIDANCE, "output_type": "np",
            }  # fmt: skip
            pipeline(**arguments)
            with run.row(weights=name, by="diffusers", batch=batch, steps=count, repeats=REPEATS):
                for _ in range(REPEATS):
                    pipeline(**arguments)


def plain_pipeline(folder: Path, device: str) -> Any:
    """diffusers' own pipeline over the same weights, in bfloat16."""
    base, dtype = folder / "base", torch.bfloat16
    parts: dict[str, Any] = {
        "vae": AutoencoderKL.from_pretrained(base, subfolder="vae", dtype=dtype),
        "unet": UNet2DConditionModel.from_pretrained(base, subfolder="unet", dtype=dtype),
        "controlnet": ControlNetModel.from_pretrained(folder / "control-canny", dtype=dtype),
        "text_encoder": CLIPTextModel.from_pretrained(base / "text_encoder", dtype=dtype),
        "tokenizer": CLIPTokenizer.from_pretrained(base / "tokenizer"),
        "scheduler": UniPCMultistepScheduler.from_pretrained(base, subfolder="scheduler"),
    }
    if (base / "text_encoder_2").exists():
        parts["text_encoder_2"] = CLIPTextModelWithProjection.from_pretrained(base / "text_encoder_2", dtype=dtype)
        parts["tokenizer_2"] = CLIPTokenizer.from_pretrained(base / "tokenizer_2")
        pipeline: Any = StableDiffusionXLControlNetPipeline(**parts, add_watermarker=False)
    else:
        pipeline = StableDiffusionControlNetPipeline(
            **parts, safety_checker=None, feature_extractor=None, requires_safety_checker=False
        )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(device)
