"""Train the autoencoder of the tiny generator: `python -m research.train.autoencoder --minutes 14`.

AutoencoderKL at f = 4, five latent channels, on 64-pixel crops of pictures of generator scenes: it is convolutional
throughout, without attention, so it serves whole pictures unseen. L1, a little squared error, L1 of the picture's
gradients (edges look soft without it), L1 of local means of colour and hue, and a very small KL term. A short training
with four free channels lost the green-magenta axis to detail (green birds came back black), so a loss makes the fifth
carry it. CPU or GPU; stop and start again at will, the run goes on from its checkpoint under `runs/`.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch
from diffusers import AutoencoderKL
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from research.datasets.captioned_pictures import PICTURE_DOMAINS
from research.datasets.generator_pictures import Material, material
from research.networks.group_norm import speed_up_group_norm
from research.networks.half_precision import autocast
from research.pictures.augmentation import SIDE
from research.pictures.sheet import contact_sheet
from research.system.folders import RUNS, weights_of
from research.train.loop import Recipe, device, recipe_record, run_name, train
from shared.chunks import chunks
from tinyworld.domain.names import add_domain

WEIGHTS = weights_of("objects") / "diffusion"
CROP = 64
LATENT_CHANNELS = 5


def build() -> AutoencoderKL:
    """An untrained autoencoder of 1.6 million parameters."""
    return AutoencoderKL(
        block_out_channels=(32, 64, 96),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=16,
        sample_size=128,
        mid_block_add_attention=False,
    )


def to_model(images: NDArray[np.uint8], on: torch.device) -> Tensor:
    """Pictures (n x h x w x 3, uint8) as the model's input (n x 3 x h x w, -1 to 1)."""
    tensor = torch.from_numpy(np.ascontiguousarray(images)).to(on).permute(0, 3, 1, 2)
    return tensor.float().div(127.5).sub(1).contiguous(memory_format=torch.channels_last)


def to_pictures(tensor: Tensor) -> NDArray[np.uint8]:
    """The inverse of `to_model`, rounded and clipped."""
    pixels = tensor.float().add(1).mul(127.5).round().clamp(0, 255).byte()
    return np.asarray(pixels.permute(0, 2, 3, 1).cpu().numpy(), np.uint8)


def reconstruction_loss(output: Tensor, target: Tensor) -> Tensor:
    error = output - target
    red, green, blue = error.unbind(1)
    hue = torch.stack((red - green, blue - (red + green) / 2), 1)
    across, down = error[..., 1:] - error[..., :-1], error[..., 1:, :] - error[..., :-1, :]
    detail = error.abs().mean() + 0.5 * error.square().mean() + 0.4 * (across.abs().mean() + down.abs().mean())
    return detail + functional.avg_pool2d(error, 4).abs().mean() + functional.avg_pool2d(hue, 4).abs().mean()


def greenness(images: Tensor) -> Tensor:
    """What the fifth channel carries (n x h/4 x w/4): local means on the green-magenta axis, about unit scale."""
    red, green, blue = images.unbind(1)
    return 6 * functional.avg_pool2d((green - (red + blue) / 2)[:, None], 4)[:, 0]


class _Crops:
    """Random 64-pixel crops by step, and their loss."""

    def __init__(self, data: Material, batch: int, on: torch.device) -> None:
        self.data, self.batch, self.on = data, batch, on

    def loss(self, model: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng((0xAE, step))
        chosen = random.integers(self.data.count, size=self.batch).tolist()
        corners = random.integers(SIDE - CROP + 1, size=(self.batch, 2))
        crops = [self.data.image(i)[y : y + CROP, x : x + CROP] for i, (y, x) in zip(chosen, corners, strict=True)]
        target = to_model(np.stack(crops), self.on)
        with autocast(self.on):
            posterior = model.encode(target).latent_dist  # type: ignore[operator]
            output = model.decode(posterior.sample()).sample  # type: ignore[operator]
        mean, log_variance = posterior.mean.float(), posterior.logvar.float()
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
        hue = functional.smooth_l1_loss(mean[:, 4], greenness(target))
        loss: Tensor = reconstruction_loss(output.float(), target) + 0.2 * hue + 1e-4 * divergence
        return loss


@torch.no_grad()
def round_trip(model: AutoencoderKL, images: NDArray[np.uint8], on: torch.device) -> NDArray[np.uint8]:
    """Pictures encoded (posterior mean) and decoded, a few at a time."""
    done = []
    for chunk in chunks(images, 16):
        with autocast(on):
            latents = model.encode(to_model(chunk, on)).latent_dist.mean
            done.append(to_pictures(model.decode(latents).sample))
    return np.concatenate(done)


def psnr(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> float:
    """Mean over the images of their peak signal-to-noise ratio in dB."""
    error = np.square(first.astype(np.float64) - second).mean(axis=(1, 2, 3))
    return float(np.mean(10 * np.log10(255**2 / np.maximum(error, 1e-6))))


@torch.no_grad()
def standardise(model: AutoencoderKL, images: NDArray[np.uint8], on: torch.device) -> None:
    """Bring every latent channel to zero mean and unit deviation, in the 1 x 1 convolutions on either side of it.

    Pictures come back as before; but noise of one size now means the same to every channel.
    """
    with autocast(on):
        latents = model.encode(to_model(images, on)).latent_dist.mean.float()
    mean, deviation = latents.mean((0, 2, 3)), latents.std((0, 2, 3))
    count = len(mean)
    before, after = model.quant_conv, model.post_quant_conv
    before.weight[:count] /= deviation[:, None, None, None]
    before.bias[:count] = (before.bias[:count] - mean) / deviation
    before.bias[count:] -= 2 * deviation.log()  # the other half of its outputs are logarithms of variances
    after.bias += (after.weight[:, :, 0, 0] * mean).sum(1)
    after.weight *= deviation[None, :, None, None]
    model.register_to_config(scaling_factor=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=14)
    parser.add_argument("--pictures", type=int, default=16000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--run", help="folder under runs/ of checkpoint and result, else the domain's")
    add_domain(parser)
    args = parser.parse_args()
    run = args.run or run_name("autoencoder", args.domain, None)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    on = device()
    model = build().to(on, memory_format=torch.channels_last)
    speed_up_group_norm(model)
    data = material(args.domain, args.pictures)
    recipe = Recipe(run, args.minutes * 60, args.batch, args.rate, weight_decay=0.01, checkpoint_every=120)
    progress = train(model, _Crops(data, args.batch, on).loss, recipe)
    standardise(model, np.stack([data.image(row) for row in range(min(256, data.count))]), on)
    shown = PICTURE_DOMAINS[args.domain]
    held_out = np.stack([shown.picture(scene) for scene in shown.scenes(0, 128, "calibration")])
    back = round_trip(model, held_out, on)
    quality = round(psnr(held_out, back), 2)
    pairs = [(p, "") for pair in zip(held_out[:16], back[:16], strict=True) for p in pair]
    contact_sheet(pairs, 8, RUNS / run / "sheet.png", scale=2)
    model.half().save_pretrained(weights_of(args.domain) / "diffusion" / "vae")
    record = recipe_record(recipe, progress) | {"pictures": args.pictures, "held_out_psnr_db": quality}
    (RUNS / run / "result.json").write_text(json.dumps(record, indent=2) + "\n")
    print(record)


if __name__ == "__main__":
    main()
