"""Train the oracles: two models that read every factor of a picture, to judge what the generator really drew.

    python -m tinyworld.train_oracle oracle-a      # ResNet
    python -m tinyworld.train_oracle oracle-b      # RegNet

They differ in architecture and data, and saw no combination less than any other. They have a class `none` for pictures
without a whole object: painted over, cut in half, or two scenes blended.
"""

from __future__ import annotations

import sys

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    ConvNextImageProcessorPil,
    PreTrainedModel,
    RegNetConfig,
    RegNetForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    ViTImageProcessorPil,
)

from tinyworld.factors import factor_loss
from tinyworld.model_card import WEIGHTS, save_model, write_card
from tinyworld.oracles import LOGITS, NONE, ORACLES, load_oracle, readings, split_readings, targets_with_none
from tinyworld.pictures import (
    SIDE,
    Pictures,
    Pixels,
    as_pixel_values,
    mirrored_targets,
    pictures,
    rendered,
    split_scene,
    spoil,
    varied,
)
from tinyworld.round_trips import with_round_trips
from tinyworld.training_loop import Recipe, recipe_record, train, training_arguments
from tinyworld.world import sample_scene

PICTURES = 10_000
ROUND_TRIPS = 1_500
_SPOILT_OBJECT = 0.12  # share of pictures without a whole object


def new_oracle(name: str) -> PreTrainedModel:
    """0.6 (ResNet) or 0.2 (RegNet) million parameters, one logit per value of every factor."""
    labels = {"id2label": dict(enumerate(LOGITS)), "label2id": {label: place for place, label in enumerate(LOGITS)}}
    if name == "oracle-a":
        residual = ResNetConfig(
            embedding_size=32, hidden_sizes=[32, 64, 96, 160], depths=[1, 1, 1, 1], layer_type="basic", **labels
        )
        return ResNetForImageClassification(residual).to(memory_format=torch.channels_last)
    gated = RegNetConfig(
        embedding_size=32,
        hidden_sizes=[32, 64, 96, 160],
        depths=[1, 1, 1, 1],
        groups_width=32,
        layer_type="y",
        **labels,
    )
    return RegNetForImageClassification(gated).to(memory_format=torch.channels_last)


def without_object(data: Pictures, row: int, random: np.random.Generator) -> Pixels:
    """A picture whose object is painted over, half missing, or mixed with that of another scene."""
    image, mask = np.array(data.images[row]), np.array(data.masks[row])
    kind = random.random()
    if kind < 0.25:
        other = data.images[int(random.integers(len(data.scenes)))]
        return np.asarray(cv2.addWeighted(image, 0.5, np.array(other), 0.5, 0), np.uint8)
    gone = (mask == 1).astype(np.uint8)
    if kind < 0.5:
        columns = np.flatnonzero(gone.any(axis=0))
        middle = int(np.quantile(columns, random.uniform(0.3, 0.7))) if len(columns) else SIDE // 2
        if random.random() < 0.5:
            gone[:, :middle] = 0
        else:
            gone[:, middle:] = 0
    grown = cv2.dilate(gone, np.ones((7, 7), np.uint8))
    if random.random() < 0.5:
        return np.asarray(cv2.inpaint(image, grown, 3, cv2.INPAINT_TELEA), np.uint8)
    beside = np.roll(image, int(random.choice((-1, 1))) * int(random.integers(44, 84)), axis=1)
    soft = cv2.GaussianBlur(grown.astype(np.float32), (0, 0), 1.5)[..., None]
    return np.asarray(image * (1 - soft) + beside * soft, np.uint8)


def train_oracle(name: str, seconds: float, seed: int) -> None:
    """Train, judge on final-test renders, save with image processor and card."""
    split = ORACLES[name]
    data = with_round_trips(pictures(split, PICTURES, split_scene(split)), split, ROUND_TRIPS)
    recipe = Recipe(name, seconds, batch=64, learning_rate=2e-3, seed=seed + 10 * (1 + list(ORACLES).index(name)))
    torch.manual_seed(recipe.seed)
    model = new_oracle(name)

    def loss_of(model: nn.Module, step: int) -> Tensor:
        values, wanted = _batch(data, np.random.default_rng((recipe.seed, step)), recipe.batch)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(pixel_values=values.to(memory_format=torch.channels_last)).logits
        return factor_loss(split_readings(logits.float()), wanted, 3.0)

    progress = train(model, loss_of, recipe)
    folder = WEIGHTS / "oracles" / name
    parameters = save_model(model, folder)
    size = {"height": SIDE, "width": SIDE}
    if name == "oracle-a":
        ViTImageProcessorPil(size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3).save_pretrained(folder)
    else:
        ConvNextImageProcessorPil(
            size={"shortest_edge": SIDE}, crop_pct=1.0, image_mean=[0.5] * 3, image_std=[0.5] * 3
        ).save_pretrained(folder)
    results = judge(load_oracle(name), pictures(split, PICTURES, split_scene(split)))
    write_card(
        folder,
        title=name,
        text="A judge that reads every factor of a tinyworld picture, with a class `none` for pictures without a whole "
        "object. Used in benchmarks only, never by the methods.",
        command=f"python -m tinyworld.train_oracle {name}",
        results=results,
        record={
            "split": split,
            "pictures": PICTURES,
            "round_trips": ROUND_TRIPS,
            "parameters": parameters,
            **recipe_record(recipe, progress),
        },
    )
    print(results, flush=True)


def judge(model: PreTrainedModel, own: Pictures, count: int = 600) -> dict[str, object]:
    """Accuracy per factor on final-test renders, clean and spoilt, and how often `none` is seen rightly and wrongly."""
    scenes = [sample_scene("final-test", 40_000 + index) for index in range(count)]
    wanted = torch.stack([targets_with_none(scene) for scene in scenes])
    clean = [rendered(scene)[0] for scene in scenes]
    random = np.random.default_rng(0)
    report: dict[str, object] = {"pictures judged": count}
    for name, images in (("clean", clean), ("spoilt", [spoil(image, random, 2.0) for image in clean])):
        read = readings(model, images)
        report[f"accuracy, {name}"] = read.accuracy(wanted)
        report[f"`none` said of a whole object, {name}"] = read.share_none()
    report["`none` said of painted-over, cut and blended pictures (400)"] = readings(
        model, [without_object(own, row, random) for row in range(400)]
    ).share_none()
    return report


def _batch(data: Pictures, random: np.random.Generator, size: int) -> tuple[Tensor, Tensor]:
    images, wanted = [], []
    for row in random.integers(len(data.scenes), size=size):
        scene_targets = data.targets[row].clone()
        image = data.images[row]
        if random.random() < _SPOILT_OBJECT:
            image = without_object(data, int(row), random)
            scene_targets = NONE
        flip = bool(random.random() < 0.5)
        images.append(varied(image, random, flip=flip))
        wanted.append(mirrored_targets(scene_targets) if flip else scene_targets)
    return as_pixel_values(np.stack(images)), torch.stack(wanted)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ORACLES:
        sys.exit(f"say which oracle to train: {' or '.join(ORACLES)}")
    chosen = sys.argv.pop(1)
    arguments = training_arguments(__doc__, seconds=480)
    train_oracle(chosen, arguments.seconds, arguments.seed)
