"""Learning a tokenizer is deterministic: for any order of the texts, and in every process."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tinyworld.networks.byte_pairs import learn_merges
from tinyworld.networks.clip_tokenizer import learn_clip_tokenizer
from tinyworld.networks.word_tokenizer import learn_word_tokenizer

TEXTS = ["A red car stands on a beach. It rains.", "A blue bus drives through a city at night."] * 4


def test_the_most_frequent_pair_is_merged_and_ties_go_by_the_alphabet() -> None:
    counts = {"low": 5, "lower": 2, "newest": 6, "widest": 3}  # the example of arXiv 1508.07909
    words = {tuple(word): count for word, count in counts.items()}
    merges = [("e", "s"), ("es", "t"), ("l", "o"), ("lo", "w"), ("e", "w"), ("ew", "est"), ("n", "ewest")]
    assert learn_merges(words, 7) == merges
    assert learn_merges(words, 100)[:7] == merges
    assert learn_merges({("a", "a", "a"): 1}, 9) == [("a", "a"), ("aa", "a")]
    assert learn_merges({}, 9) == learn_merges({("a",): 4}, 9) == []


def _clip(texts: list[str], folder: Path) -> list[str]:
    tokens: list[str] = learn_clip_tokenizer(texts, 100, folder).tokenize("Red buses at night")
    return tokens


def _words(texts: list[str], folder: Path) -> list[str]:
    tokens: list[str] = learn_word_tokenizer(texts, 200, folder, max_length=48).tokenize("Red buses at night")
    return tokens


@pytest.mark.parametrize(
    ("learn", "pieces"),
    [
        (_clip, ["red</w>", "bu", "s", "e", "s</w>", "at</w>", "night</w>"]),
        (_words, ["red", "bus", "##es", "at", "night"]),
    ],
)
def test_the_order_of_the_texts_changes_nothing(
    learn: Callable[[list[str], Path], list[str]], pieces: list[str], tmp_path: Path
) -> None:
    shuffled = list(TEXTS)
    random.Random(1).shuffle(shuffled)
    assert shuffled != TEXTS
    assert learn(TEXTS, tmp_path / "once") == learn(shuffled, tmp_path / "again") == pieces
    once, again = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("once", "again"))
    assert once == again
