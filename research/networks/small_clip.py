"""The scorer's network: a small CLIP, new or from an earlier training."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPTokenizer, CLIPVisionConfig

from research.networks.new_words import add_embeddings, add_words
from research.pictures.augmentation import SIDE
from tinyworld.networks.clip_tokenizer import MAX_LENGTH

WIDTH = 128


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


def load_trained(folder: Path, texts: list[str]) -> tuple[CLIPTokenizer, CLIPModel]:
    """Tokenizer and weights of an earlier training, with tokens for words of these texts that it lacked."""
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    model = CLIPModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if add_words(tokenizer, texts):
        add_embeddings(model.text_model, tokenizer)
    return tokenizer, model
