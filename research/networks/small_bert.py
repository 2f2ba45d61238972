"""The BERT configuration of tinyworld's two text models: two layers without dropout."""

from __future__ import annotations

from transformers import BertConfig


def small_bert(vocabulary: int, width: int, inner: int, longest: int) -> BertConfig:
    """Two layers of `width` with four heads, feed-forward layers of `inner`, for texts of `longest` tokens at most."""
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=longest,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
