"""Train the captioner (BLIP-2): image → two to four sentences that state its factors.

    python -m research.train.captioner

First the vision tower is trained on the factors; then Q-Former and language model learn to state them, while factor
heads on tower and queries preserve the image's content. Phrases that state a factor weigh threefold in the loss: most
of the uncertainty of a caption is in its wording, which the image does not determine.

`--domain roads` trains on driving scenes, into separate weights. With `--start tinyworld/weights/captioner` the
training starts from earlier weights and their tokenizer, to which unknown words are added as tokens.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Blip2ForConditionalGeneration, Blip2Processor

from research.datasets.captioned_pictures import OBJECTS, Album, PictureDomain, album
from research.networks.factor_heads import FactorHeads, factor_loss
from research.networks.half_precision import autocast
from research.networks.small_blip2 import EOS, IMAGE, PAD, QUERIES, WIDTH, learn_processor, load_trained, new_captioner
from research.networks.vision_tower import FactorTower
from research.pictures.augmentation import as_pixel_values, degrade
from research.system.folders import weights_of
from research.train.loop import Recipe, command_of, recipe_record, run_name, train, training_arguments
from research.train.model_card import Card, publish, title_of
from research.train.vision_tower import train_tower
from shared.chunks import chunks
from shared.seeds import derive_seed
from tinyworld.domain.descriptions import Description

PICTURES = 16_000
ABOUT = "A BLIP-2 that says what a tinyworld picture shows. A tenth of all combinations was withheld from it."
_PHRASE_WEIGHT = 3.0
_LONGEST = 64  # tokens
_OMITTED = 0.05  # a greedy caption never states what training captions leave out more often


def training_texts(domain: PictureDomain[Any]) -> list[str]:
    """Captions with all words that training shows."""
    scenes = (domain.sample("generator", 1_000_000 + n, allow_withheld=False) for n in range(12_000))
    return [domain.describe(scene, scene.geometry_seed).text for scene in scenes]


class FactorCaptioner(nn.Module):
    """The captioner with the heads of its pre-trained tower and heads on its queries."""

    def __init__(self, model: Blip2ForConditionalGeneration, tower: FactorTower) -> None:
        super().__init__()
        self.model = model
        self.names = tower.names
        self.tower_heads = tower.on_patches
        self.query_heads = FactorHeads(2 * WIDTH, self.names)
        model.vision_model.rate_factor = 0.5

    def loss(self, values: Tensor, ids: Tensor, weights: Tensor, expected: Tensor) -> Tensor:
        """Weighted next-token loss plus the factor losses. ids, weights (batch, tokens), ids from `BOS` to `EOS`."""
        images = torch.full((len(ids), QUERIES), IMAGE)
        prompt = torch.cat([images, ids], dim=1)
        output = self.model(pixel_values=values, input_ids=prompt, attention_mask=(prompt != PAD).long())
        logits = output.logits[:, QUERIES:-1].float()
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        caption_loss = (losses * weights[:, 1:]).sum() / weights[:, 1:].sum()
        patches = output.vision_outputs.last_hidden_state[:, 1:]
        on_patches = self.tower_heads(torch.cat([patches.mean(1), patches.amax(1)], dim=1))
        queries = self.model.language_projection(output.qformer_outputs.last_hidden_state)
        on_queries = self.query_heads(torch.cat([queries.mean(1), queries.amax(1)], dim=1))
        factors = (factor_loss(logits, expected, 3.0, self.names) for logits in (on_patches, on_queries))
        return sum((0.3 * loss for loss in factors), start=caption_loss)


def tokens_and_weights(processor: Blip2Processor, descriptions: list[Description]) -> tuple[Tensor, Tensor]:
    """Padded ids from BOS to EOS, and the weight of each token in the loss (0 for padding)."""
    encoded = processor.tokenizer([d.text for d in descriptions], return_offsets_mapping=True)
    longest = max(map(len, encoded.input_ids)) + 1
    ids = torch.full((len(descriptions), longest), PAD)
    weights = torch.zeros(len(descriptions), longest)
    for row, (description, tokens, spans) in enumerate(
        zip(descriptions, encoded.input_ids, encoded.offset_mapping, strict=True)
    ):
        count = len(tokens)
        ids[row, : count + 1] = torch.tensor([*tokens, EOS])
        weights[row, : count + 1] = 1.0
        stated = np.zeros(len(description.text) + 1, bool)
        for mention in description.mentions:
            if match := re.search(rf"\b{re.escape(mention.phrase)}\b", description.text):
                stated[match.start() : match.end()] = True
        for column, (start, end) in enumerate(spans):
            if stated[start:end].any():
                weights[row, column] = _PHRASE_WEIGHT
    return ids, weights


def train_captioner(
    seconds: float, seed: int, domain: str = "objects", start: Path | None = None, pictures: int = PICTURES
) -> None:
    """Tower, then captions; judged on final-test renders, seen and withheld combinations apart."""
    folder = weights_of(domain) / "captioner"
    data = album(domain, "generator", pictures)
    texts = training_texts(data.domain)
    torch.manual_seed(seed)
    processor, captioner = _beginning(texts, folder) if start is None else load_trained(start, texts)
    tower_run = run_name("captioner-tower", domain, start)
    tower_recipe = Recipe(tower_run, 0.36 * seconds, learning_rate=1.2e-3, seed=seed)
    trained_tower = train_tower(captioner.vision_model, 128, data, tower_recipe)

    model = FactorCaptioner(captioner, trained_tower.tower)
    run = run_name("captioner", domain, start)
    recipe = Recipe(run, 0.64 * seconds, batch=48, learning_rate=1.5e-3, seed=seed + 1)

    def loss_of(_: nn.Module, step: int) -> Tensor:
        values, descriptions, expected = batch(data, step, recipe)
        with autocast("cpu"):
            return model.loss(values, *tokens_and_weights(processor, descriptions), expected)

    progress = train(model, loss_of, recipe)
    record = {"split": "generator", "domain": domain, "pictures": pictures, "tower": trained_tower.record}
    command = command_of("research.train.captioner", domain, start, pictures=pictures)
    card = Card(title_of("Captioner", domain), ABOUT, command, {**record, **recipe_record(recipe, progress)})

    def results() -> dict[str, object]:
        saved = Blip2ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        return {**judge(saved, processor, data.domain), **trained_tower.accuracy}

    publish(captioner, processor, folder, card, results)


def _beginning(texts: list[str], folder: Path) -> tuple[Blip2Processor, Blip2ForConditionalGeneration]:
    """A processor with a tokenizer of these texts, saved into the folder, and a captioner with fresh weights."""
    processor = learn_processor(texts, folder)
    return processor, new_captioner(len(processor.tokenizer))


@torch.no_grad()
def captions_of(model: Blip2ForConditionalGeneration, processor: Blip2Processor, images: list[np.ndarray]) -> list[str]:
    """Greedy captions of images (each 128 × 128 × 3)."""
    texts: list[str] = []
    for chunk in chunks(images, 50):
        batch = processor(images=chunk, return_tensors="pt")
        ids = model.generate(pixel_values=batch.pixel_values, max_new_tokens=_LONGEST, do_sample=False)
        texts += [text.strip() for text in processor.batch_decode(ids, skip_special_tokens=True)]
    return texts


def judge(
    model: Blip2ForConditionalGeneration,
    processor: Blip2Processor,
    domain: PictureDomain[Any] = OBJECTS,
    count: int = 600,
) -> dict[str, object]:
    """Share of greedy captions whose every stated factor is true, and of true statements by factor."""
    model.eval()
    scenes = domain.scenes(10_000, count)
    scenes += [scene for scene in domain.scenes(20_000, 2_000) if domain.withheld(scene)][: count // 4]
    texts = captions_of(model, processor, [domain.picture(scene) for scene in scenes])
    rare = np.array([domain.withheld(scene) for scene in scenes])
    truths = [_truths(domain, scene, text) for scene, text in zip(scenes, texts, strict=True)]
    exact = np.array([all(truth.values()) and domain.always in truth for truth in truths])
    by_factor = {
        name: [truth[name] for truth, scene in zip(truths, scenes, strict=True) if name in truth]
        for name in dict.fromkeys(name for truth in truths for name in truth)
    }
    random = np.random.default_rng(0)
    third = scenes[: count // 3]
    rough = captions_of(model, processor, [degrade(domain.picture(scene), random, 2.0) for scene in third])
    rough_truths = [_truths(domain, scene, text) for scene, text in zip(third, rough, strict=True)]
    rough_right = np.mean([all(truth.values()) for truth in rough_truths])
    return {
        "all stated factors right, seen combinations": f"{exact[~rare].mean():.4f} (n = {int((~rare).sum())})",
        "all stated factors right, withheld combinations": f"{exact[rare].mean():.4f} (n = {int(rare.sum())})",
        "all stated factors right, spoilt pictures": f"{rough_right:.4f} (n = {len(third)})",
        "right where stated": {name: round(float(np.mean(right)), 4) for name, right in by_factor.items()},
        "stated": {name: round(len(right) / len(scenes), 4) for name, right in by_factor.items()},
        "examples": texts[:4],
    }


def _truths(domain: PictureDomain[Any], scene: object, text: str) -> dict[str, bool]:
    shown = domain.shown(scene)
    return {name: shown.get(name) == value for name, value in domain.read(text).items()}


def batch(data: Album, step: int, recipe: Recipe) -> tuple[Tensor, list[Description], Tensor]:
    """Pixel values, captions and targets of a step."""
    random = np.random.default_rng((recipe.seed, step))
    rows = random.integers(len(data), size=recipe.batch)
    views = [data.view(row, random, flip=bool(random.random() < 0.5)) for row in rows]
    descriptions = [
        data.domain.describe(view.scene, derive_seed("captioner", recipe.seed, step, index), omitted=_OMITTED)
        for index, view in enumerate(views)
    ]
    values = as_pixel_values(np.stack([view.image for view in views]))
    return values, descriptions, torch.tensor([view.targets for view in views])


if __name__ == "__main__":
    arguments = training_arguments(__doc__, seconds=2_200, domain=True, start=True, pictures=PICTURES)
    train_captioner(arguments.seconds, arguments.seed, arguments.domain, arguments.start, arguments.pictures)
