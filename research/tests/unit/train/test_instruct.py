"""Training the editor that follows instructions: batches, what learns, and what is published of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import UNet2DConditionModel

from research.datasets.captioned_pictures import PICTURE_DOMAINS
from research.datasets.instructed_pictures import instructed_pictures, pair
from research.networks.instructed_unet import add_lora, few_step_unet, start_from
from research.system.folders import weights_of
from research.train import publish_instruct
from research.train.instruct import CHANGED_WEIGHT, RECORD, InstructedExamples
from research.train.instructed_editor import InstructedEditor
from research.train.loop import Recipe, train

BATCH = 6


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstructedExamples]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("research.objects.pictures.CACHE", tmp_path_factory.mktemp("instructed"))
        patch.setenv("CONTRAFACT_DTYPE", "float32")
        yield InstructedExamples(instructed_pictures("objects", 3), BATCH, torch.device("cpu"))


def test_a_batch_follows_from_its_number(examples: InstructedExamples) -> None:
    first, again = examples.batch(5), examples.batch(5)
    assert torch.equal(first.target, again.target)
    assert torch.equal(first.text, again.text)
    assert not torch.equal(first.target, examples.batch(6).target)


def test_a_sham_s_target_is_its_source(examples: InstructedExamples) -> None:
    batches = [examples.batch(number) for number in range(8)]
    same = [bool(torch.equal(s, t)) for batch in batches for s, t in zip(batch.source, batch.target, strict=True)]
    assert 0 < sum(same) < len(same) / 2


def test_changed_positions_weigh_more_and_shams_weigh_one(examples: InstructedExamples) -> None:
    numbers = np.arange(4)
    sources, targets = examples.data.source_of(numbers), examples.data.target_of(numbers)
    weight = examples.weight(sources, targets)
    assert weight.shape == (4, 1, 32, 32)
    assert 1 < float(weight.max()) <= 1 + CHANGED_WEIGHT
    assert torch.equal(examples.weight(sources, sources), torch.ones(4, 1, 32, 32))


@torch.no_grad()
def loss_of(unet: UNet2DConditionModel, examples: InstructedExamples) -> float:
    torch.manual_seed(1)
    return examples.loss(unet, 0).item()


def test_a_few_steps_lower_the_loss_and_the_checkpoint_becomes_an_editor(
    examples: InstructedExamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("loop", "publish_instruct"):
        monkeypatch.setattr(f"research.train.{module}.RUNS", tmp_path)
    torch.manual_seed(0)
    unet = few_step_unet(weights_of("objects") / "diffusion")
    add_lora(unet, 5)
    before = loss_of(unet, examples)
    train(unet, examples.loss, Recipe("some", 600, BATCH, 2e-4, weight_decay=0.0, warmup_steps=1, ema=0.5, steps=8))
    assert loss_of(unet, examples) < before
    record = {"command": "train", "domain": "objects", "rank": 5}
    (tmp_path / "some" / RECORD).write_text(json.dumps(record))
    averaged, progress = publish_instruct.load_averaged("some", "objects")
    assert progress.steps == 8
    publish_instruct.publish(averaged, tmp_path / "instruct", dict(record), progress)
    edit = pair("objects", 0)
    source = PICTURE_DOMAINS["objects"].picture(edit.source)
    edited = [
        editor.edit([source], [edit.instruction(0)])
        for editor in (
            InstructedEditor.of(averaged, "objects"),
            InstructedEditor.load(tmp_path / "instruct", "objects"),
        )
    ]
    assert edited[0].shape == (1, 128, 128, 3)
    assert np.abs(edited[0].astype(np.int16) - edited[1]).mean() < 3
    assert "earlier" not in (tmp_path / "instruct" / "README.md").read_text()
    later = {**record, "started from": json.loads((tmp_path / "instruct" / "training.json").read_text())}
    publish_instruct.publish(averaged, tmp_path / "later", later, progress)
    assert "earlier editor: 8 steps of `train`." in (tmp_path / "later" / "README.md").read_text()
    again = few_step_unet(weights_of("objects") / "diffusion")
    start_from(again, tmp_path / "instruct")
    assert loss_of(again.eval(), examples) == pytest.approx(loss_of(averaged, examples), rel=0.02)
    assert all(".lora_" in name for name, weights in again.named_parameters() if weights.requires_grad)


def test_a_training_finds_the_shipped_autoencoder_from_any_directory(
    examples: InstructedExamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert InstructedExamples(examples.data, BATCH, torch.device("cpu")).latents.data is examples.data
