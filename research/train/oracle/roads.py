"""The oracles of driving scenes: two readers of the look, which judge whether an image shows an edit.

They are trained on the images of the oracle segmenter of the same letter with the same degradations; some went through
the autoencoder. Writes `runs/roads/models/NAME` (`--out`) in the Hub's layout with a model card. An interrupted run
resumes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForImageClassification, PreTrainedModel

from research.datasets.degradations import apply_degradations, random_fields
from research.datasets.round_trips import through_autoencoder
from research.judges.oracles.roads import LOGITS, ORACLES, READ, readings
from research.networks.factor_heads import factor_accuracy, factor_loss, split_factors
from research.networks.half_precision import autocast
from research.networks.image_processors import classifier_processor
from research.networks.oracles import new_oracle
from research.pictures.augmentation import as_pixel_values, degrade, move
from research.roads.pictures import pictures
from research.train.loop import Recipe, recipe_record, train
from research.train.model_card import Card, publish
from research.train.segmenter.roads import PLANS, SUFFERED, command
from tinyworld.domain.scenes import targets
from tinyworld.drawing.canvas import Image
from tinyworld.roads.render import render
from tinyworld.roads.world import Scene, sample_scene, scene_factors

ABOUT = (
    f"Reads {', '.join(READ)} of a driving scene of tinyworld, to judge what a generator drew, with one logit per "
    "value. Used in benchmarks only, never by the methods."
)


def train_oracle(name: str, out: Path, *, seconds: float, count: int, judged: int = 200) -> Path:
    """Train the oracle `name` of `ORACLES` on `count` images, evaluate it, save it with a card; returns its folder."""
    plan = PLANS[ORACLES[name]]
    data = pictures(plan.split, count, partial(sample_scene, plan.split))
    expected = torch.tensor([targets(scene_factors(scene), READ) for scene in data.scenes])
    images: list[Image] = [*data.images, *through_autoencoder(np.asarray(data.images[: plan.round_trips]))]
    expected = torch.cat([expected, expected[: plan.round_trips]])
    recipe = Recipe(
        f"roads/{name}", seconds, batch=32, learning_rate=1.5e-3, warmup_steps=40, ema=0.99, seed=plan.seed + 10
    )
    torch.manual_seed(recipe.seed)
    model = new_oracle("resnet" if name == "reader-a" else "regnet", LOGITS)
    fields = random_fields(recipe.seed)

    def loss_of(model: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng((recipe.seed, step))
        rows = random.integers(len(images), size=recipe.batch)
        batch = [
            apply_degradations(move((images[row],), random)[0], SUFFERED[plan.architecture], fields, random)
            for row in rows
        ]
        values = as_pixel_values(np.stack(batch)).to(memory_format=torch.channels_last)
        with autocast("cpu"):
            logits = model(pixel_values=values).logits
        return factor_loss(split_factors(logits, READ), expected[torch.from_numpy(rows)], names=READ)

    progress = train(model, loss_of, recipe)
    card = Card(
        title=name,
        text=ABOUT,
        command=f"python -m research.train.oracle --domain roads {name} --seconds {seconds:g} --pictures {count}",
        record={"split": plan.split, "pictures": count, **recipe_record(recipe, progress)},
    )
    publish(model, classifier_processor(), out, card, lambda: judge_saved(out, judged))
    return out


def judge_saved(folder: Path, count: int) -> dict[str, object]:
    """`judge` of a folder's weights on the first `count` scenes of the final test."""
    model = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.float32)
    return judge(model, [sample_scene("final-test", index) for index in range(count)])


def judge(model: PreTrainedModel, scenes: list[Scene]) -> dict[str, object]:
    """Accuracy per factor on renders of scenes, clean and degraded."""
    expected = torch.tensor([targets(scene_factors(scene), READ) for scene in scenes])
    clean = [render(scene).image for scene in scenes]
    random = np.random.default_rng(0)
    report: dict[str, object] = {"pictures judged": len(scenes)}
    for name, images in (("clean", clean), ("spoilt", [degrade(image, random, 2.0) for image in clean])):
        report[f"accuracy, {name}"] = factor_accuracy(readings(model, images), expected, READ)
    return report


def main() -> None:
    """The command."""
    command(__doc__, ORACLES, train_oracle)
