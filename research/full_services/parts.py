"""The parts of `make full-size`: how each one's weights are written, and what is measured with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caption_service.app import create_app as caption_app
from diffusion_service.app import create_app as diffusion_app
from evaluator_service.app import create_app as evaluator_app
from research.full_services.generating import (
    KINDS,
    all_steps,
    common_label,
    generator_profile,
    null_text_steps,
    xl_steps,
)
from research.full_services.generators import SD15, SDXL, write_generator
from research.full_services.meter import ServiceMeter
from research.full_services.readers import (
    write_blip2,
    write_clip,
    write_depth_anything,
    write_resnet,
    write_upernet,
    write_vit,
)
from research.full_services.reading import caption_steps, captioner_profile, evaluator_profile, evaluator_steps
from research.full_services.served import measured_steps
from shared.profiles.weights import Dtype
from shared.service.settings import ServiceSettings

Measure = Callable[[ServiceMeter, Path, int], list[str]]


@dataclass(frozen=True, slots=True)
class Part:
    """`write` fills a folder with weights and returns the networks' parameters; parts of equal `weights` share it.

    `measure` loads the service and asks it, on so many threads; it returns the replies of `/readyz` while weights
    loaded.
    """

    title: str
    weights: str
    write: Callable[[Path], Mapping[str, int]]
    measure: Measure


def _settings(profile: Path, threads: int, dtype: Dtype | None = None) -> ServiceSettings:
    values: dict[str, Any] = {"profile": str(profile), "device": "cpu", "threads": threads}
    return ServiceSettings.model_validate(values | ({} if dtype is None else {"dtype": dtype}))


def _write_sd15(folder: Path) -> Mapping[str, int]:
    counts = write_generator(folder, SD15, KINDS)
    return counts | {"segmenter": write_upernet(folder / "segmenter"), "depth": write_depth_anything(folder / "depth")}


def _write_sdxl(folder: Path) -> Mapping[str, int]:
    return write_generator(folder, SDXL, ["canny"])


def _write_readers(folder: Path) -> Mapping[str, int]:
    return {
        "clip": write_clip(folder / "scorer"),
        "segmenter": write_upernet(folder / "segmenter"),
        "resnet-50": write_resnet(folder / "resnet-50"),
        "vit": write_vit(folder / "vit"),
    }


def _measure_sd15(meter: ServiceMeter, folder: Path, threads: int) -> list[str]:
    label = common_label(folder / "segmenter", 512)
    profile = generator_profile(folder, KINDS, keep=label)
    return asyncio.run(measured_steps(meter, diffusion_app(_settings(profile, threads)), all_steps(512, label)))


def _measure_sdxl(meter: ServiceMeter, folder: Path, threads: int) -> list[str]:
    app = diffusion_app(_settings(generator_profile(folder, ["canny"]), threads))
    return asyncio.run(measured_steps(meter, app, xl_steps(1024)))


def _measure_null_text(dtype: Dtype) -> Measure:
    def measure(meter: ServiceMeter, folder: Path, threads: int) -> list[str]:
        app = diffusion_app(_settings(generator_profile(folder, ["canny"]), threads, dtype))
        return asyncio.run(measured_steps(meter, app, null_text_steps(512)))

    return measure


def _measure_captions(meter: ServiceMeter, folder: Path, threads: int) -> list[str]:
    app = caption_app(_settings(captioner_profile(folder), threads))
    return asyncio.run(measured_steps(meter, app, caption_steps()))


def _measure_evaluator(meter: ServiceMeter, folder: Path, threads: int) -> list[str]:
    app = evaluator_app(_settings(evaluator_profile(folder), threads))
    return asyncio.run(measured_steps(meter, app, evaluator_steps()))


PARTS: Mapping[str, Part] = {
    "sd15": Part(
        "Stable Diffusion 1.5, four ControlNets, UPerNet, Depth Anything, 512 × 512", "sd15", _write_sd15, _measure_sd15
    ),
    "null-text": Part(
        "Stable Diffusion 1.5, null-text inversion in float32, 512 × 512",
        "sd15", _write_sd15, _measure_null_text("float32"),
    ),
    "null-text-half": Part(
        "Stable Diffusion 1.5, null-text inversion in bfloat16, 512 × 512",
        "sd15", _write_sd15, _measure_null_text("bfloat16"),
    ),
    "sdxl": Part("Stable Diffusion XL, one ControlNet, 1024 × 1024", "sdxl", _write_sdxl, _measure_sdxl),
    "blip2": Part(
        "BLIP-2 with OPT 2.7B", "blip2", lambda folder: {"blip-2": write_blip2(folder / "captioner")}, _measure_captions
    ),
    "evaluator": Part(
        "CLIP ViT-L/14, UPerNet, ResNet-50, ViT-B/16", "readers", _write_readers, _measure_evaluator
    ),
}  # fmt: skip
