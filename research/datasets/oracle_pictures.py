"""Training data of the oracles: renders, images that went through the autoencoder or the generator, and failures.

    python -m research.datasets.oracle_pictures oracle-a      # make all of it ahead of the training

*Redrawn* images were partly noised and denoised again by the shipped generator, which preserves the scene and adds the
generator's artefacts. Everything is computed once, into `runs/cache/`.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffusion_service.control_images import canny
from diffusion_service.loading import load
from diffusion_service.stable_diffusion import StableDiffusion
from research.datasets.failures import failure
from research.datasets.round_trips import with_round_trips
from research.judges.oracles.objects import NO_OBJECT, ORACLES
from research.objects.pictures import Pictures, pictures, split_scene
from research.pictures.augmentation import as_pixel_values
from research.pictures.rendered_once import Pixels
from research.system.folders import RUNS, WEIGHTS
from shared.chunks import chunks
from shared.profiles.arithmetic import native_weights
from shared.profiles.profile import load_profile
from shared.service.settings import ServiceSettings
from tinyworld.domain.scenes import Split
from tinyworld.objects.captions import caption
from tinyworld.objects.world import sample_scene

RENDERED = 10_000
ROUND_TRIPS = 800
FAILED = 900
# Whole pictures and failures; the other oracle learns the generator's hand from what its pictures suffer.
REDRAWN = {"oracle-a": (300, 120), "oracle-b": (0, 0)}
_STEPS = 20  # of the whole way to noise
_BATCH = 10
# How often a step takes a picture of each kind: rendered, through the autoencoder, redrawn, failed, failed and redrawn.
SHARES = (0.60, 0.12, 0.14, 0.10, 0.04)


@dataclass(frozen=True, slots=True)
class OraclePictures:
    """All images of an oracle in one array; a failure's only target is `none`.

    `starts`: where each kind of `SHARES` begins, and the end.
    """

    data: Pictures
    starts: tuple[int, ...]

    def rows(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Random rows, each kind in proportion to its share."""
        starts = np.array(self.starts)
        shares = np.where(np.diff(starts) > 0, SHARES, 0.0)
        kinds = random.choice(len(SHARES), size=count, p=shares / shares.sum())
        return np.asarray(starts[kinds] + random.random(count) * (starts[kinds + 1] - starts[kinds]), np.int64)

    def is_failure(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mask of the rows without a complete object."""
        return np.asarray(rows >= self.starts[3], np.bool_)


def oracle_pictures(name: str) -> OraclePictures:
    """All training data of an oracle, from the cache, or computed if it is not there."""
    split = ORACLES[name]
    whole = with_round_trips(pictures(split, RENDERED, split_scene(split)), split, ROUND_TRIPS)
    failed = failures(split, FAILED)
    count, failed_count = REDRAWN[name]
    drawn = [failed]
    if count:
        hand = _generator_digest()
        redrawn = _cache(f"{split}-redrawn-{count}-{hand}", lambda: _redrawn_whole(whole, count))
        broken = _cache(
            f"{split}-failed-redrawn-{failed_count}-{hand}", lambda: _redrawn(failed[:failed_count], None, 0.3)
        )
        drawn = [redrawn, failed, broken]
    failed_masks = np.zeros((FAILED + failed_count, *whole.masks.shape[1:]), np.uint8)
    rows = np.arange(RENDERED - count, RENDERED)
    data = replace(
        whole,
        scenes=whole.scenes + [whole.scenes[row] for row in rows],
        images=np.concatenate([whole.images, *drawn]),
        masks=np.concatenate([whole.masks, whole.masks[rows], failed_masks]),
        targets=torch.cat(
            [whole.targets, whole.targets[torch.from_numpy(rows)], NO_OBJECT.expand(len(failed_masks), -1)]
        ),
    )
    counts = (RENDERED, ROUND_TRIPS, count, FAILED, failed_count)
    return OraclePictures(data, (0, *np.cumsum(counts).tolist()))


def failures(split: Split, count: int, first: int = 1_000_000) -> Pixels:
    """Failed images of scenes of a split (n × 128 × 128 × 3), cached."""

    def render_failures() -> Pixels:
        random = np.random.default_rng((0xFA11, first))
        places = range(first, first + count)
        return np.stack([failure(sample_scene(split, n), sample_scene(split, n + count), random)[0] for n in places])

    return _cache(f"{split}-failed-{count}-{first}", render_failures)


def _redrawn_whole(whole: Pictures, count: int) -> Pixels:
    rows = range(RENDERED - count, RENDERED)
    texts = [caption(whole.scenes[row], row) for row in rows]
    return _redrawn(np.array(whole.images[rows.start : rows.stop]), texts, 0.55)


@torch.inference_mode()
def _redrawn(images: Pixels, texts: Sequence[str] | None, strength: float) -> Pixels:
    """Images noised by up to `strength` and denoised under their own edges; unconditionally without texts."""
    diffusion = native_weights(torch, load_profile("tiny").diffusion, "cpu", ServiceSettings().dtype)
    weights = load(diffusion.base, diffusion.controlnets, device="cpu")
    done = []
    captions = list(texts) if texts else [""] * len(images)
    batches = zip(chunks(images, _BATCH), chunks(captions, _BATCH), strict=True)
    for number, (batch, captions_of_some) in enumerate(batches):
        way = strength * (0.5 + 0.5 * (number % 4) / 3)
        done.append(_denoise(weights, batch, captions_of_some, way, number * _BATCH))
    return np.concatenate(done)


def _denoise(weights: StableDiffusion, images: Pixels, texts: Sequence[str], way: float, seed: int) -> Pixels:
    scheduler = weights.fresh_scheduler(_STEPS)
    times = scheduler.timesteps[round(_STEPS * (1 - way)) :]
    clean = weights.vae.encode(as_pixel_values(images).to(weights.vae.dtype)).latent_dist.mode().float()
    clean = clean * weights.vae.config.scaling_factor
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed))
    latents = scheduler.add_noise(clean, noise, times[:1])
    states = torch.stack([weights.prompts.encode(text).states for text in texts]).to(weights.dtype)
    edges = np.stack([canny(np.ascontiguousarray(image)) for image in images])
    control = torch.from_numpy(edges).to(weights.dtype).div(255)[:, None].expand(-1, 3, -1, -1)
    for time in times:
        inputs = latents.to(weights.dtype)
        predicted = _predict(weights, inputs, time, states, control)
        latents = scheduler.step(predicted.float(), time, latents, return_dict=False)[0]
    drawn = weights.decode(latents).mul(255).round().byte().permute(0, 2, 3, 1)
    return np.asarray(drawn.numpy(), np.uint8)


def _predict(weights: StableDiffusion, inputs: Tensor, time: Tensor, states: Tensor, control: Tensor) -> Tensor:
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    down, middle = weights.controlnets["canny"](
        inputs, time, encoder_hidden_states=states, controlnet_cond=control, return_dict=False
    )
    result: Tensor = weights.unet(
        inputs, time, encoder_hidden_states=states, down_block_additional_residuals=down,
        mid_block_additional_residual=middle, return_dict=False,
    )[0]  # fmt: skip
    return result


def _cache(name: str, make: Callable[[], Pixels]) -> Pixels:
    path = RUNS / "cache" / f"{name}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, make())
    return np.asarray(np.load(path), np.uint8)


def _generator_digest() -> str:
    """Digest of the names and sizes of the generator's weights."""
    parts = [
        f"{file.relative_to(WEIGHTS)}:{file.stat().st_size}"
        for file in sorted((WEIGHTS / "diffusion").rglob("*.safetensors"))
    ]
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:8]


if __name__ == "__main__":
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("oracle", choices=list(ORACLES), help="the oracle that learns from them")
    print(oracle_pictures(parser.parse_args().oracle).starts)
