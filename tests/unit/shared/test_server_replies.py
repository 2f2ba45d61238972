"""Replies of servers: known wrappers are taken off, what is no answer is refused."""

from __future__ import annotations

import pytest

from shared.problems import UnusableReply
from shared.service.server_replies import answer_in, caption_in

BUS = "A red bus by a lake."


@pytest.mark.parametrize(
    "reply",
    [
        f"<think>\nIs it a bus?\n</think>\n\n{BUS}",
        f"Okay, the user wants a caption.\n</think>\n\n{BUS}",
        f"<think>a</think><think>b</think>{BUS}",
        f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{BUS}<|return|>",
        f"<|channel|>final <|constrain|>json<|message|>{BUS}<|return|>",
        f"```text\n{BUS}\n```",
        f"{BUS}<|im_end|>\n",
        f"Here is the caption: {BUS}",
        f"Sure! Here's a one-sentence caption for the image:\n\n“{BUS}”",
        f"Caption: {BUS}",
        f"**Caption:** {BUS}",
        f"assistant\n{BUS}",
        f"\n {BUS}\n",
    ],
)
def test_known_wrappers_are_taken_off_a_caption(reply: str) -> None:
    assert caption_in(answer_in(reply), finished=True, server="http://s") == BUS


@pytest.mark.parametrize(
    "caption",
    [
        "a sign that reads “stop”",
        "The answer: a bus",
        "A caption below a photo: a bus",
        'a "bus" and a "tram"',
        "I can't believe it's not butter is written on a tub",
        "As an AI assistant robot waves, people walk by",
        "No image of a bus is on the poster",
        "I don't see a bus",
    ],
)
def test_a_caption_that_only_resembles_a_wrapper_stays(caption: str) -> None:
    assert caption_in(answer_in(caption), finished=True, server="http://s") == caption


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "<think>Is it",
        "a bus <|box_start|>(3,4)",
        "```\na bus",
        "I'm sorry, I can't help with that.",
        "Sorry, I can't help with that.",
        "I'm not able to see the image.",
        "I apologize, but there is no image.",
        "Unable to process the image.",
        "I don't see any image. Please attach one.",
        "It looks like no image was provided.",
        "The image could not be loaded.",
        "Please upload an image.",
        "As a language model, I see nothing.",
        "[THINK]Is it a bus?[/THINK]a bus",
        "<answer>a bus</answer>",
        '{"caption": "a bus"}',
    ],
)
def test_what_is_no_caption_is_refused(reply: str) -> None:
    with pytest.raises(UnusableReply, match=r"^http://s "):
        caption_in(answer_in(reply), finished=True, server="http://s")


@pytest.mark.parametrize("cut", [BUS, f"{BUS} It is 3", f"{BUS}\n"])
def test_a_caption_that_is_cut_off_keeps_its_whole_sentences(cut: str) -> None:
    assert caption_in(answer_in(cut), finished=False, server="http://s") == BUS


def test_an_abbreviation_ends_no_sentence() -> None:
    for rest in ("It stands in St.", "It is old, e.g. from 1960 or", "It belongs to Mr. Tram and J."):
        cut = f"{BUS} {rest}"
        assert caption_in(cut, finished=False, server="http://s") == BUS
    with pytest.raises(UnusableReply, match="cut off"):
        caption_in("A bus in St. Gallen and", finished=False, server="http://s")


def test_json_with_tags_in_its_strings_stays_and_a_fence_goes() -> None:
    value = '{"caption": "<b></think> ok"}'
    assert answer_in(value) == value
    assert answer_in(f"```json\n{value}\n```") == value
