"""The segmenter (SegFormer) that finds the object's pixels, which an edit must keep."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers import SegformerForSemanticSegmentation

from research.networks.half_precision import autocast
from research.networks.image_processors import segmenter_processor
from research.networks.segmenters import new_object_segmenter, segment
from research.objects.pictures import Pictures, pictures, render_pair, split_scene
from research.pictures.augmentation import as_pixel_values, degrade, move
from research.pictures.rendered_once import Pixels
from research.system.folders import WEIGHTS
from research.train.loop import Recipe, recipe_record, train, training_arguments
from research.train.model_card import Card, publish
from shared.chunks import chunks
from tinyworld.objects.world import sample_scene

FOLDER = WEIGHTS / "segmenter"
PICTURES = 16_000


def train_segmenter(seconds: float, seed: int) -> None:
    """Train on the generator's split, judge on final-test renders, save with a card."""
    data = pictures("generator", PICTURES, split_scene("generator"))
    recipe = Recipe("segmenter", seconds, batch=16, learning_rate=2e-3, warmup_steps=40, ema=0.99, seed=seed)
    torch.manual_seed(seed)
    model = new_object_segmenter()
    weights = torch.tensor([1.0, 1.5, 2.0])

    def loss_of(model: nn.Module, step: int) -> Tensor:
        values, masks = _batch(data, np.random.default_rng((seed, step)), recipe.batch)
        with autocast("cpu"):
            logits = segment(model, values)
        return nn.functional.cross_entropy(logits, masks, weights)

    progress = train(model, loss_of, recipe)
    card = Card(
        title="Segmenter",
        text="A SegFormer that finds the object and its companion in a tinyworld picture.",
        command="python -m research.train.segmenter",
        record={"split": "generator", "pictures": PICTURES, **recipe_record(recipe, progress)},
    )
    publish(
        model,
        segmenter_processor(),
        FOLDER,
        card,
        lambda: judge(SegformerForSemanticSegmentation.from_pretrained(FOLDER, dtype=torch.float32)),
    )


@torch.no_grad()
def judge(model: nn.Module, count: int = 500) -> dict[str, object]:
    """Intersection over union on fresh renders of the final test, clean and degraded."""
    model.eval()
    random = np.random.default_rng(0)
    pairs = [render_pair(sample_scene("final-test", index)) for index in range(count)]
    truth = np.stack([mask for _, mask in pairs])
    clean = [image for image, _ in pairs]
    rough = [degrade(image, random, 2.0) for image in clean]
    report: dict[str, object] = {"pictures judged": count}
    for name, images in (("clean", clean), ("spoilt", rough)):
        guess = np.concatenate([_regions(model, chunk) for chunk in chunks(images, 50)])
        ious = _object_ious(guess == 1, truth == 1)
        report[f"object IoU, {name}"] = {
            "mean": round(float(ious.mean()), 4),
            "worst tenth": round(float(np.quantile(ious, 0.1)), 4),
        }
        with_companion = (truth == 2).any(axis=(1, 2))
        report[f"companion IoU, {name}"] = round(
            float(_object_ious((guess == 2)[with_companion], (truth == 2)[with_companion]).mean()), 4
        )
    return report


def _regions(model: nn.Module, images: list[Pixels]) -> Pixels:
    return segment(model, as_pixel_values(np.stack(images))).argmax(1).numpy().astype(np.uint8)


def _object_ious(guess: np.ndarray, truth: np.ndarray) -> np.ndarray:
    overlap = (guess & truth).sum(axis=(1, 2))
    either = (guess | truth).sum(axis=(1, 2))
    return np.asarray(overlap / np.maximum(either, 1))


def _batch(data: Pictures, random: np.random.Generator, size: int) -> tuple[Tensor, Tensor]:
    images, masks = [], []
    for row in random.integers(len(data.scenes), size=size):
        image, mask = move((data.images[row], data.masks[row]), random)
        images.append(degrade(image, random))
        masks.append(mask)
    return as_pixel_values(np.stack(images)), torch.from_numpy(np.stack(masks)).long()


def main() -> None:
    """The command."""
    arguments = training_arguments(__doc__, seconds=210, domain=True)
    train_segmenter(arguments.seconds, arguments.seed)
