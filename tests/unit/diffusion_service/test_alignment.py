"""Token alignment of prompt-to-prompt: swaps, insertions, deletions, words of several tokens, and the padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffusion_service.alignment import Words, align, positions
from shared.problems import InvalidInput
from shared.schemas.diffusion import WordAttention

LENGTH = 12
A, RED, CAR, IN, RAIN = (1,), (2,), (3,), (4,), (5,)
SNOWFALL = (6, 7, 8)


def carried(old: Words, new: Words, attention: WordAttention = "replace") -> tuple[torch.Tensor, torch.Tensor]:
    alignment = align(old, new, LENGTH, attention)
    return alignment.mapping, alignment.share


def test_equal_prompts_are_carried_as_they_are() -> None:
    mapping, share = carried([A, RED, CAR], [A, RED, CAR])
    assert torch.equal(mapping, torch.eye(LENGTH))
    assert torch.equal(share, torch.ones(LENGTH))


def test_a_swapped_word_takes_over_the_attention_or_has_its_own() -> None:
    mapping, share = carried([A, RED, CAR], [A, (9,), CAR])
    assert torch.equal(mapping, torch.eye(LENGTH))
    assert share[2] == 1
    mapping, share = carried([A, RED, CAR], [A, (9,), CAR], "refine")
    assert mapping[:, 2].sum() == 0
    assert share.tolist() == [1, 1, 0] + [1] * (LENGTH - 3)


def test_a_word_of_several_tokens_shares_the_attention_of_one() -> None:
    mapping, _ = carried([CAR, IN, RAIN], [CAR, IN, SNOWFALL])
    assert torch.allclose(mapping[3, 3:6], torch.full((3,), 1 / 3))
    assert mapping[3].sum() == 1
    mapping, _ = carried([CAR, IN, SNOWFALL], [CAR, IN, RAIN])
    assert mapping[3:6, 3].tolist() == [1, 1, 1], "one word takes the attention of all the tokens of another"


def test_insertions_have_their_own_attention_and_what_follows_is_found_again() -> None:
    for attention in ("replace", "refine"):
        mapping, share = carried([A, CAR, IN, RAIN], [A, RED, CAR, IN, RAIN], attention)
        assert share[2] == mapping[:, 2].sum() == 0
        assert [int(mapping[:, place].argmax()) for place in (1, 3, 4, 5)] == [1, 2, 3, 4]


def test_deletions_do_not_shift_the_words_that_follow_nor_the_padding() -> None:
    """The reference code maps the new prompt's padding by place, so after a deletion it meets words of the old one."""
    mapping, share = carried([A, RED, CAR, IN, RAIN], [A, CAR, IN, RAIN])
    assert [int(mapping[:, place].argmax()) for place in (1, 2, 3, 4)] == [1, 3, 4, 5]
    assert mapping[2].sum() == 0, "nobody inherits the attention to a deleted word"
    assert int(mapping[:, 5].argmax()) == 6, "end token to end token"
    assert mapping[1:6, 5:].sum() == 0, "no padding inherits from a word"
    assert share.sum() == LENGTH


WORDS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), max_size=3)


@given(WORDS, WORDS)
def test_no_attention_is_doubled_and_only_that_to_deleted_words_is_lost(old: Words, new: Words) -> None:
    mapping, share = carried(old, new)
    rows = mapping.sum(dim=1)
    assert torch.all((rows < 1e-6) | ((rows - 1).abs() < 1e-6))
    ends = 1 + sum(len(word) for word in old)
    assert torch.allclose(rows[ends:], torch.ones(LENGTH - ends)), "end token and padding are carried whole"
    assert torch.all(mapping.sum(dim=0)[share == 0] == 0)


def test_phrases_are_found_wherever_they_stand() -> None:
    words = [A, RED, CAR, IN, SNOWFALL, A, RED, CAR]
    assert positions(words, [RED, CAR], "no phrase") == [2, 3, 9, 10]
    assert positions(words, [SNOWFALL], "no phrase") == [5, 6, 7]
    for missing in ([RED, IN], []):
        with pytest.raises(InvalidInput, match="no phrase “x”; use words"):
            positions(words, missing, "no phrase “x”")
