"""Train the generator's text encoder (CLIPTextModel): caption → every factor that the caption states.

    python -m tinyworld.train_text_encoder

Learning the factors, rather than a contrast with pictures, makes sure that the hidden states on which the diffusion
model is conditioned carry each of them: factor heads read the pooled end-of-text state while it trains and are
thrown away afterwards. With `--districts objects roads` captions of both take turns, and there are heads for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from shared.seeds import derive_seed
from tinyworld.clip_tokenizer import MAX_LENGTH, learn_clip_tokenizer
from tinyworld.factors import FACTORS, FactorHeads, factor_accuracy, factor_loss
from tinyworld.model_card import WEIGHTS, save_model, write_card
from tinyworld.picture_districts import DISTRICTS, factors_of
from tinyworld.training_loop import Recipe, recipe_record, train, training_arguments

FOLDER = WEIGHTS / "diffusion"
CAPTIONS = 60_000


def captioned(index: int, districts: Sequence[str] = ("objects",), *, held_out: bool = False) -> tuple[str, list[int]]:
    """Caption number `index` and the factors that it states. Held-out ones come from other scenes and seeds."""
    place, seed = index + (5_000_000 if held_out else 0), derive_seed("text-encoder", int(held_out), index)
    district = DISTRICTS[districts[index % len(districts)]]
    said = district.describe(district.sample("generator", place, allow_withheld=held_out), seed)
    return said.text, district.targets(said.stated, factors_of(districts))


class ReadFactors(nn.Module):
    """The text encoder with factor heads on its pooled state."""

    def __init__(
        self, tokenizer: CLIPTokenizer, width: int, layers: int, names: Mapping[str, tuple[str, ...]] = FACTORS
    ) -> None:
        super().__init__()
        config = CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=4 * width,
            projection_dim=width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=MAX_LENGTH,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        self.encoder = CLIPTextModel._from_config(config, attn_implementation="eager")
        self.heads = FactorHeads(width, names)

    def forward(self, ids: Tensor) -> list[Tensor]:
        """ids (batch, tokens) → logits per factor."""
        logits: list[Tensor] = self.heads(self.encoder(input_ids=ids).pooler_output)
        return logits


def token_ids(tokenizer: CLIPTokenizer, texts: list[str]) -> Tensor:
    """Padded to the longest, cut at the model's 77."""
    ids: Tensor = tokenizer(texts, padding=True, truncation=True, return_tensors="pt").input_ids
    return ids


def train_text_encoder(seconds: float, seed: int, districts: Sequence[str] = ("objects",)) -> None:
    """Learn the tokenizer, train, judge on held-out captions, save both with a card."""
    names = factors_of(districts)
    texts, wanted = zip(*(captioned(index, districts) for index in range(CAPTIONS)), strict=True)
    tokenizer = learn_clip_tokenizer(texts[:20_000], 800, FOLDER / "tokenizer")
    wanted_all = torch.tensor(wanted)
    run = "-".join(("text-encoder", *districts)) if tuple(districts) != ("objects",) else "text-encoder"
    recipe = Recipe(run, seconds, batch=96, learning_rate=1.5e-3, seed=seed)
    torch.manual_seed(seed)
    model = ReadFactors(tokenizer, width=128, layers=3, names=names)

    def loss_of(model: nn.Module, step: int) -> Tensor:
        rows = torch.randint(CAPTIONS, (recipe.batch,))
        logits = model(token_ids(tokenizer, [texts[int(row)] for row in rows]))
        return factor_loss(logits, wanted_all[rows], names=names)

    progress = train(model, loss_of, recipe)
    results = judge(model, tokenizer, districts)
    folder = FOLDER / "text_encoder"
    parameters = save_model(model.encoder, folder)
    write_card(
        folder,
        title="Text encoder of the generator",
        text="A CLIPTextModel that conditions the tiny diffusion model; it was trained to tell from a caption every "
        "factor that the caption states.",
        command="python -m tinyworld.train_text_encoder",
        results=results,
        record={
            "split": "generator",
            "districts": list(districts),
            "parameters": parameters,
            **recipe_record(recipe, progress),
        },
    )
    print(results, flush=True)


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
    arguments = training_arguments(__doc__, seconds=240, districts=True)
    train_text_encoder(arguments.seconds, arguments.seed, arguments.districts)
