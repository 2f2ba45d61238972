"""Small BERTs with random weights, for masked words and for sentence embeddings, in Hub layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM, BertModel

from tinyworld.networks.word_tokenizer import learn_word_tokenizer

TEXTS = ["A red car stands on a beach. It rains.", "A blue bus drives through a city at night."] * 4


def _config(folder: Path) -> BertConfig:
    torch.manual_seed(5)
    tokenizer = learn_word_tokenizer(TEXTS, 120, folder, max_length=48)
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=48,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.3,
    )


def save_masked_words(folder: Path) -> None:
    """BertForMaskedLM and its tokenizer."""
    BertForMaskedLM(_config(folder)).save_pretrained(folder)


def save_text_embedder(folder: Path, *, pooling: str = "mean") -> None:
    """BertModel and its tokenizer, with sentence-transformers' description of the pooling."""
    BertModel(_config(folder)).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    described = {"word_embedding_dimension": 16, f"pooling_mode_{pooling}_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(described))
