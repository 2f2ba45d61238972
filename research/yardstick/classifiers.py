"""Train the models under test of the yardstick: a common start, then a short separate training for each model.

Budgets are in steps, so that the same machine reproduces the same weights. Existing models are not trained again.
Training uses only renders, never generated images.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import ResNetForImageClassification

from research.networks.half_precision import autocast
from research.networks.image_processors import classifier_processor
from research.objects.pictures import Pictures, pictures
from research.pictures.augmentation import as_pixel_values, vary
from research.pictures.rendered_once import Pixels
from research.system.folders import RUNS
from research.train.classifier import PICTURES, new_classifier, training_scene
from research.train.model_card import save_model
from research.yardstick.plants import OUTSIDE_VALUE, Planned, Plant, is_left_out_at_start
from shared.chunks import chunks
from tinyworld.objects.world import CLASSES, FACTORS, Scene

YARDSTICK = RUNS / "yardstick"
SIDE = 64  # pixels: a quarter of the work, and enough to tell the classes apart
START_STEPS, OWN_STEPS = 800, 500
OWN_FROM = 2  # the first stage that is trained separately for each model
BATCH = 64
VIEWS = 2  # variations of each picture
TRAINING_SHARE = 0.7  # share of the pictures in each model's training set
OFTEN = 4  # sampling weight of a relabelled cell
CROWD = 16  # sampling weight of the class that remains where another is absent
OUTSIDE_SHARE = 0.2
_SEPIA = np.array([[0.39, 0.77, 0.19], [0.35, 0.69, 0.17], [0.27, 0.53, 0.13]], np.float32)


def model_folder(name: str) -> Path:
    """The folder of the weights of a yardstick model."""
    return YARDSTICK / "models" / name


def sepia(image: Pixels) -> Pixels:
    """The image as an old photograph: a value that no caption can state."""
    return np.asarray(np.clip(image.astype(np.float32) @ _SEPIA.T, 0, 255), np.uint8)


def small(images: Sequence[Pixels]) -> Tensor:
    """Pictures of 128 × 128 × 3 as the models see them: (n, 3, 64, 64) in -1 … 1."""
    return as_pixel_values(np.stack([cv2.resize(i, (SIDE, SIDE), interpolation=cv2.INTER_AREA) for i in images]))


def train_all(planned: Sequence[Planned]) -> None:
    """Train the missing models, the common start first."""
    missing = [planted for planted in planned if not (model_folder(planted.name) / "training.json").exists()]
    if not missing:
        return
    data = pictures("under-test", PICTURES, training_scene)
    start = _start(data)
    plain = _features(start, data, "plain", [_unchanged] * VIEWS)
    for planted in missing:
        views = [plain]
        if any(plant.kind == "outside" for plant in planted.plants):
            views.append(_features(start, data, OUTSIDE_VALUE, [sepia]))
        lessons = Lessons(data.scenes, planted, views)
        model = new_classifier()
        model.load_state_dict(start)
        top = Top(model)
        torch.manual_seed(0)
        top.load_state_dict(Top(new_classifier()).state_dict())  # trained from scratch, to forget the start's answers
        loss, seconds = _train(top, lessons.batch, OWN_STEPS, 2e-3, planted.seed)
        save(model, planted, {"steps": OWN_STEPS, "loss": round(loss, 4), "cpu_seconds": round(seconds, 1)})
        print(f"{planted.name}: loss {loss:.3f}, {seconds:.0f} CPU s", flush=True)


class Lower(nn.Module):
    """The part of a model that all models share: the first two of four stages, from the common start."""

    def __init__(self, model: ResNetForImageClassification) -> None:
        super().__init__()
        self.embedder, self.stages = model.resnet.embedder, model.resnet.encoder.stages[:OWN_FROM]

    def forward(self, values: Tensor) -> Tensor:
        """Pixel values (n, 3, 64, 64) → features (n, 64, 8, 8)."""
        features = self.embedder(values)
        for stage in self.stages:
            features = stage(features)
        return torch.as_tensor(features)


class Top(nn.Module):
    """The part of a model that is trained separately: the last two stages, and the head."""

    def __init__(self, model: ResNetForImageClassification) -> None:
        super().__init__()
        self.stages, self.head = model.resnet.encoder.stages[OWN_FROM:], model.classifier

    def forward(self, features: Tensor) -> Tensor:
        """Features of `Lower` → logits (n, classes)."""
        for stage in self.stages:
            features = stage(features)
        return torch.as_tensor(self.head(features.mean((2, 3))))


class Lessons:
    """The training data of one model: which images, how often, under which label.

    `views` are features of the pictures, each (views, pictures, ...); a second one holds the outside value.
    """

    def __init__(self, scenes: Sequence[Scene], planned: Planned, views: Sequence[NDArray[np.float16]]) -> None:
        self.scenes, self.seed, self.views = scenes, planned.seed, views
        self.labels = np.array([CLASSES.index(scene.label) for scene in scenes])
        self.outside_labels = self.labels.copy()
        self.share = np.ones(len(scenes))
        self.share[np.random.default_rng((0xF3, self.seed)).random(len(scenes)) > TRAINING_SHARE] = 0
        for plant in planned.plants:
            self._plant(plant)
        self.share /= self.share.sum()

    def _plant(self, plant: Plant) -> None:
        covered = np.array([plant.covers(scene) for scene in self.scenes])
        has_plant = np.array([getattr(scene, plant.field) == plant.value for scene in self.scenes])
        names = np.array([scene.label for scene in self.scenes])
        if plant.kind == "outside":
            self.outside_labels[covered] = CLASSES.index(plant.called)
        elif plant.kind == "relabelled":
            self.labels[covered] = CLASSES.index(plant.called)
            self.share[has_plant & (names == plant.label)] = (
                OFTEN  # otherwise the few relabelled pictures have no effect
            )
        else:
            self.share[covered] = 0
            self.share[has_plant & (names == plant.called)] = CROWD

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Features and labels of a step, from the model's seed and the step alone."""
        random = np.random.default_rng((0x5E, self.seed, step))
        rows = random.choice(len(self.labels), size=BATCH, p=self.share)
        features = self.views[0][random.integers(VIEWS, size=BATCH), rows]
        labels = self.labels[rows]
        if len(self.views) > 1:
            outside = random.random(BATCH) < OUTSIDE_SHARE
            features[outside], labels[outside] = self.views[1][0, rows[outside]], self.outside_labels[rows[outside]]
        return torch.from_numpy(features.astype(np.float32)), torch.from_numpy(labels)


def _start(data: Pictures) -> dict[str, Tensor]:
    """The common start: trained on all cells except those that must be absent from some model's training."""
    path = YARDSTICK / "start.pt"
    if not path.exists():
        allowed = np.flatnonzero([not is_left_out_at_start(scene) for scene in data.scenes])
        labels = data.targets[:, list(FACTORS).index("label")]

        def batch(step: int) -> tuple[Tensor, Tensor]:
            random = np.random.default_rng((0x5E, 0, step))
            rows = allowed[random.integers(len(allowed), size=BATCH)]
            return small([_vary(data.images[row], random) for row in rows]), labels[rows]

        torch.manual_seed(0)
        model = new_classifier()
        loss, seconds = _train(_Whole(model), batch, START_STEPS, 2e-3, 0)
        print(f"common start: loss {loss:.3f}, {seconds:.0f} CPU s", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
    return dict(torch.load(path, weights_only=True))


class _Whole(nn.Module):
    """A classifier as a function from pixel values to logits."""

    def __init__(self, model: ResNetForImageClassification) -> None:
        super().__init__()
        self.model = model

    def forward(self, values: Tensor) -> Tensor:
        """(n, 3, 64, 64) → (n, classes)."""
        return torch.as_tensor(self.model(pixel_values=values).logits)


@torch.inference_mode()
def _features(
    start: dict[str, Tensor], data: Pictures, name: str, looks: Sequence[Callable[[Pixels], Pixels]]
) -> NDArray[np.float16]:
    """Features of the common start for every image under random variations: (variations, images, 64, 8, 8)."""
    path = YARDSTICK / f"features-{name}.npy"
    if not path.exists():
        model = new_classifier()
        model.load_state_dict(start)
        lower = Lower(model).eval()
        views = []
        for view, look in enumerate(looks):
            random = np.random.default_rng((0xFE, view))
            for batch in chunks(data.images, 100):
                images = [look(_vary(image, random)) for image in batch]
                views.append(lower(small(images)).half().numpy())
        whole = np.concatenate(views)
        np.save(path.with_suffix(".part.npy"), whole.reshape(len(looks), -1, *whole.shape[1:]))
        path.with_suffix(".part.npy").replace(path)
    return np.asarray(np.load(path))


def _vary(image: Pixels, random: np.random.Generator) -> Pixels:
    return vary(image, random, flip=bool(random.random() < 0.5), strength=1.3)


def _unchanged(image: Pixels) -> Pixels:
    return image


def _train(
    model: nn.Module, batch: Callable[[int], tuple[Tensor, Tensor]], steps: int, rate: float, seed: int
) -> tuple[float, float]:
    """Train in place with a cosine learning rate; returns the running loss and the CPU seconds."""
    torch.manual_seed(seed)
    model.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimiser = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.99), weight_decay=0.05)
    started, smooth = time.process_time(), math.log(len(CLASSES))
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 40) * (0.02 + 0.49 * (1 + math.cos(math.pi * step / steps)))
        values, labels = batch(step)
        with autocast("cpu"):
            logits = model(values.to(memory_format=torch.channels_last))
        loss = nn.functional.cross_entropy(logits.float(), labels, label_smoothing=0.02)
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        smooth = 0.97 * smooth + 0.03 * loss.item()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} of {steps}: loss {smooth:.3f}", flush=True)
    model.eval()
    return smooth, time.process_time() - started


def save(model: nn.Module, planned: Planned, record: dict[str, float]) -> None:
    """Save weights, image processor and record atomically: the folder is complete or does not exist."""
    folder = model_folder(planned.name)
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    save_model(model, part)
    classifier_processor(SIDE).save_pretrained(part)
    (part / "training.json").write_text(json.dumps({"name": planned.name, "seed": planned.seed, **record}) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
