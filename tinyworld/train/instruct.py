"""Train the editor that follows instructions: `python -m tinyworld.train.instruct --minutes 600`.

The data are renderer counterfactuals (`tinyworld.datasets.instructed_pictures`): a source, an instruction, and the same
scene drawn with one factor changed. The editor (`tinyworld.networks.instructed_unet`) starts from the few-step UNet,
which needs neither guidance nor more than `--steps` steps. The target is exact, so no teacher is needed: at the time of
each of these steps, the velocity that leads from the noised target to the target is learnt. Half of each batch
starts from pure noise, as in `tinyworld.train.distil_diffusion`. Changed positions weigh more than those to copy; a
share of the instructions are shams, whose target is the source.

Start again and the run goes on from `runs/instruct/checkpoint.pt` (`runs/instruct-roads` with `--domain roads`).
`python -m tinyworld.train.publish_instruct` writes its averaged weights, and `--sheet` shows edits of unseen scenes.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from diffusers import DDPMScheduler
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPTextModel, CLIPTokenizer

from diffusion_service.steps import Steps
from tinyworld.datasets.instructed_pictures import InstructedPictures, instructed_pictures, pair
from tinyworld.domain.names import Domain, add_domain
from tinyworld.networks.group_norm import speed_up_group_norm
from tinyworld.networks.half_precision import autocast
from tinyworld.networks.instructed_unet import add_lora, editing_unet, few_step_unet
from tinyworld.system.folders import RUNS, weights_of
from tinyworld.train.autoencoder import LATENT_CHANNELS
from tinyworld.train.diffusion import SCHEDULE, Latents, text_states
from tinyworld.train.distil_diffusion import FROM_NOISE, SAMPLER
from tinyworld.train.loop import Recipe, command_of, device, recipe_record, run_name, train

SHAM = 0.15  # of the instructions change nothing
CHANGED_WEIGHT = 3.0  # added to the loss where source and target differ
CHANGED = 24  # difference in a colour channel, of 255, from which on a pixel counts as changed
RECORD = "record.json"  # beside the checkpoint: how the run is trained


@dataclass(frozen=True, slots=True)
class EditBatch:
    """Rows of one step. Latents are n x 5 x 32 x 32, `times` n, `text` n x tokens x width, `weight` n x 1 x 32 x 32."""

    noisy: Tensor
    source: Tensor
    times: Tensor
    text: Tensor
    velocity: Tensor
    weight: Tensor


class InstructedExamples:
    """Batches of the generator's split, drawn by training step; the domain's text encoder."""

    def __init__(self, data: InstructedPictures, steps: int, batch: int, on: torch.device) -> None:
        self.data, self.batch_size, self.on = data, batch, on
        self.latents = Latents(data, on)
        texts = weights_of(data.domain) / "diffusion"
        self.tokenizer = CLIPTokenizer.from_pretrained(texts / "tokenizer")
        self.text_encoder = CLIPTextModel.from_pretrained(texts / "text_encoder", dtype=torch.float32).to(on).eval()
        self._noise, self._times = DDPMScheduler(**SCHEDULE), Steps.of(SAMPLER, steps).times

    def batch(self, step: int) -> EditBatch:
        """The batch of a training step; noise follows torch's generator."""
        random = np.random.default_rng((0x1257, step))
        numbers = random.integers(self.data.pairs, size=self.batch_size)
        shams = random.random(self.batch_size) < SHAM
        seeds = random.integers(2**31, size=self.batch_size)
        sources = self.data.source_of(numbers)
        targets = np.where(shams, sources, self.data.target_of(numbers))
        drawn = zip(numbers.tolist(), shams.tolist(), seeds.tolist(), strict=True)
        texts = [self.instruction(number, sham, seed) for number, sham, seed in drawn]
        times = self._step_times()
        clean = self.latents[targets]
        noise = torch.randn_like(clean)
        return EditBatch(
            self._noise.add_noise(clean, noise, times),
            self.latents[sources],
            times,
            text_states(self.tokenizer, self.text_encoder, texts),
            self._noise.get_velocity(clean, noise, times),
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

    def loss(self, unet: nn.Module, step: int) -> Tensor:
        """The weighted squared error of the velocity, averaged over all values."""
        batch = self.batch(step)
        error = (velocity(unet, batch.noisy, batch.source, batch.times, batch.text) - batch.velocity).square()
        loss: Tensor = (batch.weight * error).sum() / (LATENT_CHANNELS * batch.weight.sum())
        return loss

    def _step_times(self) -> Tensor:
        rows = np.arange(self.batch_size)
        later = 1 + rows % (len(self._times) - 1) if len(self._times) > 1 else 0 * rows
        places = np.where(rows < self.batch_size * FROM_NOISE, 0, later)
        return torch.tensor(self._times, device=self.on)[torch.from_numpy(places)]


def velocity(unet: nn.Module, noisy: Tensor, source: Tensor, times: Tensor, text: Tensor) -> Tensor:
    """The UNet's velocity (n x 5 x 32 x 32, float32) for noisy latents beside the source's."""
    inputs = torch.cat([noisy, source], dim=1).contiguous(memory_format=torch.channels_last)
    with autocast(inputs.device):
        predicted: Tensor = unet(inputs, times, text, return_dict=False)[0]
    return predicted.float()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--steps", type=int, default=4, help="of the editor")
    parser.add_argument("--rank", type=int, default=8, help="of the LoRA")
    parser.add_argument("--sources", type=int, default=4000, help="scenes, each with three targets")
    parser.add_argument("--batch", type=int, default=8)
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
    recipe = Recipe(
        args.run or run_name("instruct", domain, None), args.minutes * 60, args.batch, args.rate, weight_decay=0.0,
        checkpoint_every=args.checkpoint_every,
    )  # fmt: skip
    examples = InstructedExamples(instructed_pictures(domain, args.sources), args.steps, args.batch, on)
    unet = editing_unet(few_step_unet(weights_of(domain) / "diffusion"))
    add_lora(unet, args.rank)
    unet.to(device=on, memory_format=torch.channels_last)
    speed_up_group_norm(unet)
    command = command_of(
        "tinyworld.train.instruct", domain, None, minutes=args.minutes, steps=args.steps, rank=args.rank,
        sources=args.sources, batch=args.batch, rate=args.rate,
    )  # fmt: skip
    record = {"command": command, "domain": domain, "rank": args.rank, "steps": args.steps, "sources": args.sources}
    (RUNS / recipe.run).mkdir(parents=True, exist_ok=True)
    (RUNS / recipe.run / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    print(recipe_record(recipe, train(unet, examples.loss, recipe)))


if __name__ == "__main__":
    main()
