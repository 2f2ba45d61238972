"""A CLIP tokenizer (lower-cased byte-pair encoding with end-of-word marks) trained on captions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import CLIPTokenizer

from tinyworld.networks.byte_pairs import count_words, learn_merges

BOS, EOS = "<|startoftext|>", "<|endoftext|>"
END_OF_WORD = "</w>"
MAX_LENGTH = 77


def learn_clip_tokenizer(captions: Iterable[str], merged: int, folder: Path) -> CLIPTokenizer:
    """Learn `merged` tokens beyond the bytes, write the tokenizer into `folder`, return it as reloaded."""
    backend = CLIPTokenizer().backend_tokenizer

    def split(text: str) -> list[str]:
        return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))]

    words = count_words(captions, split)
    merges = learn_merges({(*word[:-1], word[-1] + END_OF_WORD): count for word, count in words.items()}, merged)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Every byte may end a word: else one that ends in an unseen letter would read as the end of the text.
    pieces = [
        BOS,
        EOS,
        *alphabet,
        *(byte + END_OF_WORD for byte in alphabet),
        *(first + second for first, second in merges),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    vocab_file, merges_file = folder / "vocab.json", folder / "merges.txt"
    vocab_file.write_text(json.dumps({piece: number for number, piece in enumerate(dict.fromkeys(pieces))}))
    merges_file.write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges)]))
    tokenizer = CLIPTokenizer(vocab=str(vocab_file), merges=str(merges_file), model_max_length=MAX_LENGTH)
    vocab_file.unlink()
    merges_file.unlink()
    tokenizer.save_pretrained(folder)
    return CLIPTokenizer.from_pretrained(folder)


def token_ids(tokenizer: CLIPTokenizer, texts: list[str]) -> Tensor:
    """Ids of n texts, n × tokens: padded to the longest, cut at the model's 77."""
    ids: Tensor = tokenizer(texts, padding=True, truncation=True, return_tensors="pt").input_ids
    return ids
