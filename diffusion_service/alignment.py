"""Align the tokens of two prompts: which old tokens' attention new tokens take over (prompt-to-prompt, section 3.2).

Prompts are compared by whole words, so that "snowfall" (four tokens) can replace "rain" (one). Words that both prompts
have keep their attention token by token, even if an insertion or deletion moved them.

    replace     words that replace others take over their attention; added words have their own
    refine      all new words have their own attention

The sequence is begin token, words, end token, padding. End tokens and padding are aligned from the end token on. If one
side has more padding, the last padding token takes or gives the rest, so that no attention is lost or doubled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TypeAlias

import torch
from torch import Tensor

from shared.problems import InvalidInput
from shared.schemas.diffusion import WordAttention

Words: TypeAlias = Sequence[tuple[int, ...]]  # the token ids of each word of a prompt, without begin and end


@dataclass(frozen=True, slots=True)
class Alignment:
    """`mapping` (source tokens × tokens) transfers attention; `share` (tokens) is 1 for tokens that take it, else 0."""

    mapping: Tensor
    share: Tensor


def align(old: Words, new: Words, length: int, attention: WordAttention) -> Alignment:
    """Align two prompts in sequences of `length` tokens."""
    mapping, share = torch.zeros(length, length, dtype=torch.float32), torch.zeros(length, dtype=torch.float32)
    old_ends, new_ends = _ends(old), _ends(new)

    def carry(first: range, second: range) -> None:
        share[second.start : second.stop] = 1
        if len(first) == len(second):
            mapping[list(first), list(second)] = 1
        else:
            mapping[first.start : first.stop, second.start : second.stop] = 1 / len(second)

    carry(range(1), range(1))
    for kind, i, i_end, j, j_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind not in ("equal", "replace") or (kind == "replace" and attention == "refine"):
            continue
        if i_end - i == j_end - j:
            for step in range(i_end - i):
                carry(_tokens(old_ends, i + step, i + step + 1), _tokens(new_ends, j + step, j + step + 1))
        else:
            carry(_tokens(old_ends, i, i_end), _tokens(new_ends, j, j_end))
    shared_tail = length - max(old_ends[-1], new_ends[-1]) - 1  # all but the last
    for step in range(shared_tail):
        carry(range(old_ends[-1] + step, old_ends[-1] + step + 1), range(new_ends[-1] + step, new_ends[-1] + step + 1))
    carry(range(old_ends[-1] + shared_tail, length), range(new_ends[-1] + shared_tail, length))
    return Alignment(mapping, share)


def positions(words: Words, phrase: Words, name: str) -> list[int]:
    """The positions of a phrase's tokens in the sequence, for all occurrences of the phrase.

    Raises InvalidInput if the phrase does not occur; `name` is the beginning of its message.
    """
    ends = _ends(words)
    starts = [i for i in range(len(words) - len(phrase) + 1) if list(words[i : i + len(phrase)]) == list(phrase)]
    if not phrase or not starts:
        raise InvalidInput(f"{name}; use words of that text in the same spelling")
    return [position for start in starts for position in _tokens(ends, start, start + len(phrase))]


def _ends(words: Words) -> list[int]:
    """Boundaries of the words in the sequence: entry n is the position after word n − 1 (and the begin token)."""
    ends = [1]
    for word in words:
        ends.append(ends[-1] + len(word))
    return ends


def _tokens(ends: Sequence[int], first: int, last: int) -> range:
    return range(ends[first], ends[last])
