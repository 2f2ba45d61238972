"""Train the generator's text encoder (CLIPTextModel): caption → every factor that the caption states.

    python -m research.train.text_encoder

Training on the factors, rather than contrastively with images, ensures that the hidden states that condition the
diffusion model contain each of them: factor heads read the pooled end-of-text state during training and are discarded
afterwards. `--domain roads` trains on captions of driving scenes, into separate weights.

With `--start tinyworld/weights/diffusion` the training starts from a published generator's text encoder, and words that
its tokenizer splits are added as tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from research.datasets.captioned_pictures import PICTURE_DOMAINS
from research.networks.factor_heads import FactorHeads, factor_accuracy, factor_loss
from research.networks.new_words import add_embeddings, add_words
from research.system.folders import weights_of
from research.train.loop import Recipe, command_of, recipe_record, run_name, train, training_arguments
from research.train.model_card import save_model, title_of, write_card
from shared.chunks import chunks
from shared.seeds import derive_seed
from tinyworld.networks.clip_tokenizer import MAX_LENGTH, learn_clip_tokenizer, token_ids
from tinyworld.objects.world import FACTORS

CAPTIONS = 60_000
_WIDTH, _LAYERS = 128, 3


def caption_with_labels(index: int, domain: str = "objects", *, held_out: bool = False) -> tuple[str, list[int]]:
    """Caption number `index` and the factors that it states. Held-out ones come from other scenes and seeds."""
    place, seed = index + (5_000_000 if held_out else 0), derive_seed("text-encoder", int(held_out), index)
    written = PICTURE_DOMAINS[domain]
    description = written.describe(written.sample("generator", place, allow_withheld=held_out), seed)
    return description.text, written.targets(description.stated)


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


def load_trained(folder: Path, texts: Sequence[str]) -> tuple[CLIPTokenizer, CLIPTextModel]:
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


def train_text_encoder(
    seconds: float, seed: int, domain: str = "objects", start: Path | None = None, steps: int | None = None
) -> None:
    """Learn the tokenizer, or new words of an earlier one; train, judge on held-out captions, save both with a card.

    Training ends after `seconds` or after `steps`, if given, whichever comes first.
    """
    weights, names = weights_of(domain) / "diffusion", PICTURE_DOMAINS[domain].values
    texts, expected = zip(*(caption_with_labels(index, domain) for index in range(CAPTIONS)), strict=True)
    expected_all = torch.tensor(expected)
    recipe = Recipe(
        run_name("text-encoder", domain, start), seconds, batch=96, learning_rate=1.5e-3, seed=seed, steps=steps
    )
    torch.manual_seed(seed)
    if start is None:
        tokenizer = learn_clip_tokenizer(texts[:20_000], 800, weights / "tokenizer")
        encoder = new_encoder(tokenizer)
    else:
        tokenizer, encoder = load_trained(start, texts[:20_000])
    model = ReadFactors(encoder, names)

    def loss_of(model: nn.Module, step: int) -> Tensor:
        rows = torch.randint(CAPTIONS, (recipe.batch,))
        logits = model(token_ids(tokenizer, [texts[int(row)] for row in rows]))
        return factor_loss(logits, expected_all[rows], names=names)

    progress = train(model, loss_of, recipe)
    command = command_of("research.train.text_encoder", domain, start)
    _publish(model, tokenizer, domain, command, recipe_record(recipe, progress))


def _publish(
    model: ReadFactors, tokenizer: CLIPTokenizer, domain: str, command: str, record: Mapping[str, object]
) -> None:
    """Save encoder and tokenizer, judge what was saved, and write the card."""
    weights = weights_of(domain) / "diffusion"
    tokenizer.save_pretrained(weights / "tokenizer")
    folder = weights / "text_encoder"
    parameters = save_model(model.encoder, folder)
    model.encoder = CLIPTextModel.from_pretrained(folder, dtype=torch.float32)
    results = judge(model, tokenizer, domain)
    write_card(
        folder,
        title=title_of("Text encoder of the generator", domain),
        text="A CLIPTextModel that conditions the tiny diffusion model; it was trained to tell from a caption every "
        "factor that the caption states.",
        command=command,
        results=results,
        record={"split": "generator", "domain": domain, "parameters": parameters, **record},
    )
    print(results, flush=True)


@torch.no_grad()
def judge(model: nn.Module, tokenizer: CLIPTokenizer, domain: str = "objects", count: int = 2_000) -> dict[str, object]:
    """Accuracy per stated factor on captions of other scenes, and the share of captions that do not fit."""
    texts, expected = zip(*(caption_with_labels(index, domain, held_out=True) for index in range(count)), strict=True)
    guesses = []
    for chunk in chunks(texts, 100):
        logits = model(token_ids(tokenizer, list(chunk)))
        guesses.append(torch.stack([logit.argmax(1) for logit in logits], dim=1))
    names = PICTURE_DOMAINS[domain].values
    lengths = [len(ids) for ids in tokenizer(list(texts)).input_ids]
    return {
        "accuracy of stated factors": factor_accuracy(torch.cat(guesses), torch.tensor(expected), names),
        "captions judged": count,
        "longest caption in tokens": max(lengths),
        "captions cut at 77 tokens": sum(length > MAX_LENGTH for length in lengths),
        "vocabulary": len(tokenizer),
    }


if __name__ == "__main__":
    arguments = training_arguments(__doc__, seconds=240, domain=True, start=True)
    train_text_encoder(arguments.seconds, arguments.seed, arguments.domain, arguments.start)
