"""The tiny language model's tokenizer: byte-level BPE, which can encode any text."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 2048
PAD, BEGIN, END = "<|pad|>", "<|begin|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
# What every reply is held together by: one token each, so that replies are short and their structure is plain.
JSON_PIECES = (
    '{"keywords":[{"phrase":"',
    '{"alternatives":[{"phrase":"',
    '{"caption":"',
    '","factor":"',
    '","value":"',
    '"},{"phrase":"',
    '"}]}',
    '"}',
    '{"edits":[{"from_phrase":"',
    '","from_value":"',
    '","to_phrase":"',
    '","to_value":"',
    '","caption":"',
    '","instruction":"',
    '"},{"from_phrase":"',
    '{"edits":[]}',
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with a chat template; a reply ends with `END`, a plain text begins with `BEGIN`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(JSON_PIECES),
        special_tokens=[PAD, BEGIN, END, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BEGIN,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    add_pieces(wrapped)
    return wrapped


def add_pieces(tokenizer: PreTrainedTokenizerFast) -> None:
    """One token for each of `JSON_PIECES` that has none yet."""
    tokenizer.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in JSON_PIECES])
