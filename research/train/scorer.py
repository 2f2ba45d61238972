"""Train the scorer (CLIP): images and captions in one space, for the checks; not the generator's text encoder.

    python -m research.train.scorer

The vision tower is first trained on the factors. Then follows a contrastive training: each image against all captions
of the batch, against its own caption with one factor changed (the comparison that the check makes) and against short
prompts for the class; with the same factor heads on image and text embeddings, so that both preserve every factor.

`--domain roads` trains on driving scenes, which have no class, into separate weights. With `--start
tinyworld/weights/scorer` the training starts from earlier weights and their tokenizer, to which unknown words are added
as tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPProcessor,
    CLIPTokenizer,
)

from gateway.methods.image_scores import TEMPLATES
from research.datasets.captioned_pictures import OBJECTS, Album, PictureDomain, TrainingView, album
from research.networks.factor_heads import FactorHeads, factor_loss
from research.networks.half_precision import autocast
from research.networks.small_clip import WIDTH, load_trained, new_scorer
from research.pictures.augmentation import SIDE, as_pixel_values, degrade
from research.pictures.rendered_once import Pixels
from research.system.folders import weights_of
from research.train.loop import Recipe, command_of, recipe_record, run_name, train, training_arguments
from research.train.model_card import Card, publish, title_of
from research.train.vision_tower import train_tower
from shared.chunks import chunks
from shared.seeds import derive_seed
from tinyworld.domain.descriptions import Description
from tinyworld.domain.scenes import UNKNOWN
from tinyworld.networks.clip_tokenizer import learn_clip_tokenizer, token_ids
from tinyworld.objects.world import CLASSES

ABOUT = (
    "A CLIP that scores pictures against captions in the checks. It shares neither data nor tokenizer with the "
    "generator's text encoder."
)
PICTURES = 14_000
ROUND_TRIPS = 2_000
SWAPS = 1  # captions with one factor changed, per picture


def training_texts(domain: PictureDomain[Any]) -> list[str]:
    """Captions with all words that training shows."""
    scenes = domain.scenes(1_000_000, 15_000, "scorer")
    return [domain.describe(scene, derive_seed("scorer", scene.geometry_seed)).text for scene in scenes]


class Contrast(nn.Module):
    """The scorer with one set of factor heads for both kinds of embedding."""

    def __init__(self, model: CLIPModel, names: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.heads = FactorHeads(WIDTH, names)
        model.vision_model.rate_factor = 0.4

    def loss(self, values: Tensor, targets: Tensor, texts: Tensor, stated: Tensor, prompts: Tensor) -> Tensor:
        """values (n, ...) and their factors `seen`; texts ((1 + SWAPS) n, tokens), own captions first, then the swaps
        of picture 0, 1, ...; `stated` the factors of the texts; prompts (classes, tokens) for pictures with a class."""
        images = self.model.visual_projection(self.model.vision_model(pixel_values=values).pooler_output)
        words = self._read_pixels(texts)
        factors = factor_loss(self.heads(images), targets, 3.0, self.names)
        factors = factors + factor_loss(self.heads(words), stated, names=self.names)
        images, words = (nn.functional.normalize(x.float(), dim=-1) for x in (images, words))
        scale = self.model.logit_scale.exp().clamp(max=60)
        similarity = scale * images @ words.T
        count = len(values)
        diagonal = torch.arange(count)
        contrast = nn.functional.cross_entropy(similarity, diagonal)
        contrast = contrast + nn.functional.cross_entropy(similarity[:, :count].T, diagonal)
        swapped = similarity[:, count:].reshape(count, count, SWAPS)[diagonal, diagonal]
        pairs = torch.cat([similarity[diagonal, diagonal, None], swapped], dim=1)
        swap = nn.functional.cross_entropy(pairs, torch.zeros(count, dtype=torch.long))
        loss = contrast / 2 + swap
        classes = (
            targets[:, list(self.names).index("label")] if "label" in self.names else torch.full((count,), UNKNOWN)
        )
        if (classes != UNKNOWN).any():
            named = scale * images @ nn.functional.normalize(self._read_pixels(prompts).float(), dim=-1).T
            loss = loss + nn.functional.cross_entropy(named, classes, ignore_index=UNKNOWN)
        return loss + 0.5 * factors

    def _read_pixels(self, ids: Tensor) -> Tensor:
        embeddings: Tensor = self.model.text_projection(self.model.text_model(input_ids=ids).pooler_output)
        return embeddings


def misdescribe(domain: PictureDomain[Any], scene: Any, seed: int, random: np.random.Generator) -> Description:
    """The scene's caption of this seed with one stated factor changed.

    A caption that states nothing, as one of the roads in many thousands does, stays as it is.
    """
    stated = list(domain.describe(scene, seed).stated) or [domain.always]
    factor = stated[int(random.integers(len(stated)))]
    other_values = [value for value in domain.values[factor] if value not in ("none", getattr(scene, factor))]
    return domain.describe(scene.changed(**{factor: other_values[int(random.integers(len(other_values)))]}), seed)


def train_scorer(
    seconds: float, seed: int, domain: str = "objects", start: Path | None = None, pictures: int = PICTURES
) -> None:
    """Tower, then contrast; judged on final-test scenes."""
    folder = weights_of(domain) / "scorer"
    data = album(domain, "scorer", pictures, min(ROUND_TRIPS, pictures))
    texts = training_texts(data.domain)
    torch.manual_seed(seed)
    tokenizer, scorer = _beginning(texts, folder) if start is None else load_trained(start, texts)
    tower_run = run_name("scorer-tower", domain, start)
    tower_recipe = Recipe(tower_run, 0.37 * seconds, learning_rate=1.2e-3, seed=seed)
    trained_tower = train_tower(scorer.vision_model, WIDTH, data, tower_recipe)

    model = Contrast(scorer, data.domain.values)
    run = run_name("scorer", domain, start)
    recipe = Recipe(run, 0.63 * seconds, batch=64, learning_rate=1e-3, seed=seed + 1)

    def loss_of(_: nn.Module, step: int) -> Tensor:
        values, expected, texts, stated, prompts = batch(data, step, recipe)
        with autocast("cpu"):
            return model.loss(values, expected, token_ids(tokenizer, texts), stated, token_ids(tokenizer, prompts))

    progress = train(model, loss_of, recipe)
    record = {"split": "scorer", "domain": domain, "pictures": pictures, "round_trips": len(data) - pictures}
    record |= {"tower": trained_tower.record, **recipe_record(recipe, progress)}
    command = command_of("research.train.scorer", domain, start, pictures=pictures)
    card = Card(title_of("Scorer", domain), ABOUT, command, record)

    def results() -> dict[str, object]:
        saved = CLIPModel.from_pretrained(folder, dtype=torch.float32)
        return {**judge(saved, tokenizer, data.domain), **trained_tower.accuracy}

    publish(scorer, CLIPProcessor(image_processor(), tokenizer), folder, card, results)


def _beginning(texts: list[str], folder: Path) -> tuple[CLIPTokenizer, CLIPModel]:
    """A tokenizer of these texts, which is saved into the folder, and a scorer with fresh weights."""
    tokenizer = learn_clip_tokenizer(texts, 800, folder)
    return tokenizer, new_scorer(tokenizer)


def image_processor() -> CLIPImageProcessorPil:
    """Scales images to the scorer's input: 128 pixels a side, values in −1 … 1."""
    return CLIPImageProcessorPil(
        size={"shortest_edge": SIDE},
        crop_size={"height": SIDE, "width": SIDE},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )


@torch.no_grad()
def judge(
    model: CLIPModel, tokenizer: CLIPTokenizer, domain: PictureDomain[Any] = OBJECTS, count: int = 600
) -> dict[str, object]:
    """Zero-shot class accuracy, where there are classes; how often a picture is nearer to its caption than to another.

    The latter by factor: the other caption is the same with this factor changed.
    """
    model.eval()
    scenes = domain.scenes(30_000, count)
    clean = [domain.picture(scene) for scene in scenes]
    random = np.random.default_rng(0)
    report: dict[str, object] = {"pictures judged": count, "logit scale": round(float(model.logit_scale.exp()), 2)}
    for name, images in (("clean", clean), ("spoilt", [degrade(image, random, 2.0) for image in clean])):
        embeddings = embed_images(model, images)
        if "label" in domain.values:
            prompts = embed_texts(model, tokenizer, [TEMPLATES[0].format(name) for name in CLASSES])
            truth = torch.tensor([CLASSES.index(scene.label) for scene in scenes])
            right = ((embeddings @ prompts.T).argmax(1) == truth).float().mean()
            report[f"class, zero-shot, {name}"] = round(float(right), 4)
        report[f"nearer to the true caption, {name}"] = {
            factor: accuracy
            for factor in domain.values
            if (accuracy := _swap_accuracy(model, tokenizer, embeddings, domain, scenes, factor))
        }
    return report


@torch.no_grad()
def embed_images(model: CLIPModel, images: list[Pixels]) -> Tensor:
    """Unit embeddings (n, width)."""
    parts = [
        model.get_image_features(pixel_values=as_pixel_values(np.stack(chunk))).pooler_output
        for chunk in chunks(images, 50)
    ]
    return nn.functional.normalize(torch.cat(parts), dim=-1)


@torch.no_grad()
def embed_texts(model: CLIPModel, tokenizer: CLIPTokenizer, texts: list[str]) -> Tensor:
    """Unit embeddings (n, width)."""
    return nn.functional.normalize(model.get_text_features(token_ids(tokenizer, texts)).pooler_output, dim=-1)


def _swap_accuracy(
    model: CLIPModel,
    tokenizer: CLIPTokenizer,
    images: Tensor,
    domain: PictureDomain[Any],
    scenes: list[Any],
    factor: str,
) -> str:
    """Share and number of captions; empty where none states the factor."""
    random = np.random.default_rng(1)
    rows, true, false = [], [], []
    for row, scene in enumerate(scenes):
        seed = derive_seed("scorer-test", row)
        if factor in (description := domain.describe(scene, seed)).stated:
            other_values = [value for value in domain.values[factor] if value not in ("none", getattr(scene, factor))]
            rows.append(row)
            true.append(description.text)
            changed = scene.changed(**{factor: other_values[int(random.integers(len(other_values)))]})
            false.append(domain.describe(changed, seed).text)
    if not rows:
        return ""
    towards = embed_texts(model, tokenizer, true) - embed_texts(model, tokenizer, false)
    return f"{((images[rows] * towards).sum(1) > 0).float().mean():.3f} ({len(rows)})"


def batch(data: Album, step: int, recipe: Recipe) -> tuple[Tensor, Tensor, list[str], Tensor, list[str]]:
    """Pixel values and targets of a step's pictures; captions, their targets, prompts: as `Contrast.loss` has them."""
    random = np.random.default_rng((recipe.seed, step))
    views: list[TrainingView] = []
    descriptions: list[Description] = []
    changed: list[Description] = []
    for place, row in enumerate(random.integers(len(data), size=recipe.batch)):
        view = data.view(row, random, flip=bool(random.random() < 0.5))
        seed = derive_seed("scorer", recipe.seed, step, place)
        views.append(view)
        descriptions.append(data.domain.describe(view.scene, seed))
        changed.extend(misdescribe(data.domain, view.scene, seed, random) for _ in range(SWAPS))
    texts = descriptions + changed
    prompt = TEMPLATES[int(random.integers(len(TEMPLATES)))]
    return (
        as_pixel_values(np.stack([view.image for view in views])),
        torch.tensor([view.targets for view in views]),
        [description.text for description in texts],
        torch.tensor([data.domain.targets(description.stated) for description in texts]),
        [prompt.format(name) for name in CLASSES],
    )


if __name__ == "__main__":
    arguments = training_arguments(__doc__, seconds=1_500, domain=True, start=True, pictures=PICTURES)
    train_scorer(arguments.seconds, arguments.seed, arguments.domain, arguments.start, arguments.pictures)
