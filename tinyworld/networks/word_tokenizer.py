"""BERT tokenizers: lower-cased words, with subwords down to letters for unknown words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tinyworld.networks.byte_pairs import count_words, learn_merges

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def learn_word_tokenizer(texts: Iterable[str], size: int, folder: Path, *, max_length: int) -> PreTrainedTokenizerFast:
    """Learn at most `size` WordPieces, write the tokenizer into `folder`, and return it."""
    counted = _count(texts)
    spelt = {(word[0], *(f"##{letter}" for letter in word[1:])): count for word, count in counted.items()}
    symbols = sorted({symbol for word in spelt for symbol in word} - set(LETTERS))
    alphabet = [*SPECIAL, *LETTERS, *symbols]
    merges = learn_merges(spelt, size - len(alphabet), lambda left, right: left + right.removeprefix("##"))
    pieces = [*alphabet, *(left + right.removeprefix("##") for left, right in merges)]
    return _write(_of_pieces(pieces), folder, max_length)


def whole_word_tokenizer(texts: Iterable[str], folder: Path, *, max_length: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose pieces are the whole words of some texts and, for other words, letters; written as above."""
    common = [word for word, _ in _count(texts).most_common()]
    pieces = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *common]
    return _write(_of_pieces(pieces), folder, max_length)


def _count(texts: Iterable[str]) -> Counter[str]:
    blank = _blank(models.WordPiece(unk_token="[UNK]"))

    def split(text: str) -> list[str]:
        return [word for word, _ in blank.pre_tokenizer.pre_tokenize_str(blank.normalizer.normalize_str(text))]

    return count_words(texts, split)


def _of_pieces(pieces: Iterable[str]) -> Tokenizer:
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    return _blank(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))


def _blank(model: models.WordPiece) -> Tokenizer:
    words = Tokenizer(model)
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.decoder = decoders.WordPiece()
    return words


def _write(words: Tokenizer, folder: Path, max_length: int) -> PreTrainedTokenizerFast:
    ends = [(token, words.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    words.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer.json"  # a third of it is white space, and shipped weights are short of room
    file.write_text(json.dumps(json.loads(file.read_text()), separators=(",", ":"), ensure_ascii=False) + "\n")
    return tokenizer
