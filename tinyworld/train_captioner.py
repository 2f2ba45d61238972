"""Train the captioner (BLIP-2): picture → two to four sentences that state its factors.

    python -m tinyworld.train_captioner

First the vision tower learns the factors themselves; then Q-Former and language model learn to say them, while factor
heads on tower and queries keep the picture's content within reach. Phrases that state a factor weigh threefold in the
loss: most of the uncertainty of a caption lies in its wording, which no picture tells.
"""

from __future__ import annotations

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    Blip2QFormerConfig,
    Blip2VisionConfig,
    BlipImageProcessorPil,
    OPTConfig,
    PreTrainedTokenizerFast,
)

from shared.seeds import derive_seed
from tinyworld.captions import Description, describe, read
from tinyworld.factors import FactorHeads, factor_loss, mirrored, scene_factors, targets
from tinyworld.model_card import WEIGHTS, save_model, write_card
from tinyworld.pictures import SIDE, Pictures, as_pixel_values, pictures, rendered, split_scene, spoil, varied
from tinyworld.training_loop import Recipe, recipe_record, train, training_arguments
from tinyworld.vision_tower import FactorTower, pretrain, tower_accuracy
from tinyworld.world import Scene, sample_scene, withheld

FOLDER = WEIGHTS / "captioner"
PICTURES = 16_000
QUERIES = 16
WIDTH = 160
PAD, BOS, EOS, IMAGE = range(4)
_SPECIAL = ["<pad>", "<s>", "</s>", "<image>"]
_PHRASE_WEIGHT = 3.0
_LONGEST = 64  # tokens
_UNSAID = 0.05  # what captions leave out, no greedy caption ever says


def learn_processor(texts: list[str]) -> Blip2Processor:
    """Image processor and byte-level BPE tokenizer, saved into the captioner's folder and reloaded."""
    blank = Tokenizer(models.BPE())
    blank.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    blank.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1_200, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    blank.train_from_iterator(texts, trainer)
    blank.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=blank,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        padding_side="left",
        model_max_length=128,
    )
    images = BlipImageProcessorPil(
        size={"height": SIDE, "width": SIDE}, image_mean=[0.5] * 3, image_std=[0.5] * 3, resample=2
    )
    Blip2Processor(images, tokenizer, num_query_tokens=QUERIES).save_pretrained(FOLDER)
    return Blip2Processor.from_pretrained(FOLDER)


def new_captioner(vocabulary: int) -> Blip2ForConditionalGeneration:
    """2.6 million parameters: a tower of 4 × 128, a Q-Former of 2 × 128, an OPT of 3 × 160."""
    vision = Blip2VisionConfig(
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=16,
        initializer_range=0.03,
    )
    queries = Blip2QFormerConfig(
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        cross_attention_frequency=1,
        encoder_hidden_size=128,
        vocab_size=1,
        max_position_embeddings=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.03,
    )
    language = OPTConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH,
        ffn_dim=4 * WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=256,
        dropout=0.0,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        init_std=0.03,
    )
    config = Blip2Config(
        vision_config=vision,
        qformer_config=queries,
        text_config=language,
        num_query_tokens=QUERIES,
        image_token_index=IMAGE,
        initializer_range=0.03,
    )
    model = Blip2ForConditionalGeneration._from_config(config, attn_implementation="eager")
    nn.init.normal_(model.query_tokens, std=1.0)  # zeros, the default, would leave all queries alike for ever
    for generation in (model.generation_config, model.language_model.generation_config):
        generation.pad_token_id, generation.bos_token_id, generation.eos_token_id = PAD, BOS, EOS
    return model


class SayFactors(nn.Module):
    """The captioner with the heads of its pre-trained tower and heads on its queries."""

    def __init__(self, model: Blip2ForConditionalGeneration, tower: FactorTower) -> None:
        super().__init__()
        self.model = model
        self.tower_heads = tower.on_patches
        self.query_heads = FactorHeads(2 * WIDTH)
        model.vision_model.rate_factor = 0.5

    def loss(self, values: Tensor, ids: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
        """Weighted next-token loss plus the factor losses. ids, weights (batch, tokens), ids from `BOS` to `EOS`."""
        images = torch.full((len(ids), QUERIES), IMAGE)
        prompt = torch.cat([images, ids], dim=1)
        seen = self.model(pixel_values=values, input_ids=prompt, attention_mask=(prompt != PAD).long())
        logits = seen.logits[:, QUERIES:-1].float()
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        spoken = (losses * weights[:, 1:]).sum() / weights[:, 1:].sum()
        patches = seen.vision_outputs.last_hidden_state[:, 1:]
        on_patches = self.tower_heads(torch.cat([patches.mean(1), patches.amax(1)], dim=1))
        queries = self.model.language_projection(seen.qformer_outputs.last_hidden_state)
        on_queries = self.query_heads(torch.cat([queries.mean(1), queries.amax(1)], dim=1))
        return spoken + 0.3 * factor_loss(on_patches, wanted, 3.0) + 0.3 * factor_loss(on_queries, wanted, 3.0)


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
            place = description.text.find(mention.phrase)
            stated[place : place + len(mention.phrase)] = True
        for column, (start, end) in enumerate(spans):
            if stated[start:end].any():
                weights[row, column] = _PHRASE_WEIGHT
    return ids, weights


def train_captioner(tower_seconds: float, seconds: float, seed: int) -> None:
    """Tower, then captions; judged on final-test renders, seen and withheld combinations apart."""
    data = pictures("generator", PICTURES, split_scene("generator"))
    scenes = (sample_scene("generator", 1_000_000 + index, allow_withheld=False) for index in range(12_000))
    processor = learn_processor([describe(scene, scene.geometry_seed).text for scene in scenes])
    torch.manual_seed(seed)
    captioner = new_captioner(len(processor.tokenizer))
    tower = FactorTower(captioner.vision_model, 128)
    tower_recipe = Recipe("captioner-tower", tower_seconds, learning_rate=1.2e-3, seed=seed)
    tower_progress = pretrain(tower, data, tower_recipe)
    seen_by_tower = tower_accuracy(tower, [sample_scene("final-test", index) for index in range(400)])
    print("tower", tower_progress, seen_by_tower, flush=True)

    model = SayFactors(captioner, tower)
    recipe = Recipe("captioner", seconds, batch=48, learning_rate=1.5e-3, seed=seed + 1)

    def loss_of(_: nn.Module, step: int) -> Tensor:
        values, descriptions, wanted = _batch(data, step, recipe)
        with torch.autocast("cpu", torch.bfloat16):
            return model.loss(values, *tokens_and_weights(processor, descriptions), wanted)

    progress = train(model, loss_of, recipe)
    parameters = save_model(captioner, FOLDER)
    results = judge(Blip2ForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32), processor)
    write_card(
        FOLDER,
        title="Captioner",
        text="A BLIP-2 that says what a tinyworld picture shows. A tenth of all combinations was withheld from it.",
        command="python -m tinyworld.train_captioner",
        results={**results, "tower alone, accuracy": seen_by_tower},
        record={
            "split": "generator",
            "pictures": PICTURES,
            "parameters": parameters,
            "tower": recipe_record(tower_recipe, tower_progress),
            **recipe_record(recipe, progress),
        },
    )
    print(results, flush=True)


@torch.no_grad()
def captions_of(model: Blip2ForConditionalGeneration, processor: Blip2Processor, images: list[np.ndarray]) -> list[str]:
    """Greedy captions of pictures (each 128 × 128 × 3)."""
    texts: list[str] = []
    for start in range(0, len(images), 50):
        batch = processor(images=images[start : start + 50], return_tensors="pt")
        ids = model.generate(pixel_values=batch.pixel_values, max_new_tokens=_LONGEST, do_sample=False)
        texts += [text.strip() for text in processor.batch_decode(ids, skip_special_tokens=True)]
    return texts


def judge(model: Blip2ForConditionalGeneration, processor: Blip2Processor, count: int = 600) -> dict[str, object]:
    """Share of greedy captions whose every stated factor is true, and of true statements by factor."""
    model.eval()
    scenes = [sample_scene("final-test", 10_000 + index) for index in range(count)]
    scenes += [scene for scene in (sample_scene("final-test", 20_000 + n) for n in range(2_000)) if withheld(scene)][
        :150
    ]
    texts = captions_of(model, processor, [rendered(scene)[0] for scene in scenes])
    rare = np.array([withheld(scene) for scene in scenes])
    truths = [_truths(scene, text) for scene, text in zip(scenes, texts, strict=True)]
    exact = np.array([all(truth.values()) and "label" in truth for truth in truths])
    by_factor = {
        name: [truth[name] for truth, scene in zip(truths, scenes, strict=True) if name in truth]
        for name in dict.fromkeys(name for truth in truths for name in truth)
    }
    random = np.random.default_rng(0)
    rough = captions_of(model, processor, [spoil(rendered(scene)[0], random, 2.0) for scene in scenes[:200]])
    rough_truths = [_truths(scene, text) for scene, text in zip(scenes[:200], rough, strict=True)]
    rough_right = np.mean([all(truth.values()) for truth in rough_truths])
    return {
        "all stated factors right, seen combinations": f"{exact[~rare].mean():.4f} (n = {int((~rare).sum())})",
        "all stated factors right, withheld combinations": f"{exact[rare].mean():.4f} (n = {int(rare.sum())})",
        "all stated factors right, spoilt pictures": f"{rough_right:.4f} (n = 200)",
        "right where stated": {name: round(float(np.mean(right)), 4) for name, right in by_factor.items()},
        "stated": {name: round(len(right) / len(scenes), 4) for name, right in by_factor.items()},
        "examples": texts[:4],
    }


def _truths(scene: Scene, text: str) -> dict[str, bool]:
    shown = scene_factors(scene)
    return {name: shown.get(name) == value for name, value in read(text).items()}


def _batch(data: Pictures, step: int, recipe: Recipe) -> tuple[Tensor, list[Description], Tensor]:
    random = np.random.default_rng((recipe.seed, step))
    images, descriptions, wanted = [], [], []
    for place, row in enumerate(random.integers(len(data.scenes), size=recipe.batch)):
        flip = bool(random.random() < 0.5)
        scene = mirrored(data.scenes[row]) if flip else data.scenes[row]
        images.append(varied(data.images[row], random, flip=flip))
        descriptions.append(describe(scene, derive_seed("captioner", recipe.seed, step, place), omitted=_UNSAID))
        wanted.append(targets(scene_factors(scene)))
    return as_pixel_values(np.stack(images)), descriptions, torch.tensor(wanted)


if __name__ == "__main__":
    arguments = training_arguments(__doc__, seconds=2_200)
    train_captioner(0.36 * arguments.seconds, 0.64 * arguments.seconds, arguments.seed)
