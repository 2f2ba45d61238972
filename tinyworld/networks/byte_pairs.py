"""Byte-pair merges that are reproducible across runs.

The trainers of `tokenizers` number some symbols in the order of a hash table with a random seed, and ties go by these
numbers: where symbols are marked as the end or the middle of a word, two runs end in different tokenizers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

Word = tuple[str, ...]  # its symbols
Pair = tuple[str, str]


def count_words(texts: Iterable[str], split: Callable[[str], Iterable[str]]) -> Counter[str]:
    """How often each word occurs."""
    return Counter(word for text in texts for word in split(text))


def learn_merges(
    words: Mapping[Word, int], most: int, join: Callable[[str, str], str] = lambda left, right: left + right
) -> list[Pair]:
    """At most this many merges (Sennrich et al., arXiv 1508.07909): always the most frequent pair of neighbours.

    Ties go to the pair that sorts first. `words` are words as symbols, with how often they occur.
    """
    counted, merges = dict(words), list[Pair]()
    while len(merges) < most:
        pairs = Counter[Pair]()
        for word, count in counted.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        counted = {_merge(word, best, join(*best)): count for word, count in counted.items()}
    return merges


def _merge(word: Word, pair: Pair, symbol: str) -> Word:
    if pair[0] not in word:
        return word
    merged, index = list[str](), 0
    while index < len(word):
        matches = word[index : index + 2] == pair
        merged.append(symbol if matches else word[index])
        index += 2 if matches else 1
    return tuple(merged)
