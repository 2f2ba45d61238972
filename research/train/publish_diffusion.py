"""Write a tiny generator in Stable Diffusion's layout, with sample images.

    python -m research.train.publish_diffusion            # averaged weights of the run -> tinyworld/weights/diffusion
    python -m research.train.publish_diffusion --sheet runs/sheet.png    # source | controls | counterfactual | truth
    python -m research.train.publish_diffusion --domain roads          # runs/diffusion-roads -> weights/roads

Works while the training runs: it reads the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, ModelMixin
from transformers import CLIPTextModel, CLIPTokenizer

from research.datasets.generator_edits import edit
from research.datasets.generator_pictures import CONTROL_KINDS
from research.networks.half_precision import autocast
from research.pictures.rendered_once import Pixels
from research.pictures.sheet import contact_sheet
from research.system.folders import RUNS, weights_of
from research.train.autoencoder import LATENT_CHANNELS, WEIGHTS, to_pictures
from research.train.diffusion import FOLDERS, SCHEDULE, Generator, control_tensor, text_states
from research.train.loop import device
from research.train.model_card import halve, write_card
from tinyworld.domain.names import add_domain

STEPS = 12
GUIDANCE = 2.5
_RUN = {"objects": "diffusion-slim", "roads": "diffusion-roads"}
_COMMANDS = {
    "objects": (
        "train.autoencoder",
        "train.text_encoder",
        "train.diffusion --run diffusion --widths 64 128 192",
        "train.narrow_diffusion diffusion diffusion-slim --widths 64 128 160  # of the run, published",
        "train.diffusion --run diffusion-slim --minutes 98",
        "train.publish_diffusion",
    ),
    "roads": (
        "train.text_encoder --domain roads --start tinyworld/weights/diffusion",
        "train.narrow_diffusion tinyworld/weights/diffusion diffusion-roads --widths 64 96 128 "
        "--controls canny segmentation",
        "train.diffusion --domain roads --controls canny segmentation --widths 64 96 128 --pictures 9000 "
        "--minutes 92  # and on from there with 213, some 35 of them pauses",
        "train.publish_diffusion --domain roads",
    ),
}
_TEXTS = {
    "objects": "AutoencoderKL (f = 4), UNet and a canny ControlNet trained together",
    "roads": (
        "UNet and ControlNets for canny edges and for classes in colours, trained together on driving scenes, "
        "begun from the generator of objects, whose autoencoder it shares"
    ),
}
_LAYOUT = {
    "_class_name": "StableDiffusionPipeline",
    "_diffusers_version": "0.42.0",
    "feature_extractor": [None, None],
    "image_encoder": [None, None],
    "requires_safety_checker": False,
    "safety_checker": [None, None],
    "scheduler": ["diffusers", "DDIMScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}


@dataclass(frozen=True, slots=True)
class Networks:
    """The networks that turn captions and edges into images."""

    generator: Generator
    vae: AutoencoderKL
    tokenizer: CLIPTokenizer
    text_encoder: CLIPTextModel


def average(run: str) -> tuple[Generator, dict[str, float]]:
    """The averaged weights of a run's last checkpoint, and how far it had come."""
    state = torch.load(RUNS / run / "checkpoint.pt", weights_only=True, map_location="cpu")
    weights = state["average"]
    width = weights["unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight"].shape[1]
    blocks = (f"unet.down_blocks.{level}.resnets.0.conv1.weight" for level in range(3))
    controls = [kind for kind in CONTROL_KINDS if any(name.startswith(f"controlnets.{kind}.") for name in weights)]
    generator = Generator(width, tuple(weights[name].shape[0] for name in blocks), controls)
    generator.load_state_dict(weights)
    step, seconds, loss = state["at"]
    return generator.eval(), {"steps": step, "seconds": round(seconds, 1), "loss": round(loss, 4)}


def networks(generator: Generator, domain: str) -> Networks:
    """The generator with the published autoencoder, and the text encoder of its domain."""
    on, words = device(), weights_of(domain) / "diffusion"
    generator.to(device=on, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Networks(
        generator,
        AutoencoderKL.from_pretrained(WEIGHTS / "vae").float().to(on).eval(),
        CLIPTokenizer.from_pretrained(words / "tokenizer"),
        CLIPTextModel.from_pretrained(words / "text_encoder", dtype=torch.float32).to(on).eval(),
    )


@torch.no_grad()
def draw(parts: Networks, captions: Sequence[str], controls: Mapping[str, Pixels], seed: int = 0) -> Pixels:
    """Pictures (n x 128 x 128 x 3) for captions under control images of some kinds (n each), by guided DDIM."""
    on = device()
    scheduler = DDIMScheduler(**SCHEDULE, set_alpha_to_one=False, steps_offset=0)
    scheduler.set_timesteps(STEPS)
    text = text_states(parts.tokenizer, parts.text_encoder, [""] * len(captions) + list(captions))
    twice = {kind: control_tensor(np.concatenate([images, images]), on) for kind, images in controls.items()}
    noise = torch.randn(len(captions), LATENT_CHANNELS, 32, 32, generator=torch.Generator().manual_seed(seed)).to(on)
    with autocast(on):
        for time in scheduler.timesteps:
            batch = torch.cat([noise, noise]).contiguous(memory_format=torch.channels_last)
            unconditional, conditional = parts.generator(batch, time.to(on), text, twice).float().chunk(2)
            noise = scheduler.step(unconditional + GUIDANCE * (conditional - unconditional), time, noise).prev_sample
        return to_pictures(parts.vae.decode(noise / parts.vae.config.scaling_factor).sample)


def write_sheet(parts: Networks, domain: str, path: Path, count: int = 16, first: int = 0) -> None:
    """Source, an image for each control and for all, truth; for the first edits of the series."""
    edits = [edit(domain, first + index) for index in range(count)]
    kinds = list(parts.generator.controlnets)
    columns = {" + ".join(chosen_kinds): chosen_kinds for chosen_kinds in ([[kind] for kind in kinds] + [kinds])}
    texts = [shown.caption for shown in edits]
    drawn = {
        name: draw(parts, texts, {kind: np.stack([shown.controls[kind] for shown in edits]) for kind in chosen_kinds})
        for name, chosen_kinds in columns.items()
    }
    pictures: list[tuple[Pixels, str]] = []
    for row, shown in enumerate(edits):
        pictures.append((shown.source, shown.before))
        pictures += [(images[row], name) for name, images in drawn.items()]
        pictures.append((shown.truth, shown.after))
    contact_sheet(pictures, 2 * (2 + len(drawn)), path)


def publish(generator: Generator, progress: dict[str, float], run: str, domain: str) -> None:
    """Save UNet, ControlNets, scheduler and index beside the text encoder."""
    folder = weights_of(domain) / "diffusion"
    save_small(generator.unet, folder / "unet")
    for kind, network in generator.controlnets.items():
        save_small(network, folder / FOLDERS[kind])
    DDIMScheduler(**SCHEDULE, set_alpha_to_one=False, steps_offset=0).save_pretrained(folder / "scheduler")
    (folder / "model_index.json").write_text(json.dumps(_LAYOUT, indent=2) + "\n")
    start, autoencoder = RUNS / run / "start.json", RUNS / "autoencoder" / "result.json"
    coder = json.loads(autoencoder.read_text()) if domain == "objects" else {}
    write_card(
        folder,
        title="tinyworld generator" + (" of the roads" if domain == "roads" else ""),
        text=(
            f"Stable Diffusion's layout at 128 pixels: {_TEXTS[domain]} (v-prediction, zero terminal SNR), and a "
            "CLIP text encoder trained on captions. It has seen no scene of the withheld tenth of combinations. For "
            "tests and demonstrations of Contrafact, nothing else."
        ),
        command="; ".join(f"python -m tinyworld.{name}" for name in _COMMANDS[domain]),
        results={name: coder[name] for name in coder if name == "held_out_psnr_db"} | progress,
        record={
            "split": "generator",
            "domain": domain,
            "autoencoder": coder,
            "withheld combinations seen": 0,
            "seed": 0,
            "parameters": {"unet": _size(generator.unet)}
            | {FOLDERS[kind]: _size(network) for kind, network in generator.controlnets.items()},
            "schedule": SCHEDULE,
            "narrowed from": json.loads(start.read_text()) if start.exists() else None,
            "diffusion": {"batch": 16, "learning_rate": 5e-4, "ema": 0.998, "weight_decay": 0.01, **progress},
        },
    )


def save_small(network: ModelMixin, folder: Path) -> None:
    """Write a network of diffusers in the Hub's layout, large matrices as 8-bit floats.

    Pictures of the shipped generator differ by 47 dB between that and half precision.
    """
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    network.half().save_pretrained(folder, max_shard_size="28MB")
    halve(folder)


def _size(part: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in part.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_domain(parser)
    parser.add_argument("--run", help="the domain's own, if not said")
    parser.add_argument("--sheet", type=Path)
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--dry", action="store_true", help="only look, write no weights")
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = args.run or _RUN[args.domain]
    generator, progress = average(run)
    print(progress)
    if args.sheet:
        write_sheet(networks(generator, args.domain), args.domain, args.sheet, args.count)
    if not args.dry:
        publish(generator, progress, run, args.domain)


if __name__ == "__main__":
    main()
