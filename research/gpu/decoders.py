"""Colour error and time of decoders in bfloat16 and float16, against float32 on the same device.

`tinyworld` is the shipped autoencoder, trained, on a scene of 128 pixels; `sdxl` has XL's size and random weights. Its
images are noise, scaled to the range of a picture. Errors are in levels of 255.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from diffusers import AutoencoderKL

from benchmarks.random_networks import random_network
from research.full_services.generating import picture
from research.full_services.generators import SDXL, build_autoencoder
from research.gpu.rows import Run
from research.system.folders import WEIGHTS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def measure(run: Run) -> None:
    """Rows for each autoencoder and type: seconds, and the largest and mean error of the channels."""
    shipped = partial(AutoencoderKL.from_pretrained, WEIGHTS / "diffusion" / "vae")
    large = partial(random_network, partial(build_autoencoder, SDXL))
    builds: dict[str, tuple[Callable[[], AutoencoderKL], int]] = {
        "tinyworld": (shipped, 128),
        "sdxl": (large, 64 if run.tiny else 1024),
    }
    for name, (build, side) in builds.items():
        coder = build().to(run.device).eval()
        pixels = torch.from_numpy(picture(side)).to(run.device).permute(2, 0, 1)[None].float() / 127.5 - 1
        with torch.inference_mode():
            latents = coder.encode(pixels).latent_dist.mode()
            decoded: list[torch.Tensor] = []
            for dtype in DTYPES:
                torch.nn.Module.to(coder, dtype)
                if run.on_gpu:
                    coder.decode(latents.to(dtype))  # what is prepared once
                with run.row(weights=name, side=side, dtype=str(dtype).removeprefix("torch.")) as row:
                    image = coder.decode(latents.to(dtype)).sample.float()
                    row["finite"] = bool(image.isfinite().all())
                decoded.append(image * (1 if name == "tinyworld" else 0.5 / image.std()))
                levels = [((one / 2 + 0.5).clamp(0, 1) * 255).round() for one in (decoded[0], decoded[-1])]
                error = (levels[0] - levels[1]).abs()
                row |= {"largest": float(error.max()), "mean": round(float(error.mean()), 3)}
                run.write()
