"""A CLIP tokenizer (lower-cased byte-pair encoding with end-of-word marks) learnt from captions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import pre_tokenizers, trainers
from transformers import CLIPTokenizer

BOS, EOS = "<|startoftext|>", "<|endoftext|>"
END_OF_WORD = "</w>"
MAX_LENGTH = 77


def learn_clip_tokenizer(captions: Iterable[str], merged: int, folder: Path) -> CLIPTokenizer:
    """Learn about `merged` tokens beyond the bytes, write the tokenizer into `folder`, return it as reloaded."""
    blank = CLIPTokenizer()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=2 + len(alphabet) + merged,
        special_tokens=[BOS, EOS],
        initial_alphabet=alphabet,
        end_of_word_suffix=END_OF_WORD,
        show_progress=False,
    )
    blank.backend_tokenizer.train_from_iterator(captions, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    vocab_file, merges_file = (Path(name) for name in blank.backend_tokenizer.model.save(str(folder)))
    vocabulary = json.loads(vocab_file.read_text())
    for byte in alphabet:  # else a word that ends in an unseen letter would read as the end of the text
        vocabulary.setdefault(byte + END_OF_WORD, len(vocabulary))
    vocab_file.write_text(json.dumps(vocabulary))
    tokenizer = CLIPTokenizer(vocab=str(vocab_file), merges=str(merges_file), model_max_length=MAX_LENGTH)
    vocab_file.unlink()
    merges_file.unlink()
    tokenizer.save_pretrained(folder)
    return CLIPTokenizer.from_pretrained(folder)
