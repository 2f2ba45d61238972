"""Write the tiny generator in Stable Diffusion's layout, and look at what it does.

    python -m tinyworld.publish_diffusion            # averaged weights of the run -> tinyworld/weights/diffusion
    python -m tinyworld.publish_diffusion --sheet runs/sheet.png     # also source | edges | counterfactual

Works while the training runs: it reads the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, ModelMixin
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import CLIPTextModel, CLIPTokenizer

from tinyworld.captions import caption, describe
from tinyworld.contact_sheet import contact_sheet
from tinyworld.dataset import edges_of
from tinyworld.model_card import write_card
from tinyworld.pictures import Pixels, rendered
from tinyworld.train_autoencoder import LATENT_CHANNELS, WEIGHTS, to_pictures
from tinyworld.train_diffusion import SCHEDULE, Generator, control_tensor, text_states
from tinyworld.training_loop import RUNS, device
from tinyworld.world import EDIT_FACTOR, FACTOR_VALUES, Scene, sample_scene

STEPS = 12
GUIDANCE = 2.5
_LARGE = 4096  # values in a matrix, from which on it is stored as 8-bit floats
RUN = "diffusion-slim"
_COMMANDS = (
    "train_autoencoder",
    "train_text_encoder",
    "train_diffusion --run diffusion  # with WIDEST = 192",
    "narrow_diffusion diffusion diffusion-slim  # with WIDEST = 160",
    "train_diffusion --run diffusion-slim --minutes 98",
    "publish_diffusion",
)
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
    """Everything that turns captions and edges into pictures."""

    generator: Generator
    vae: AutoencoderKL
    tokenizer: CLIPTokenizer
    text_encoder: CLIPTextModel


def averaged(run: str = RUN) -> tuple[Generator, dict[str, float]]:
    """The averaged weights of a run's last checkpoint, and how far it had come."""
    state = torch.load(RUNS / run / "checkpoint.pt", weights_only=True, map_location="cpu")
    width = CLIPTextModel.from_pretrained(WEIGHTS / "text_encoder").config.hidden_size
    generator = Generator(width)
    generator.load_state_dict(state["average"])
    step, seconds, loss = state["at"]
    return generator.eval(), {"steps": step, "seconds": round(seconds, 1), "loss": round(loss, 4)}


def networks(generator: Generator) -> Networks:
    """The generator with the published autoencoder and text encoder."""
    on = device()
    generator.to(device=on, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Networks(
        generator,
        AutoencoderKL.from_pretrained(WEIGHTS / "vae").float().to(on).eval(),
        CLIPTokenizer.from_pretrained(WEIGHTS / "tokenizer"),
        CLIPTextModel.from_pretrained(WEIGHTS / "text_encoder").float().to(on).eval(),
    )


@torch.no_grad()
def draw(parts: Networks, captions: list[str], edges: NDArray[np.uint8], seed: int = 0) -> Pixels:
    """Pictures (n x 128 x 128 x 3) for captions under edge images (n x 128 x 128, 0 and 1), by guided DDIM."""
    on = device()
    scheduler = DDIMScheduler(**SCHEDULE, set_alpha_to_one=False, steps_offset=0)
    scheduler.set_timesteps(STEPS)
    text = text_states(parts.tokenizer, parts.text_encoder, [""] * len(captions) + captions)
    control = control_tensor(np.concatenate([edges, edges]), on)
    noise = torch.randn(len(captions), LATENT_CHANNELS, 32, 32, generator=torch.Generator().manual_seed(seed)).to(on)
    with torch.autocast(on.type, torch.bfloat16):
        for time in scheduler.timesteps:
            both = torch.cat([noise, noise]).contiguous(memory_format=torch.channels_last)
            without, wanted = parts.generator(both, time.to(on), text, control).float().chunk(2)
            noise = scheduler.step(without + GUIDANCE * (wanted - without), time, noise).prev_sample
        return to_pictures(parts.vae.decode(noise / parts.vae.config.scaling_factor).sample)


def edit(index: int) -> tuple[Scene, Scene, str]:
    """Source scene, the same with one factor changed, and the factor: number `index` of a fixed series."""
    random = np.random.default_rng((0xED17, index))
    source = sample_scene("calibration", 5_000_000 + index)
    fields = [f for f in EDIT_FACTOR if f != "size"]
    field = fields[index % len(fields)]
    values = [v for v in FACTOR_VALUES[field] if v != getattr(source, field)]
    return source, source.changed(**{field: str(random.choice(np.array(values)))}), field


def edit_control(source: Scene, field: str) -> Pixels:
    """The edges (0 and 1) by which the service holds on to the source for this edit."""
    return edges_of(*rendered(source), "object" if field in ("background", "companion") else "structure")


def edit_caption(scene: Scene, field: str, index: int) -> str:
    """A caption that states the factor in question."""
    seeds = range(index * 50, index * 50 + 50)
    return next((d.text for d in (describe(scene, s) for s in seeds) if field in d.stated), caption(scene, index))


def write_sheet(parts: Networks, path: Path, count: int = 16, first: int = 0) -> None:
    """Source | edges | counterfactual for the first edits of the series."""
    edits = [edit(first + index) for index in range(count)]
    edges = np.stack([edit_control(source, field) for source, _, field in edits])
    texts = [edit_caption(target, field, i) for i, (_, target, field) in enumerate(edits)]
    made = draw(parts, texts, edges)
    pictures: list[tuple[Pixels, str]] = []
    for (source, target, field), line, picture in zip(edits, edges, made, strict=True):
        pictures.append((rendered(source)[0], f"{source.label}, {getattr(source, field)}"))
        pictures.append((np.repeat(line[..., None] * np.uint8(255), 3, axis=2), field))
        pictures.append((picture, f"-> {getattr(target, field)}"))
    contact_sheet(pictures, 12, path)


def publish(generator: Generator, progress: dict[str, float], run: str) -> None:
    """Save UNet, ControlNet, scheduler and index beside the autoencoder and the text encoder."""
    save_small(generator.unet, WEIGHTS / "unet")
    save_small(generator.controlnet, WEIGHTS / "controlnet")
    DDIMScheduler(**SCHEDULE, set_alpha_to_one=False, steps_offset=0).save_pretrained(WEIGHTS / "scheduler")
    (WEIGHTS / "model_index.json").write_text(json.dumps(_LAYOUT, indent=2) + "\n")
    start = RUNS / run / "start.json"
    autoencoder = json.loads((RUNS / "autoencoder" / "result.json").read_text())
    write_card(
        WEIGHTS,
        title="tinyworld generator",
        text=(
            "Stable Diffusion's layout at 128 pixels: AutoencoderKL (f = 4), UNet and a canny ControlNet trained "
            "together (v-prediction, zero terminal SNR), a CLIP text encoder trained on captions. It has seen no "
            "scene of the withheld tenth of combinations. For tests and demonstrations of Contrafact, nothing else."
        ),
        command="; ".join(f"python -m tinyworld.{name}" for name in _COMMANDS),
        results={"held-out autoencoder PSNR, dB": autoencoder["held_out_psnr_db"], **progress},
        record={
            "split": "generator",
            "withheld combinations seen": 0,
            "seed": 0,
            "parameters": {name: _size(part) for name, part in generator.named_children()},
            "schedule": SCHEDULE,
            "autoencoder": autoencoder,
            "narrowed from": json.loads(start.read_text()) if start.exists() else None,
            "diffusion": {"batch": 16, "learning_rate": 5e-4, "ema": 0.998, "weight_decay": 0.01, **progress},
        },
    )


def save_small(network: ModelMixin, folder: Path) -> None:
    """Write a network of diffusers in the Hub's layout, large matrices as 8-bit floats (e4m3), the rest as fp16.

    Whatever loads it casts them to the precision that it computes in. Pictures of the shipped generator differ by
    47 dB between the two ways of storing it, half of the bytes apart.
    """
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    network.half().save_pretrained(folder, max_shard_size="28MB")
    for path in folder.glob("*.safetensors"):
        tensors = {
            name: tensor.to(torch.float8_e4m3fn) if tensor.ndim > 1 and tensor.numel() >= _LARGE else tensor
            for name, tensor in load_file(path).items()
        }
        save_file(tensors, path, metadata={"format": "pt"})


def publish_controlnet(generator: Generator, progress: dict[str, float], run: str, folder: Path) -> None:
    """Save only the ControlNet of a run, with a card: a second one beside that of the generator."""
    save_small(generator.controlnet, folder)
    write_card(
        folder,
        title=folder.name,
        text="A ControlNet for tinyworld's generator, trained on the classes of its pictures in colours.",
        command=f"python -m tinyworld.train_diffusion --control segmentation --run {run} --unet RUN",
        results=dict(progress),
        record={"split": "generator", "run": run, "parameters": _size(generator.controlnet), "schedule": SCHEDULE},
    )


def _size(part: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in part.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default=RUN)
    parser.add_argument("--sheet", type=Path)
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--controlnet", type=Path, help="write only the run's ControlNet, into this folder")
    parser.add_argument("--dry", action="store_true", help="only look, write no weights")
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator, progress = averaged(args.run)
    print(progress)
    if args.sheet:
        write_sheet(networks(generator), args.sheet, args.count)
    if args.controlnet:
        publish_controlnet(generator, progress, args.run, args.controlnet)
    elif not args.dry:
        publish(generator, progress, args.run)


if __name__ == "__main__":
    main()
