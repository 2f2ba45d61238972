"""Train the shipped autoencoder's decoder on: `python -m research.train.decoder --minutes 75`.

The encoder stays as it is, so every latent, and every network that was trained on latents, keeps its meaning; only the
decoder and the 1 x 1 convolution before it learn, on posterior means of crops of pictures of both domains. L1, twice
the squared error and a little L1 of the picture's gradients. CPU or GPU; stop and start again at will, the run goes on
from its checkpoint under `runs/`. `--start FOLDER` goes on from another autoencoder than the shipped one. With
`--regenerated` a third of the steps decodes latents that the generators make of known pictures, to repair their typical
errors; `--perceptual` adds the distance that the scorer's vision tower sees (whole pictures, `--crop 128`).

`--layers 2` gives every block one more residual layer, `--groups 24` widens all levels by half: in the encoder without
effect, as AutoencoderKL has one width and one depth for both halves (`research.networks.larger_autoencoder`).

    python -m research.train.decoder --measure --sheet runs/sheet.png    # the last checkpoint and the shipped decoder
    python -m research.train.decoder --publish runs/decoder/vae   # averaged weights in the shipped layout
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPModel

from research.datasets.captioned_pictures import PICTURE_DOMAINS, album
from research.datasets.regenerated import regenerated
from research.networks.group_norm import speed_up_group_norm
from research.networks.half_precision import autocast
from research.networks.larger_autoencoder import load
from research.pictures.augmentation import SIDE
from research.pictures.sheet import contact_sheet
from research.system.folders import RUNS, weights_of
from research.train.autoencoder import WEIGHTS, psnr, round_trip, to_model
from research.train.loop import Recipe, device, recipe_record, train
from research.train.model_card import LARGE
from tinyworld.domain.names import DOMAINS

SHIPPED, SCORER = WEIGHTS / "vae", weights_of("objects") / "scorer"
FIRST = 3_000_000  # of the split "calibration": pictures to measure on, unseen by everything that is tuned


def reconstruction_loss(output: Tensor, target: Tensor) -> Tensor:
    error = output - target
    across, down = error[..., 1:] - error[..., :-1], error[..., 1:, :] - error[..., :-1, :]
    return error.abs().mean() + 2 * error.square().mean() + 0.3 * (across.abs().mean() + down.abs().mean())


class _PairsOfCrops:
    """Random crops of pictures of both domains in turn, mirrored or not, by step, and the decoder's loss on them."""

    def __init__(self, args: argparse.Namespace, on: torch.device) -> None:
        self.batch, self.crop, self.on, self.perceptual = args.batch, args.crop, on, args.perceptual
        self.albums = [album(domain, "generator", args.pictures).images for domain in DOMAINS]
        self.repainted = [regenerated(domain, "generator", args.regenerated) for domain in DOMAINS if args.regenerated]
        self.vision = CLIPModel.from_pretrained(SCORER).vision_model.float().to(on).eval().requires_grad_(False)

    def loss(self, model: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng((0xDEC, step))
        if self.repainted and step % 3 == 0:
            drawn = [self.known(place, random) for place in range(self.batch)]
            target = to_model(np.stack([image for image, _ in drawn]), self.on)
            latents = torch.from_numpy(np.stack([latent for _, latent in drawn])).to(self.on)
        else:
            target = to_model(np.stack([self.picture(place, random) for place in range(self.batch)]), self.on)
            with autocast(self.on), torch.no_grad():
                latents = model.encode(target).latent_dist.mean  # type: ignore[operator]
        with autocast(self.on):
            output = model.decode(latents.contiguous(memory_format=torch.channels_last)).sample  # type: ignore[operator]
        loss = reconstruction_loss(output.float(), target)
        return loss + self.perceptual * self.seen_distance(output.float(), target) if self.perceptual else loss

    def picture(self, place: int, random: np.random.Generator) -> NDArray[np.uint8]:
        images = self.albums[place % len(self.albums)]
        row, y, x = random.integers((len(images), SIDE - self.crop + 1, SIDE - self.crop + 1)).tolist()
        crop = images[row, y : y + self.crop, x : x + self.crop]
        return np.asarray(crop[:, :: int(random.choice((-1, 1)))])

    def known(self, place: int, random: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """A crop of a picture, and that of the latent that a generator made of it."""
        images, latents = self.repainted[place % len(self.repainted)]
        small, many = self.crop // 4, len(latents)
        row, y, x = random.integers((many, SIDE // 4 - small + 1, SIDE // 4 - small + 1)).tolist()
        image = images[row, 4 * y : 4 * y + self.crop, 4 * x : 4 * x + self.crop]
        return np.asarray(image), latents[row, :, y : y + small, x : x + small]

    def seen_distance(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean distance of direction of the scorer's features of each patch, in all its layers."""
        seen, wanted = (self.vision(pictures, output_hidden_states=True).hidden_states for pictures in (output, target))
        near = [functional.cosine_similarity(a, b, dim=-1).mean() for a, b in zip(seen[1:], wanted[1:], strict=True)]
        return 1 - torch.stack(near).mean()


def held_out(domain: str, count: int) -> NDArray[np.uint8]:
    """Pictures of the split "calibration"."""
    shown = PICTURE_DOMAINS[domain]
    return np.stack([shown.picture(scene) for scene in shown.scenes(FIRST, count, "calibration")])


def measure(model: AutoencoderKL, count: int, on: torch.device) -> dict[str, float]:
    """PSNR in dB of round trips, by domain."""
    pictures = {domain: held_out(domain, count) for domain in DOMAINS}
    return {domain: round(psnr(images, round_trip(model, images, on)), 2) for domain, images in pictures.items()}


def write_sheet(models: list[AutoencoderKL], count: int, path: Path, on: torch.device) -> None:
    """A row for each of `count` pictures, the domains in turn: the picture and its round trips."""
    of_domains = [held_out(domain, count // len(DOMAINS)) for domain in DOMAINS]
    pictures = np.stack([image for row in zip(*of_domains, strict=True) for image in row])
    columns = [pictures, *(round_trip(model, pictures, on) for model in models)]
    contact_sheet([(image, "") for row in zip(*columns, strict=True) for image in row], len(columns), path, scale=3)


def averaged(model: AutoencoderKL, run: str) -> AutoencoderKL:
    """The model with the averaged weights of a run's last checkpoint."""
    state = torch.load(RUNS / run / "checkpoint.pt", weights_only=True, map_location="cpu")
    print(dict(zip(("steps", "seconds", "loss"), state["at"], strict=True)))
    model.load_state_dict(state["average"])
    return model.eval()


def publish(model: AutoencoderKL, folder: Path) -> None:
    """Write it as fp16; the encoder's large matrices stay the 8-bit floats that they are in the shipped weights."""
    model.half().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config.pop("_name_or_path", None)  # a path of this machine
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        for name, value in tensors.items():
            coarse = value.to(torch.float8_e4m3fn)
            if value.numel() >= LARGE and torch.equal(coarse.half(), value):
                tensors[name] = coarse
        save_file(tensors, path, metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=75)
    parser.add_argument("--steps", type=int, help="end after these, if they take less time")
    parser.add_argument("--pictures", type=int, default=2000, help="of each domain")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--crop", type=int, default=64, help="side in pixels")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--regenerated", type=int, default=0, help="pictures of each domain, repainted")
    parser.add_argument("--perceptual", type=float, default=0, help="weight of the scorer's distance")
    parser.add_argument("--layers", type=int, help="a block, if not as in --start")
    parser.add_argument("--groups", type=int, help="of channels, if not as in --start; widths go with it")
    parser.add_argument("--start", type=Path, default=SHIPPED, help="folder of the autoencoder to go on from")
    parser.add_argument("--run", default="decoder", help="folder under runs/ of checkpoint and result")
    parser.add_argument("--measure", action="store_true", help="train nothing")
    parser.add_argument("--sheet", type=Path, help="train nothing, write a contact sheet")
    parser.add_argument("--publish", type=Path, help="train nothing, write the autoencoder to this folder")
    parser.add_argument("--count", type=int, default=64, help="of pictures of each domain to measure on")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    on = device()
    model = load(args.start, args.layers, args.groups).to(on, memory_format=torch.channels_last)
    if args.measure or args.sheet or args.publish:
        averaged(model, args.run)
        shipped = load(SHIPPED).to(on, memory_format=torch.channels_last)
        if args.measure:
            print({name: measure(m, args.count, on) for name, m in (("shipped", shipped), (args.run, model))})
        if args.sheet:
            write_sheet([shipped, model], 8, args.sheet, on)
        if args.publish:
            publish(model, args.publish)
        return
    model.encoder.requires_grad_(False)
    model.quant_conv.requires_grad_(False)
    speed_up_group_norm(model)
    recipe = Recipe(
        args.run, args.minutes * 60, args.batch, args.rate, weight_decay=0.01, ema=args.ema, checkpoint_every=120,
        steps=args.steps,
    )  # fmt: skip
    progress = train(model, _PairsOfCrops(args, on).loss, recipe)
    kept = ("pictures", "crop", "regenerated", "perceptual")
    record = recipe_record(recipe, progress) | {name: getattr(args, name) for name in kept}
    record |= {f"held_out_psnr_db_{domain}": value for domain, value in measure(model, args.count, on).items()}
    (RUNS / args.run / "result.json").write_text(json.dumps(record, indent=2) + "\n")
    print(record)


if __name__ == "__main__":
    main()
