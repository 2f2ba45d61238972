"""Edits that would change the ground truth, or change nothing, are refused by their words."""

from __future__ import annotations

import pytest

from gateway.methods.counterfactual import Change, Factor
from gateway.methods.text_checks import check_caption, check_change, check_keyword, names_class, occurrences, stem

CAPTION = "A photo of a red bus in a city. It is a foggy night."
CLASSES = ("car", "bus", "traffic light")


def change(old: str, new: str, from_value: str = "", to_value: str = "", factor: Factor = "weather") -> Change:
    return Change(factor, old, new, from_value or old, to_value or new)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bus", "buses"), ("car", "cars"), ("fog", "foggy"), ("rain", "raining"), ("plane", "planes"),
        ("house", "houses"), ("sun", "sunny"), ("stripe", "striped"), ("puppy", "puppies"), ("night", "nightly"),
    ],
)  # fmt: skip
def test_stems_agree(one: str, other: str) -> None:
    assert stem(one) == stem(other)


@pytest.mark.parametrize(("one", "other"), [("car", "cart"), ("bus", "bush"), ("boat", "boar"), ("sun", "snow")])
def test_stems_differ(one: str, other: str) -> None:
    assert stem(one) != stem(other)


def test_class_names_are_whole_words_in_a_row() -> None:
    assert names_class("two Buses", "bus")
    assert names_class("under the traffic lights", "traffic light")
    assert not names_class("light traffic", "traffic light")
    assert names_class("a tiger cat", "tabby, tiger cat")
    assert not names_class("a bush", "bus")


def test_occurrences_count_whole_words() -> None:
    assert occurrences("A photograph and a Photo.", "photo") == 1
    assert occurrences("a wet, wet day", "wet") == 2
    assert occurrences("anything", " ") == 0


@pytest.mark.parametrize(
    ("phrase", "truth", "check"),
    [
        ("foggy", "bus", None),
        ("snowy", "bus", "keyword in caption"),
        ("red bus", "bus", "class words"),
        ("bus", None, "class words"),
        ("foggy", "fog", "class words"),
        ("red bus", "car", "class words"),
    ],
)
def test_keywords(phrase: str, truth: str | None, check: str | None) -> None:
    refusal = check_keyword(phrase, CAPTION, truth, CLASSES)
    assert (refusal.check if refusal else None) == check
    assert refusal is None or (not refusal.accepted and refusal.reason)


@pytest.mark.parametrize(
    ("made", "check"),
    [
        (change("foggy", "snowy", "fog", "snow"), None),
        (change("foggy", "misty", "fog", "fog"), "no change"),
        (change("in a city", "in the city", "city", "town"), "no change"),
        (change("night", "bus stop"), "class words"),
        (change("in a city", "next to cars"), "other class"),
        (change("in a city", "at a traffic light"), "other class"),
        (change("dog", "woman", factor="object"), "protected class"),
        (change("dog", "black person", factor="object"), "protected class"),
        (change("red", "black", factor="adjective"), None),
    ],
)
def test_changes(made: Change, check: str | None) -> None:
    refusal = check_change(made, "bus", ("car", "traffic light"))
    assert (refusal.check if refusal else None) == check


@pytest.mark.parametrize(
    ("new_caption", "check"),
    [
        ("A photo of a red bus in a city. It is a snowy night.", None),
        (CAPTION, "caption unchanged"),
        ("A photo of a red bus in a city. It is a rainy night.", "change applied"),
        ("A photo of a red bus in a foggy city. It is a snowy night.", "change applied"),
        ("A photo of a red van in a city. It is a snowy night.", "class kept"),
        ("A photo of a red bus and a car in a city. It is a snowy night.", "other class"),
        ("A photo of a red bus with a man in a city. It is a snowy night.", "protected class"),
    ],
)
def test_new_captions(new_caption: str, check: str | None) -> None:
    made = (change("foggy", "snowy", "fog", "snow"),)
    refusal = check_caption(made, CAPTION, new_caption, "bus", ("car", "traffic light"))
    assert (refusal.check if refusal else None) == check


def test_a_phrase_that_stands_twice_is_replaced_once() -> None:
    caption = "A red bus is on a beach. There is also a red dog."
    new = "A blue bus is on a beach. There is also a red dog."
    assert check_caption((change("red", "blue", factor="adjective"),), caption, new, "bus", ()) is None


def test_a_new_phrase_may_hold_the_old_one() -> None:
    made = (change("photo", "grainy photo", factor="domain"),)
    assert check_caption(made, CAPTION, CAPTION.replace("photo", "grainy photo"), "bus", ()) is None


def test_a_caption_that_never_named_the_class_cannot_lose_it() -> None:
    made = (change("foggy", "snowy"),)
    assert check_caption(made, "A foggy street.", "A snowy street.", "bus", CLASSES) is None
