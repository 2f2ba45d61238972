"""A BERT tokenizer (lower-cased words, and pieces of the words that it does not know) learnt from texts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def learn_word_tokenizer(
    texts: Iterable[str], size: int, folder: Path, *, max_length: int, alphabet: str = "abcdefghijklmnopqrstuvwxyz"
) -> PreTrainedTokenizerFast:
    """Learn at most `size` WordPieces, write the tokenizer into `folder`, and return it.

    The letters of `alphabet` are always among the pieces, so that every word of them can be read.
    """
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), initial_alphabet=list(alphabet), show_progress=False
    )
    words.train_from_iterator(texts, trainer)
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
