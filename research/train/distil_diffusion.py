"""Distil the tiny generator into few steps without guidance: `python -m research.train.distil_diffusion --minutes 70`.

The student is a copy of the published UNet. One of its steps learns what the teacher reaches in `--substeps` smaller
DDIM steps under classifier-free guidance: progressive distillation (Salimans & Ho, arXiv 2202.00512, section 3) and
guidance distillation (Meng et al., arXiv 2210.03142, section 3) in one regression, at one guidance scale. In v
prediction the target is the velocity that leads from the latent at the start of a step to the teacher's latent at its
end. Half of each batch starts from pure noise: there the student's error is seven times that of all later steps.

The ControlNets stay as they are; their features of a latent are the same for teacher and student, and computed once.
Start again and the run goes on from `runs/distilled/checkpoint.pt`. `--publish` writes the averaged weights as
`unet-few-step` beside the teacher's UNet; with `--rank` a LoRA of that rank is trained and written instead
(`lora-few-step`, as LCM-LoRA does, arXiv 2311.05556), a tenth of the bytes. With `--factor` a whole student is
trained, and its difference from the teacher written as a LoRA of that rank.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from torch import Tensor, nn

from diffusion_service.editors.inversion import Steps
from research.datasets.generator_pictures import CONTROL_KINDS, ControlKind, material
from research.networks.group_norm import speed_up_group_norm
from research.networks.half_precision import autocast
from research.networks.instructed_unet import FEW_STEP, LORA_FEW_STEP, lora_of_difference, save_lora
from research.system.folders import weights_of
from research.train.autoencoder import LATENT_CHANNELS
from research.train.diffusion import FOLDERS, SCHEDULE, Examples, Generator, text_states
from research.train.loop import Recipe, command_of, device, recipe_record, run_name, train
from research.train.model_card import write_card
from research.train.publish_diffusion import save_small
from tinyworld.domain.names import add_domain

LORA_LAYERS = (
    "to_q", "to_k", "to_v", "to_out.0", "proj_in", "proj_out", "ff.net.0.proj", "ff.net.2",
    "conv1", "conv2", "conv_shortcut", "time_emb_proj",
)  # fmt: skip
FROM_NOISE = 0.5  # of a batch: first steps, from pure noise
SAMPLER = {**SCHEDULE, "set_alpha_to_one": False, "steps_offset": 0}
Residuals = tuple[list[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Target:
    """A training batch of student steps; latents are n x 5 x 32 x 32, `times` n, `text` n x tokens x width.

    `controls` are the control images by kind, `residuals` what the ControlNets make of them at the start.
    """

    noisy: Tensor
    times: Tensor
    text: Tensor
    controls: dict[ControlKind, Tensor]
    residuals: Residuals
    velocity: Tensor


class Teacher:
    """The published generator under guidance, sampled by DDIM in `steps` × `substeps` steps."""

    def __init__(self, examples: Examples, steps: int, substeps: int, guidance: float) -> None:
        folder = weights_of(examples.domain) / "diffusion"
        width = examples.text_encoder.config.hidden_size
        kinds = [kind for kind in CONTROL_KINDS if (folder / FOLDERS[kind]).exists()]
        widths = UNet2DConditionModel.load_config(folder / "unet")["block_out_channels"]
        self.generator = Generator(width, tuple(widths), kinds)
        self.generator.take_published(folder)
        self.generator.to(device=examples.on, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.generator.eval().requires_grad_(False)
        self._examples, self._guidance, self._substeps = examples, guidance, substeps
        self._coarse, self._fine = Steps.of(SAMPLER, steps), Steps.of(SAMPLER, steps * substeps)
        self.no_text = text_states(examples.tokenizer, examples.text_encoder, [""])

    @torch.no_grad()
    def target(self, step: int) -> Target:
        """The batch of training step `step`: latents of images at the start of student steps, each step in turn."""
        examples, coarse, fine = self._examples, self._coarse, self._fine
        random = np.random.default_rng((0xD157, step))
        rows = random.integers(examples.data.count, size=examples.batch)
        later = 1 + np.arange(examples.batch) % (len(coarse) - 1)
        places = np.where(np.arange(examples.batch) < examples.batch * FROM_NOISE, 0, later)
        clean = examples.latents[rows]
        times = self._at(coarse.times, places).long()
        noisy = examples.noise.add_noise(clean, torch.randn_like(clean), times)
        seeds = random.integers(2**31, size=len(rows))
        captions = [examples.data.caption(row, seed) for row, seed in zip(rows.tolist(), seeds.tolist(), strict=True)]
        text = text_states(examples.tokenizer, examples.text_encoder, captions)
        controls = {kind: examples.control(kind, rows, random) for kind in examples.shown[-1]}  # all, as in a job
        latents, first = noisy, self._residuals(noisy, times, text, controls)
        for substep in range(self._substeps):
            at = places * self._substeps + substep
            times_now = self._at(fine.times, at).long()
            residuals = first if substep == 0 else self._residuals(latents, times_now, text, controls)
            velocity = self._guide(latents, times_now, text, controls, residuals)
            latents = self._wide(fine.keep, at) * latents + self._wide(fine.gain, at) * velocity
        velocity = (latents - self._wide(coarse.keep, places) * noisy) / self._wide(coarse.gain, places)
        return Target(noisy, times, text, controls, first, velocity)

    def _guide(
        self, latents: Tensor, times: Tensor, text: Tensor, controls: dict[ControlKind, Tensor], residuals: Residuals
    ) -> Tensor:
        nothing = self.no_text.expand(len(text), -1, -1)
        without = self._residuals(latents, times, nothing, controls)
        conditional = predict(self.generator.unet, latents, times, text, residuals)
        unconditional = predict(self.generator.unet, latents, times, nothing, without)
        return unconditional + self._guidance * (conditional - unconditional)

    def _residuals(
        self, latents: Tensor, times: Tensor, text: Tensor, controls: dict[ControlKind, Tensor]
    ) -> Residuals:
        inputs = latents.contiguous(memory_format=torch.channels_last)
        with autocast(self._examples.on):
            by_kind = [
                self.generator.controlnets[kind](inputs, times, text, controlnet_cond=image, return_dict=False)
                for kind, image in controls.items()
            ]
        down = [torch.stack(residuals).sum(0) for residuals in zip(*(down for down, _ in by_kind), strict=True)]
        return down, torch.stack([middle for _, middle in by_kind]).sum(0)

    def _at(self, values: tuple[float, ...] | tuple[int, ...], places: np.ndarray) -> Tensor:
        return torch.tensor(values, device=self._examples.on)[torch.from_numpy(places)]

    def _wide(self, values: tuple[float, ...], places: np.ndarray) -> Tensor:
        return self._at(values, places).float()[:, None, None, None]


def predict(unet: nn.Module, latents: Tensor, times: Tensor, text: Tensor, residuals: Residuals) -> Tensor:
    """The UNet's velocity (n x 5 x 32 x 32, float32) under features of the ControlNets."""
    down, middle = residuals
    with autocast(latents.device):
        velocity: Tensor = unet(
            latents.contiguous(memory_format=torch.channels_last), times, text,
            down_block_additional_residuals=down, mid_block_additional_residual=middle, return_dict=False,
        )[0]  # fmt: skip
    return velocity.float()


def new_student(teacher: UNet2DConditionModel, rank: int) -> UNet2DConditionModel:
    """A copy of the teacher to train: whole, or with `rank` above 0 only a LoRA over it."""
    student = UNet2DConditionModel.from_config(teacher.config)
    student.load_state_dict(teacher.state_dict())
    student.set_attn_processor(AttnProcessor())
    if rank:
        student.requires_grad_(False)
        student.add_adapter(LoraConfig(r=rank, lora_alpha=rank, target_modules=list(LORA_LAYERS)))
    speed_up_group_norm(student)
    return student


def publish(student: UNet2DConditionModel, folder: Path, record: dict[str, object]) -> None:
    """Write the student beside its teacher, with a card."""
    rank, factor = int(str(record["rank"])), int(str(record["factor"]))
    target = folder / (LORA_FEW_STEP if rank or factor else FEW_STEP)
    if rank:
        save_lora(get_peft_model_state_dict(student), target)
    elif factor:
        teacher = UNet2DConditionModel.from_pretrained(folder / "unet").state_dict()
        save_lora(lora_of_difference(teacher, student.cpu().state_dict(), factor), target)
    else:
        save_small(student, target)
    write_card(
        target,
        title="tinyworld generator, few steps",
        text=(
            f"{'A LoRA of the' if rank or factor else 'The'} UNet of this folder's generator, distilled into "
            f"{record['steps']} DDIM steps without classifier-free "
            f"guidance; the teacher took {record['teacher_steps']} steps at guidance {record['guidance']}. "
            f"{f'The whole UNet was trained; the LoRA is rank {factor} of its difference. ' if factor else ''}"
            "Autoencoder, text encoder and ControlNets are the generator's."
        ),
        command=str(record["command"]),
        results={name: record[name] for name in ("spent_steps", "spent_seconds", "spent_loss")},
        record=record,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=70)
    parser.add_argument("--steps", type=int, default=4, help="of the student")
    parser.add_argument("--substeps", type=int, default=2, help="of the teacher for each of these")
    parser.add_argument("--guidance", type=float, default=2.5, help="of the teacher")
    small = parser.add_mutually_exclusive_group()
    small.add_argument("--rank", type=int, default=0, help="of a LoRA to train instead of the whole UNet")
    small.add_argument("--factor", type=int, default=0, help="rank of the LoRA that a whole student is published as")
    parser.add_argument("--pictures", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=2e-4, help="highest learning rate")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--run", help="folder under runs/, else the domain's")
    add_domain(parser)
    parser.add_argument("--publish", action="store_true", help="write the weights as soon as the budget is spent")
    return parser


def main() -> None:
    """The command."""
    args = _parser().parse_args()
    torch.set_num_threads(args.threads)
    on = device()
    kinds = [kind for kind in CONTROL_KINDS if (weights_of(args.domain) / "diffusion" / FOLDERS[kind]).exists()]
    examples = Examples(material(args.domain, args.pictures), args.batch, on, kinds, args.domain)
    teacher = Teacher(examples, args.steps, args.substeps, args.guidance)
    student = new_student(teacher.generator.unet, args.rank).to(device=on, memory_format=torch.channels_last)

    def loss(model: nn.Module, step: int) -> Tensor:
        target = teacher.target(step)
        velocity = predict(model, target.noisy, target.times, target.text, target.residuals)
        return (velocity - target.velocity).square().sum() / (LATENT_CHANNELS * target.velocity[:, 0].numel())

    run = args.run or run_name("distilled", args.domain, None)
    recipe = Recipe(
        run, args.minutes * 60, args.batch, args.rate, weight_decay=0.0, warmup_steps=20, ema=0.99, checkpoint_every=120
    )
    record: dict[str, object] = {**recipe_record(recipe, train(student, loss, recipe))}
    print(record)
    if args.publish:
        record |= {
            "command": command_of(
                "research.train.distil_diffusion", args.domain, None, steps=args.steps, substeps=args.substeps,
                **({"factor": args.factor} if args.factor else {"rank": args.rank}), minutes=args.minutes,
            ),
            "steps": args.steps, "teacher_steps": args.steps * args.substeps, "guidance": args.guidance,
            "rank": args.rank, "factor": args.factor, "domain": args.domain, "split": "generator",
            "pictures": args.pictures,
        }  # fmt: skip
        publish(student, weights_of(args.domain) / "diffusion", record)


if __name__ == "__main__":
    main()
