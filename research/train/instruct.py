"""Train the editor that follows instructions: `python -m research.train.instruct --minutes 600`.

The data are renderer counterfactuals (`research.datasets.instructed_pictures`): a source, an instruction, and the same
scene drawn with one factor changed. The editor is a LoRA of the few-step UNet (`research.networks.instructed_unet`),
which sees the source's latents and predicts their change, in one evaluation. The target is exact, so no teacher and no
noise is needed: the loss is the squared error of the edited latents. Changed positions weigh more than those to copy; a
share of the instructions are shams, under which nothing changes.

Start again and the run goes on from `runs/instruct/checkpoint.pt` (`runs/instruct-roads` with `--domain roads`).
`--start FOLDER` begins a new run, `runs/instruct-again`, with the weights of a published editor.
`python -m research.train.publish_instruct` writes its averaged weights, and `--sheet` shows edits of unseen scenes.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from diffusers import DDPMScheduler
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPTextModel, CLIPTokenizer

from research.datasets.instructed_pictures import InstructedPictures, instructed_pictures, pair
from research.networks.group_norm import speed_up_group_norm
from research.networks.half_precision import autocast
from research.networks.instructed_unet import add_lora, few_step_unet, rank_of, start_from
from research.system.folders import RUNS, weights_of
from research.train.autoencoder import LATENT_CHANNELS
from research.train.diffusion import SCHEDULE, Latents, text_states
from research.train.loop import Recipe, command_of, device, recipe_record, run_name, train
from research.train.model_card import TRAINING
from tinyworld.domain.names import Domain, add_domain

TIME = 749  # told to the UNet: one of the four times that it was distilled for, at which the text still has a say
LEVEL = float(DDPMScheduler(**SCHEDULE).alphas_cumprod[TIME]) ** 0.5  # of the source in what the UNet sees
SHAM = 0.15  # of the instructions change nothing
CHANGED_WEIGHT = 3.0  # added to the loss where source and target differ
CHANGED = 24  # difference in a colour channel, of 255, from which on a pixel counts as changed
RECORD = "record.json"  # beside the checkpoint: how the run is trained


@dataclass(frozen=True, slots=True)
class EditBatch:
    """Rows of one step. Latents are n x 5 x 32 x 32, `text` n x tokens x width, `weight` n x 1 x 32 x 32."""

    source: Tensor
    target: Tensor
    text: Tensor
    weight: Tensor


class InstructedExamples:
    """Batches of the generator's split, drawn by number; the domain's text encoder."""

    def __init__(self, data: InstructedPictures, batch: int, on: torch.device) -> None:
        self.data, self.batch_size, self.on = data, batch, on
        self.latents = Latents(data, on)
        texts = weights_of(data.domain) / "diffusion"
        self.tokenizer = CLIPTokenizer.from_pretrained(texts / "tokenizer")
        self.text_encoder = CLIPTextModel.from_pretrained(texts / "text_encoder", dtype=torch.float32).to(on).eval()

    def batch(self, number: int) -> EditBatch:
        """A batch by its number."""
        random = np.random.default_rng((0x1257, number))
        numbers = random.integers(self.data.pairs, size=self.batch_size)
        shams = random.random(self.batch_size) < SHAM
        seeds = random.integers(2**31, size=self.batch_size)
        sources = self.data.source_of(numbers)
        targets = np.where(shams, sources, self.data.target_of(numbers))
        drawn = zip(numbers.tolist(), shams.tolist(), seeds.tolist(), strict=True)
        texts = [self.instruction(number, sham, seed) for number, sham, seed in drawn]
        return EditBatch(
            self.latents[sources],
            self.latents[targets],
            text_states(self.tokenizer, self.text_encoder, texts),
            self.weight(sources, targets),
        )

    def instruction(self, number: int, sham: bool, seed: int) -> str:
        """An instruction for a pair, or a sham one for its source."""
        chosen = pair(self.data.domain, number)
        return chosen.sham(seed) if sham else chosen.instruction(seed)

    def weight(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> Tensor:
        """Weights of the loss: 1, and more where a target differs from its source."""
        before, after = (
            np.stack([self.data.image(row) for row in rows.tolist()]).astype(np.int16) for rows in (sources, targets)
        )
        changed = torch.from_numpy((np.abs(after - before).max(-1) > CHANGED).astype(np.float32)).to(self.on)
        return 1 + CHANGED_WEIGHT * functional.avg_pool2d(changed[:, None], 4)

    def loss(self, unet: nn.Module, number: int) -> Tensor:
        """The weighted squared error of the edited latents, averaged over all values."""
        batch = self.batch(number)
        error = (edited(unet, batch.source, batch.text) - batch.target).square()
        loss: Tensor = (batch.weight * error).sum() / (LATENT_CHANNELS * batch.weight.sum())
        return loss


def edited(unet: nn.Module, source: Tensor, text: Tensor) -> Tensor:
    """The latents (n x 5 x 32 x 32, float32) that instructions make of the source's."""
    times = torch.full((len(source),), TIME, device=source.device)
    with autocast(source.device):
        latents = (LEVEL * source).contiguous(memory_format=torch.channels_last)
        change: Tensor = unet(latents, times, text, return_dict=False)[0]
    return source + change.float()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--rank", type=int, default=16, help="of the LoRA; with --start, its own")
    parser.add_argument("--start", type=Path, help="folder of a published editor")
    parser.add_argument("--sources", type=int, default=4000, help="scenes, each with three targets")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--checkpoint-every", type=float, default=300, help="seconds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--run", help="folder under runs/, else the domain's")
    add_domain(parser)
    return parser.parse_args()


def main() -> None:
    """The command."""
    args = _arguments()
    torch.set_num_threads(args.threads)
    cv2.setNumThreads(1)
    torch.manual_seed(0)
    domain: Domain = args.domain
    on = device()
    run = args.run or run_name("instruct", domain, args.start)
    recipe = Recipe(
        run, args.minutes * 60, args.batch, args.rate, weight_decay=0.0,
        warmup_steps=30, ema=0.99,
        checkpoint_every=args.checkpoint_every,
    )  # fmt: skip
    examples = InstructedExamples(instructed_pictures(domain, args.sources), args.batch, on)
    unet = few_step_unet(weights_of(domain) / "diffusion")
    if args.start:
        start_from(unet, args.start)
    else:
        add_lora(unet, args.rank)
    rank = rank_of(unet.state_dict())
    unet.to(device=on, memory_format=torch.channels_last)
    speed_up_group_norm(unet)
    command = command_of(
        "research.train.instruct", domain, args.start, minutes=args.minutes, rank=rank, sources=args.sources,
        batch=args.batch, rate=args.rate,
    )  # fmt: skip
    record: dict[str, object] = {"command": command, "domain": domain, "rank": rank, "sources": args.sources}
    if args.start:
        record |= {"started from": json.loads((args.start / TRAINING).read_text())}
    (RUNS / run).mkdir(parents=True, exist_ok=True)
    (RUNS / run / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    print(recipe_record(recipe, train(unet, examples.loss, recipe)))


if __name__ == "__main__":
    main()
