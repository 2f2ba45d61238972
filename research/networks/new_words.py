"""Add a token for each word that a tokenizer splits, so that captions of a new domain stay short."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken
from torch import nn
from transformers import PreTrainedTokenizerFast


def add_words(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> int:
    """A token for every word of some texts that has none yet, blank before it included; how many were added.

    Texts whose words all have one are read as before.
    """
    backend = tokenizer.backend_tokenizer
    words: dict[str, None] = {}
    for text in texts:
        plain = backend.normalizer.normalize_str(text) if backend.normalizer else text
        spans = backend.pre_tokenizer.pre_tokenize_str(plain)
        words |= dict.fromkeys(plain[start:end] for _, (start, end) in spans)
    lacking = [word for word in words if len(tokenizer(word, add_special_tokens=False).input_ids) > 1]
    # what begins with a blank can only begin a word; anything else must not be found within one
    added = tokenizer.add_tokens([AddedToken(word, normalized=True, single_word=word[0] != " ") for word in lacking])
    return int(added)


def add_embeddings(model: nn.Module, tokenizer: PreTrainedTokenizerFast) -> None:
    """Random embeddings for tokens that a transformers model lacks, the others as they were."""
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)  # type: ignore[operator]
