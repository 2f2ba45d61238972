"""Train the generator's text encoder (CLIPTextModel): caption → every factor that the caption states.

    python -m tinyworld.train_text_encoder

Learning the factors, rather than a contrast with pictures, makes sure that the hidden states on which the diffusion
model is conditioned carry each of them: factor heads read the pooled end-of-text state while it trains and are
thrown away afterwards. With `--districts objects roads` captions of both take turns, and there are heads for both.

With `--start tinyworld/weights/diffusion` a published generator's text encoder is the start: words that its tokenizer
takes apart become tokens, and the states of objects' captions are held to what they were, since a UNet knows them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from shared.seeds import derive_seed
from tinyworld.clip_tokenizer import MAX_LENGTH, learn_clip_tokenizer
from tinyworld.factors import FACTORS, FactorHeads, factor_accuracy, factor_loss
from tinyworld.model_card import WEIGHTS, save_model, write_card
from tinyworld.new_words import add_embeddings, add_words
from tinyworld.picture_districts import DISTRICTS, factors_of
from tinyworld.training_loop import Recipe, begun, command_of, recipe_record, train, training_arguments

FOLDER = WEIGHTS / "diffusion"
CAPTIONS = 60_000
_WIDTH, _LAYERS = 128, 3


def captioned(index: int, districts: Sequence[str] = ("objects",), *, held_out: bool = False) -> tuple[str, list[int]]:
    """Caption number `index` and the factors that it states. Held-out ones come from other scenes and seeds."""
    place, seed = index + (5_000_000 if held_out else 0), derive_seed("text-encoder", int(held_out), index)
    district = DISTRICTS[districts[index % len(districts)]]
    said = district.describe(district.sample("generator", place, allow_withheld=held_out), seed)
    return said.text, district.targets(said.stated, factors_of(districts))


def new_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    """A text encoder with fresh weights."""
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=_WIDTH,
        intermediate_size=4 * _WIDTH,
        projection_dim=_WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=4,
        max_position_embeddings=MAX_LENGTH,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModel._from_config(config, attn_implementation="eager")


def trained(folder: Path, texts: Sequence[str]) -> tuple[CLIPTokenizer, CLIPTextModel]:
    """Tokenizer and text encoder of a published generator, with tokens for words of these texts that it lacked."""
    tokenizer = CLIPTokenizer.from_pretrained(folder / "tokenizer")
    encoder = CLIPTextModel.from_pretrained(
        folder / "text_encoder", dtype=torch.float32, attn_implementation="eager", use_safetensors=True
    )
    if add_words(tokenizer, texts):
        add_embeddings(encoder, tokenizer)
    return tokenizer, encoder


class ReadFactors(nn.Module):
    """The text encoder with factor heads on its pooled state."""

    def __init__(self, encoder: CLIPTextModel, names: Mapping[str, tuple[str, ...]] = FACTORS) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = FactorHeads(encoder.config.hidden_size, names)

    def forward(self, ids: Tensor) -> list[Tensor]:
        """ids (batch, tokens) → logits per factor."""
        logits: list[Tensor] = self.heads(self.encoder(input_ids=ids).pooler_output)
        return logits


class Held:
    """The encoder as it was, and how far the states of the captions that it knew have moved from there."""

    def __init__(self, encoder: CLIPTextModel) -> None:
        self._before = copy.deepcopy(encoder).eval().requires_grad_(False)

    def moved(self, encoder: nn.Module, ids: Tensor) -> Tensor:
        """Mean squared difference of hidden states (rows × tokens × width); padding counts, as a UNet reads it, too."""
        now, before = (one(input_ids=ids).last_hidden_state for one in (encoder, self._before))
        return functional.mse_loss(now, before)


def token_ids(tokenizer: CLIPTokenizer, texts: list[str]) -> Tensor:
    """Padded to the longest, cut at the model's 77."""
    ids: Tensor = tokenizer(texts, padding=True, truncation=True, return_tensors="pt").input_ids
    return ids


def train_text_encoder(
    seconds: float, seed: int, districts: Sequence[str] = ("objects",), start: Path | None = None
) -> None:
    """Learn the tokenizer, or new words of an earlier one; train, judge on held-out captions, save both with a card."""
    names = factors_of(districts)
    texts, wanted = zip(*(captioned(index, districts) for index in range(CAPTIONS)), strict=True)
    wanted_all = torch.tensor(wanted)
    recipe = Recipe(begun("text-encoder", districts, start), seconds, batch=96, learning_rate=1.5e-3, seed=seed)
    torch.manual_seed(seed)
    if start is None:
        tokenizer = learn_clip_tokenizer(texts[:20_000], 800, FOLDER / "tokenizer")
        encoder, held = new_encoder(tokenizer), None
    else:
        tokenizer, encoder = trained(start, texts[:20_000])
        held = Held(encoder) if "objects" in districts else None
    model = ReadFactors(encoder, names)
    known = [index for index in range(CAPTIONS) if districts[index % len(districts)] == "objects"]

    def loss_of(model: nn.Module, step: int) -> Tensor:
        rows = torch.randint(CAPTIONS, (recipe.batch,))
        logits = model(token_ids(tokenizer, [texts[int(row)] for row in rows]))
        loss = factor_loss(logits, wanted_all[rows], names=names)
        if held is None:
            return loss
        chosen = torch.randint(len(known), (recipe.batch // 4,))
        return loss + held.moved(encoder, whole_ids(tokenizer, [texts[known[int(row)]] for row in chosen]))

    progress = train(model, loss_of, recipe)
    results = judge(model, tokenizer, districts)
    if held is not None:
        ids = whole_ids(tokenizer, [captioned(len(districts) * index, held_out=True)[0] for index in range(200)])
        with torch.no_grad():
            results["objects' states moved by, root mean square"] = round(held.moved(encoder, ids).item() ** 0.5, 4)
    tokenizer.save_pretrained(FOLDER / "tokenizer")
    folder = FOLDER / "text_encoder"
    parameters = save_model(model.encoder, folder)
    write_card(
        folder,
        title="Text encoder of the generator",
        text="A CLIPTextModel that conditions the tiny diffusion model; it was trained to tell from a caption every "
        "factor that the caption states.",
        command=command_of("tinyworld.train_text_encoder", districts, start),
        results=results,
        record={
            "split": "generator",
            "districts": list(districts),
            "parameters": parameters,
            **recipe_record(recipe, progress),
        },
    )
    print(results, flush=True)


def whole_ids(tokenizer: CLIPTokenizer, texts: list[str]) -> Tensor:
    """Padded to the model's 77, as pipelines pad them."""
    ids: Tensor = tokenizer(texts, padding="max_length", truncation=True, return_tensors="pt").input_ids
    return ids


@torch.no_grad()
def judge(
    model: nn.Module, tokenizer: CLIPTokenizer, districts: Sequence[str] = ("objects",), count: int = 2_000
) -> dict[str, object]:
    """Accuracy per stated factor on captions of other scenes, and the share of captions that do not fit."""
    texts, wanted = zip(*(captioned(index, districts, held_out=True) for index in range(count)), strict=True)
    guesses = []
    for start in range(0, count, 100):
        logits = model(token_ids(tokenizer, list(texts[start : start + 100])))
        guesses.append(torch.stack([logit.argmax(1) for logit in logits], dim=1))
    lengths = [len(ids) for ids in tokenizer(list(texts)).input_ids]
    return {
        "accuracy of stated factors": factor_accuracy(torch.cat(guesses), torch.tensor(wanted), factors_of(districts)),
        "captions judged": count,
        "longest caption in tokens": max(lengths),
        "captions cut at 77 tokens": sum(length > MAX_LENGTH for length in lengths),
        "vocabulary": len(tokenizer),
    }


if __name__ == "__main__":
    arguments = training_arguments(__doc__, seconds=240, districts=True, start=True)
    train_text_encoder(arguments.seconds, arguments.seed, arguments.districts, arguments.start)
