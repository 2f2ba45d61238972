"""Train the scorer (CLIP): pictures and captions in one space, for the checks; not the generator's text encoder.

    python -m tinyworld.train_scorer

The vision tower first learns the factors. Then contrast: each picture against all captions of the batch, against its
own caption with one factor changed (the very comparison that the check makes) and against short prompts for the class;
and the same factor heads on picture and text embeddings, so that both sides keep every factor.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPProcessor,
    CLIPTextConfig,
    CLIPTokenizer,
    CLIPVisionConfig,
)

from shared.seeds import derive_seed
from tinyworld.captions import describe
from tinyworld.clip_tokenizer import MAX_LENGTH, learn_clip_tokenizer
from tinyworld.factors import FACTORS, FactorHeads, factor_loss, mirrored, scene_factors, targets
from tinyworld.model_card import WEIGHTS, save_model, write_card
from tinyworld.pictures import SIDE, Pictures, Pixels, as_pixel_values, pictures, rendered, split_scene, spoil, varied
from tinyworld.round_trips import with_round_trips
from tinyworld.training_loop import Recipe, recipe_record, train, training_arguments
from tinyworld.vision_tower import FactorTower, pretrain, tower_accuracy
from tinyworld.world import CLASSES, Scene, sample_scene

FOLDER = WEIGHTS / "scorer"
PICTURES = 14_000
ROUND_TRIPS = 2_000
WIDTH = 128
SWAPS = 1  # captions with one factor changed, per picture
CLASS_PROMPTS = ("a photo of a {}.", "a picture of a {}.", "There is a {}.", "a {}", "{}")


def new_scorer(tokenizer: CLIPTokenizer) -> CLIPModel:
    """1.7 million parameters: two towers of 128, 4 layers to see and 3 to read."""
    shared = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_attention_heads": 4, "projection_dim": WIDTH}
    text = CLIPTextConfig(
        **shared,
        vocab_size=len(tokenizer),
        num_hidden_layers=3,
        max_position_embeddings=MAX_LENGTH,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    vision = CLIPVisionConfig(**shared, num_hidden_layers=4, image_size=SIDE, patch_size=16)
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH)
    return CLIPModel._from_config(config, attn_implementation="eager")


class Contrast(nn.Module):
    """The scorer with one set of factor heads for both kinds of embedding."""

    def __init__(self, model: CLIPModel) -> None:
        super().__init__()
        self.model = model
        self.heads = FactorHeads(WIDTH)
        model.vision_model.rate_factor = 0.4

    def loss(self, values: Tensor, seen: Tensor, texts: Tensor, stated: Tensor, prompts: Tensor) -> Tensor:
        """values (n, ...) and their factors `seen`; texts ((1 + SWAPS) n, tokens), own captions first, then the swaps
        of picture 0, 1, ...; `stated` the factors of the texts; prompts (classes, tokens)."""
        images = self.model.visual_projection(self.model.vision_model(pixel_values=values).pooler_output)
        words = self._read(texts)
        factors = factor_loss(self.heads(images), seen, 3.0) + factor_loss(self.heads(words), stated)
        images, words = (nn.functional.normalize(x.float(), dim=-1) for x in (images, words))
        scale = self.model.logit_scale.exp().clamp(max=60)
        similarity = scale * images @ words.T
        count = len(values)
        own = torch.arange(count)
        contrast = nn.functional.cross_entropy(similarity, own)
        contrast = contrast + nn.functional.cross_entropy(similarity[:, :count].T, own)
        swapped = similarity[:, count:].reshape(count, count, SWAPS)[own, own]
        pairs = torch.cat([similarity[own, own, None], swapped], dim=1)
        swap = nn.functional.cross_entropy(pairs, torch.zeros(count, dtype=torch.long))
        named = scale * images @ nn.functional.normalize(self._read(prompts).float(), dim=-1).T
        return contrast / 2 + swap + nn.functional.cross_entropy(named, seen[:, 0]) + 0.5 * factors

    def _read(self, ids: Tensor) -> Tensor:
        embeddings: Tensor = self.model.text_projection(self.model.text_model(input_ids=ids).pooler_output)
        return embeddings


def swapped(scene: Scene, seed: int, random: np.random.Generator) -> tuple[str, dict[str, str]]:
    """The scene's caption of this seed with one stated factor changed, and what it now states."""
    stated = [name for name in describe(scene, seed).stated if name in FACTORS]
    factor = stated[int(random.integers(len(stated)))]
    others = [value for value in FACTORS[factor] if value not in ("none", getattr(scene, factor))]
    changed = describe(scene.changed(**{factor: others[int(random.integers(len(others)))]}), seed)
    return changed.text, changed.stated


def train_scorer(tower_seconds: float, seconds: float, seed: int) -> None:
    """Tower, then contrast; judged on final-test scenes."""
    data = pictures("scorer", PICTURES, split_scene("scorer"))
    data = with_round_trips(data, "scorer", ROUND_TRIPS)
    scenes = [sample_scene("scorer", 1_000_000 + index) for index in range(15_000)]
    texts = [describe(scene, derive_seed("scorer", scene.geometry_seed)).text for scene in scenes]
    tokenizer = learn_clip_tokenizer(texts, 800, FOLDER)
    torch.manual_seed(seed)
    scorer = new_scorer(tokenizer)
    tower = FactorTower(scorer.vision_model, WIDTH)
    tower_recipe = Recipe("scorer-tower", tower_seconds, learning_rate=1.2e-3, seed=seed)
    tower_progress = pretrain(tower, data, tower_recipe)
    seen_by_tower = tower_accuracy(tower, [sample_scene("final-test", index) for index in range(400)])
    print("tower", tower_progress, seen_by_tower, flush=True)

    model = Contrast(scorer)
    recipe = Recipe("scorer", seconds, batch=64, learning_rate=1e-3, seed=seed + 1)

    def loss_of(_: nn.Module, step: int) -> Tensor:
        values, wanted, texts, stated, prompts = _batch(data, step, recipe)
        with torch.autocast("cpu", torch.bfloat16):
            return model.loss(values, wanted, _ids(tokenizer, texts), stated, _ids(tokenizer, prompts))

    progress = train(model, loss_of, recipe)
    parameters = save_model(scorer, FOLDER)
    images = CLIPImageProcessorPil(
        size={"shortest_edge": SIDE},
        crop_size={"height": SIDE, "width": SIDE},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    CLIPProcessor(images, tokenizer).save_pretrained(FOLDER)
    results = judge(CLIPModel.from_pretrained(FOLDER, dtype=torch.float32), tokenizer)
    write_card(
        FOLDER,
        title="Scorer",
        text="A CLIP that scores pictures against captions in the checks. It shares neither data nor tokenizer with "
        "the generator's text encoder.",
        command="python -m tinyworld.train_scorer",
        results={**results, "tower alone, accuracy": seen_by_tower},
        record={
            "split": "scorer",
            "pictures": PICTURES,
            "round_trips": ROUND_TRIPS,
            "parameters": parameters,
            "tower": recipe_record(tower_recipe, tower_progress),
            **recipe_record(recipe, progress),
        },
    )
    print(results, flush=True)


@torch.no_grad()
def judge(model: CLIPModel, tokenizer: CLIPTokenizer, count: int = 600) -> dict[str, object]:
    """Zero-shot class accuracy; per factor, how often the picture is nearer to its caption than to the changed one."""
    model.eval()
    scenes = [sample_scene("final-test", 30_000 + index) for index in range(count)]
    clean = [rendered(scene)[0] for scene in scenes]
    random = np.random.default_rng(0)
    report: dict[str, object] = {"pictures judged": count, "logit scale": round(float(model.logit_scale.exp()), 2)}
    prompts = embedded_texts(model, tokenizer, [CLASS_PROMPTS[0].format(name) for name in CLASSES])
    truth = torch.tensor([CLASSES.index(scene.label) for scene in scenes])
    for name, images in (("clean", clean), ("spoilt", [spoil(image, random, 2.0) for image in clean])):
        embeddings = embedded_images(model, images)
        right = ((embeddings @ prompts.T).argmax(1) == truth).float().mean()
        report[f"class, zero-shot, {name}"] = round(float(right), 4)
        swaps = {factor: _swap_accuracy(model, tokenizer, embeddings, scenes, factor) for factor in FACTORS}
        report[f"nearer to the true caption, {name}"] = {factor: f"{r:.3f} ({n})" for factor, (r, n) in swaps.items()}
    return report


@torch.no_grad()
def embedded_images(model: CLIPModel, images: list[Pixels]) -> Tensor:
    """Unit embeddings (n, width)."""
    parts = [
        model.get_image_features(pixel_values=as_pixel_values(np.stack(images[start : start + 50]))).pooler_output
        for start in range(0, len(images), 50)
    ]
    return nn.functional.normalize(torch.cat(parts), dim=-1)


@torch.no_grad()
def embedded_texts(model: CLIPModel, tokenizer: CLIPTokenizer, texts: list[str]) -> Tensor:
    """Unit embeddings (n, width)."""
    return nn.functional.normalize(model.get_text_features(_ids(tokenizer, texts)).pooler_output, dim=-1)


def _swap_accuracy(
    model: CLIPModel, tokenizer: CLIPTokenizer, images: Tensor, scenes: list[Scene], factor: str
) -> tuple[float, int]:
    random = np.random.default_rng(1)
    rows, true, false = [], [], []
    for row, scene in enumerate(scenes):
        seed = derive_seed("scorer-test", row)
        if factor in (own := describe(scene, seed)).stated:
            others = [value for value in FACTORS[factor] if value not in ("none", getattr(scene, factor))]
            rows.append(row)
            true.append(own.text)
            false.append(describe(scene.changed(**{factor: others[int(random.integers(len(others)))]}), seed).text)
    towards = embedded_texts(model, tokenizer, true) - embedded_texts(model, tokenizer, false)
    return float(((images[rows] * towards).sum(1) > 0).float().mean()), len(rows)


def _ids(tokenizer: CLIPTokenizer, texts: list[str]) -> Tensor:
    ids: Tensor = tokenizer(texts, padding=True, truncation=True, return_tensors="pt").input_ids
    return ids


def _batch(data: Pictures, step: int, recipe: Recipe) -> tuple[Tensor, Tensor, list[str], Tensor, list[str]]:
    random = np.random.default_rng((recipe.seed, step))
    images, wanted = [], []
    own: list[tuple[str, dict[str, str]]] = []
    changed: list[tuple[str, dict[str, str]]] = []
    for place, row in enumerate(random.integers(len(data.scenes), size=recipe.batch)):
        flip = bool(random.random() < 0.5)
        scene = mirrored(data.scenes[row]) if flip else data.scenes[row]
        seed = derive_seed("scorer", recipe.seed, step, place)
        images.append(varied(data.images[row], random, flip=flip))
        wanted.append(targets(scene_factors(scene)))
        said = describe(scene, seed)
        own.append((said.text, said.stated))
        changed.extend(swapped(scene, seed, random) for _ in range(SWAPS))
    texts = own + changed
    prompt = CLASS_PROMPTS[int(random.integers(len(CLASS_PROMPTS)))]
    return (
        as_pixel_values(np.stack(images)),
        torch.tensor(wanted),
        [text for text, _ in texts],
        torch.tensor([targets(stated) for _, stated in texts]),
        [prompt.format(name) for name in CLASSES],
    )


if __name__ == "__main__":
    arguments = training_arguments(__doc__, seconds=1_500)
    train_scorer(0.37 * arguments.seconds, 0.63 * arguments.seconds, arguments.seed)
