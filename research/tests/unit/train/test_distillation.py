"""The target of the few-step generator: the guided teacher, against diffusers' own DDIM sampler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from diffusers import DDIMScheduler, UNet2DConditionModel
from torch import Tensor

from research.datasets.generator_pictures import material
from research.networks.instructed_unet import LORA, few_step_unet
from research.system.folders import weights_of
from research.train.diffusion import Examples
from research.train.distil_diffusion import FROM_NOISE, SAMPLER, Target, Teacher, new_student, predict, publish

STEPS, BATCH = 4, 4


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "research.objects.pictures.CACHE", tmp_path_factory.mktemp("distillation")
        )  # pictures are kept there
        patch.setenv("CONTRAFACT_DTYPE", "float32")
        yield Examples(material("objects", 3), BATCH, torch.device("cpu"))


def test_without_guidance_and_substeps_the_teacher_is_the_target(examples: Examples) -> None:
    teacher = Teacher(examples, STEPS, substeps=1, guidance=1.0)
    target = teacher.target(0)
    with torch.no_grad():
        velocity = predict(teacher.generator.unet, target.noisy, target.times, target.text, target.residuals)
    torch.testing.assert_close(target.velocity, velocity, rtol=1e-3, atol=1e-3)


def test_one_step_of_the_target_ends_where_guided_ddim_ends_in_two(examples: Examples) -> None:
    teacher = Teacher(examples, STEPS, substeps=2, guidance=2.5)
    target = teacher.target(1)
    assert (target.times == 999).sum() == BATCH * FROM_NOISE, "half of the batch starts from pure noise"
    once, twice = sampler(STEPS), sampler(2 * STEPS)
    for row in range(BATCH):
        time = int(target.times[row])
        start = target.noisy[row : row + 1]
        student = once.step(target.velocity[row : row + 1], time, start).prev_sample
        latents = start
        for place in range(2 * list(map(int, once.timesteps)).index(time), 2 * STEPS)[:2]:
            now = int(twice.timesteps[place])
            latents = twice.step(guided(teacher, target, row, latents, now), now, latents).prev_sample
        torch.testing.assert_close(student, latents, rtol=1e-3, atol=1e-3)


def test_a_batch_follows_from_its_number(examples: Examples) -> None:
    teacher = Teacher(examples, STEPS, substeps=1, guidance=1.0)
    torch.manual_seed(7)
    first = teacher.target(5)
    torch.manual_seed(7)
    again = teacher.target(5)
    assert torch.equal(first.noisy, again.noisy)
    assert torch.equal(first.velocity, again.velocity)
    torch.manual_seed(7)
    assert not torch.equal(first.noisy, teacher.target(6).noisy), "another step has other pictures"


def test_a_whole_student_is_published_as_a_lora_of_its_difference(tmp_path: Path) -> None:
    (tmp_path / "unet").symlink_to(weights_of("objects") / "diffusion" / "unet")
    teacher = UNet2DConditionModel.from_pretrained(tmp_path / "unet").float()
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    student = new_student(teacher, 0)
    torch.manual_seed(0)
    changed = "mid_block.resnets.0.conv1.weight"
    with torch.no_grad():
        weight = student.get_parameter(changed)
        weight += 0.1 * (torch.randn(160, 2) @ torch.randn(2, 160 * 9)).view_as(weight)
    trained = student.state_dict()[changed].clone()
    names = ("steps", "teacher_steps", "guidance", "command", "spent_steps", "spent_seconds", "spent_loss")
    record: dict[str, object] = {**dict.fromkeys(names, 1), "rank": 0, "factor": 2}
    publish(student, tmp_path, record)
    merged = few_step_unet(tmp_path).state_dict()
    assert [name for name, value in merged.items() if not torch.equal(value, before[name])] == [changed]
    error, step = merged[changed] - trained, before[changed] - trained
    assert error.norm() < 0.06 * step.norm(), "8 bits round it"
    assert (tmp_path / "lora-few-step" / LORA).stat().st_size < 400_000
    assert "rank 2 of its difference" in (tmp_path / "lora-few-step" / "README.md").read_text()


def sampler(steps: int) -> DDIMScheduler:
    scheduler = DDIMScheduler.from_config(SAMPLER)
    scheduler.set_timesteps(steps)
    return scheduler


@torch.no_grad()
def guided(teacher: Teacher, target: Target, row: int, latents: Tensor, time: int) -> Tensor:
    """The teacher under classifier-free guidance, run again with the controls of the batch."""
    generator, controls = teacher.generator, {kind: image[row : row + 1] for kind, image in target.controls.items()}
    text = target.text[row : row + 1]
    conditional, unwanted = (
        generator(latents, torch.tensor([time]), states, controls) for states in (text, teacher.no_text)
    )
    result: Tensor = unwanted + 2.5 * (conditional - unwanted)
    return result
