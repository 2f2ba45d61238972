"""LANCE: prompts, the word diff, and the choice among the images of a sweep."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.methods import METHODS
from gateway.methods.caption import begin_with_domain, names_style, with_domain
from gateway.methods.checks import EDITED_CHECKS, judge
from gateway.methods.counterfactual import Change, Edit, TaskDescription, Verdict
from gateway.methods.inverted import Attempt
from gateway.methods.lance import (
    LANCE_FACTORS,
    PERTURB,
    LanceParameters,
    best,
    perturb_messages,
    perturb_schema,
)
from gateway.methods.text_checks import check_stems
from gateway.methods.words import check_diff, places, word_diff
from shared.schemas.base import ImagePayload
from tests.support.paths import REPOSITORY

TASK = TaskDescription("classify the vehicle", ("bus", "car"))
WORDS = ("car", "well-kept", "red", "dog's", "by", "sea", "day", "two-door", "an", "orange", "the", "1950s", "d'or")
TEXT = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(("", "", ",", ".", ";"))), min_size=1, max_size=12)
PHRASE = st.lists(st.sampled_from([word for word in WORDS if word not in ("an", "the")]), min_size=1, max_size=3)


def written(words: list[tuple[str, str]]) -> str:
    return " ".join(word + mark for word, mark in words)


def edit(old: str, new: str, from_phrase: str, to_phrase: str) -> Edit:
    return Edit((Change("background", from_phrase, to_phrase, from_phrase, to_phrase),), old, new)


# --- The word diff.


@pytest.mark.parametrize(
    ("old", "new", "added", "refused"),
    [
        ("A red car by day.", "A red car with a dog by day.", "with a dog", ""),
        ("A red car.", "A shiny red car.", "shiny", ""),
        ("A red car.", "A shiny blue car.", "shiny", "word diff"),
        ("A red car.", "A shiny shiny red car.", "shiny", "word diff"),
        ("A red car.", "A red car.", "shiny", "caption unchanged"),
    ],
)
def test_an_edit_may_only_add_a_phrase(old: str, new: str, added: str, refused: str) -> None:
    """LANCE's Table 5 has such edits; all of them were refused."""
    addition = edit(old, new, "", added)
    verdict = check_diff(addition)
    assert (verdict.check if verdict else "") == refused
    if not refused:
        assert check_stems(addition, "car", ["bus"]) is None


def test_an_addition_that_brings_in_a_class_is_refused() -> None:
    verdict = check_stems(edit("A red car.", "A red car beside a bus.", "", "beside a bus"), "car", ["bus"])
    assert verdict is not None
    assert verdict.check == "other class"


def test_only_with_additions_may_a_replaced_phrase_be_empty() -> None:
    def least(additions: bool) -> int:
        schema = perturb_schema(1, additions)
        return int(schema["properties"]["edits"]["items"]["properties"]["from_phrase"]["minLength"])

    assert (least(False), least(True)) == (1, 0)


@pytest.mark.parametrize(
    ("caption", "domain", "expected"),
    [
        ("a dog on a beach", "a photo of", "A photo of a dog on a beach"),
        ("A dog on a beach. It barks.", "a photo of ", "A photo of a dog on a beach. It barks."),
        ("BMW at night", "a photo of", "A photo of BMW at night"),
        ("A photo of a dog", "a photo of", "A photo of a dog"),
        ("a dog", "", "a dog"),
    ],
)
def test_a_caption_begins_with_its_domain(caption: str, domain: str, expected: str) -> None:
    """Without it, an edit of the factor `domain` had nothing to replace."""
    assert with_domain(caption, domain) == expected


@pytest.mark.parametrize(
    ("caption", "names"),
    [
        ("A black and white photo of a dog", True),
        ("This photograph shows a bus at a stop.", True),
        ("A red bus at a stop. It is a watercolour painting.", True),
        ("A red bus at a stop. The style is realistic and bright.", True),
        ("A red bus in a realistic, documentary style.", True),
        ("A cartoon image of a red bus", True),
        ("A red bus at a stop in the rain.", False),
        ("A bus with a painting of a cat on its side.", False),
        ("A man painting a wall beside a photo of his wife.", False),
        ("A house in the Victorian style.", False),
        ("The image shows a red bus.", False),
        ("Photo of a dog", True),
        ("A vintage, sepia-toned photograph of a street", True),
        ("A red bus at a stop. This is a black and white photo.", True),
        ("A man taking a photo of a dog", False),
        ("A woman holds a painting of a house", False),
        ("A woman holding paintings of houses", False),
        ("A lamp and photo of a dog stand on a desk.", False),
        ("A man walks. A photo of a dog hangs on the wall.", False),
        ("The thing on the wall is a painting of a horse.", False),
        ("A mural of a horse covers a brick wall.", False),
        ("A woman with a natural hair style", False),
        ("A backpack of a cartoon style brand", False),
        ("Her style is elegant.", False),
    ],
)
def test_a_caption_names_its_style_if_it_says_what_kind_of_picture_it_is(caption: str, names: bool) -> None:
    assert names_style(caption) == names


@pytest.mark.parametrize(
    ("caption", "prompt", "domain", "expected"),
    [
        ("A red bus at a stop.", "", "a photo of", "A photo of a red bus at a stop."),
        ("The image shows a red bus.", "", "a photo of", "A photo of a red bus."),
        ("An oil painting of a red bus.", "", "a photo of", "An oil painting of a red bus."),
        ("A man taking a photo of a dog.", "", "a photo of", "A photo of a man taking a photo of a dog."),
        ("An oil painting of a red bus.", "a photo of", None, "A photo of an oil painting of a red bus."),
        ("A red bus at a stop.", "", None, "A red bus at a stop."),
    ],
)
def test_the_domain_is_apart_from_the_captioners_prompt(
    caption: str, prompt: str, domain: str | None, expected: str
) -> None:
    """A chat model takes no prompt, so its captions had no domain; jobs from before have no `caption_domain`."""
    stored = {"caption_prompt": prompt} | ({} if domain is None else {"caption_domain": domain})
    assert begin_with_domain(caption, LanceParameters.model_validate(stored)) == expected


@pytest.mark.parametrize(
    ("old", "new", "differences"),
    [
        ("A woman walks.", "A man walks.", [("woman", "man")]),  # the reference code: "woman ++"
        ("A two-door car", "A four-door car", [("two-door", "four-door")]),
        ("A well-kept car, by day.", "An old car, by night.", [("well-kept", "old"), ("day", "night")]),
        ("A purple car", "An orange car", [("purple", "orange")]),
        ("A car. The car is red.", "A bus. The bus is red.", [("car", "bus"), ("car", "bus")]),
        ("A red car.", "A car.", [("red", "")]),
        ("A car", "A red car!", [("", "red"), ("", "!")]),
        ("Red Car", "red car", []),
    ],
)
def test_the_word_diff_names_removed_and_added_words(old: str, new: str, differences: list[tuple[str, str]]) -> None:
    assert word_diff(old, new) == differences


@pytest.mark.slow
@given(TEXT, TEXT)
def test_what_the_word_diff_leaves_is_the_same_in_both_texts(
    old: list[tuple[str, str]], new: list[tuple[str, str]]
) -> None:
    differences = word_diff(written(old), written(new))
    before, after = sorted(_tokens(written(old))), sorted(_tokens(written(new)))
    for gone, come in differences:
        before, after = _without(before, gone.split()), _without(after, come.split())
    assert before == after
    assert bool(differences) == (_tokens(written(old)) != _tokens(written(new)))


def _tokens(text: str) -> list[str]:
    for mark in ",.;":
        text = text.replace(mark, f" {mark}")
    return [token for token in text.lower().split() if token not in ("a", "an", "the")]


def _without(tokens: list[str], some: list[str]) -> list[str]:
    remaining = list(tokens)
    for token in some:
        remaining.remove(token)
    return remaining


@given(st.lists(TEXT, min_size=2, max_size=4), PHRASE, PHRASE)
def test_a_phrase_replaced_in_several_places_is_recognised(
    parts: list[list[tuple[str, str]]], gone: list[str], come: list[str]
) -> None:
    assume(gone != come)
    old = f" {' '.join(gone)} ".join(map(written, parts))
    new = f" {' '.join(come)} ".join(map(written, parts))
    assert places(old, new, " ".join(gone), " ".join(come)) >= 1
    assert check_diff(edit(old, new, " ".join(gone), " ".join(come))) is None
    verdict = check_diff(edit(old, f"{new} and something else", " ".join(gone), " ".join(come)))
    assert verdict is not None
    assert verdict.check == "word diff"


def test_places_are_counted() -> None:
    old = "A car by the sea. The car, well-kept, is red."
    assert places(old, old.replace("car", "bus"), "car", "bus") == 2
    assert places(old, old.replace("The car", "The bus"), "car", "bus") == 1, "in one of two places"
    assert places(old, old.replace("red", "orange"), "car", "bus") == 0
    assert places("a purple car", "an orange car", "a purple car", "an orange car") == 1
    assert places("a red-brick house", "a blue-brick house", "red", "blue") == 0, "half a word is not a phrase"


@pytest.mark.parametrize(
    ("new", "check"),
    [
        ("A red car on a beach. It is day.", "caption unchanged"),
        ("A red car in a city. It is night.", "word diff"),
        ("A red car.", "word diff"),
        ("A blue car on a beach. It is day.", "word diff"),
        ("A red car in a city. It is day.", None),
    ],
)
def test_a_caption_that_differs_in_more_or_other_than_claimed_is_refused(new: str, check: str | None) -> None:
    verdict = check_diff(edit("A red car on a beach. It is day.", new, "on a beach", "in a city"))
    assert (verdict.check if verdict else None) == check
    assert verdict is None or (not verdict.accepted and verdict.reason)


# --- The prompts.


def test_task_class_and_factor_stand_in_every_prompt() -> None:
    for factor in LANCE_FACTORS:
        system, example, reply, question = perturb_messages(TASK, "A red bus.", "bus", factor, 2, PERTURB)
        assert f"{factor} (" in system.content
        assert example.role == "user"
        assert reply.content.startswith('{"edits":[{"from_phrase":')
        assert question.content == (
            f"Task: classify the vehicle\nClass: bus\nFactor: {factor}\nEdits: 2\nCaption:\nA red bus."
        )
    assert "Class:" not in perturb_messages(TASK, "A red bus.", None, "weather", 1, PERTURB)[-1].content


def test_the_schema_bounds_everything_and_no_edits_are_an_answer() -> None:
    edits = perturb_schema(3)["properties"]["edits"]
    assert edits["maxItems"] == 3
    assert "minItems" not in edits
    assert all(part["maxLength"] <= 600 for part in edits["items"]["properties"].values())
    assert list(edits["items"]["properties"])[-1] == "caption", "written last, when phrases are known"


# --- The sweep.


def attempt(fraction: float, direction: float, check: str = "") -> Attempt:
    return Attempt(fraction, ImagePayload(png=b""), Verdict(not check, check, check), {"direction": direction})


def test_the_best_direction_wins_not_the_last_that_passes() -> None:
    """The reference code keeps the last value of the sweep that passes."""
    chosen = best([attempt(0.4, 0.3), attempt(0.5, 0.5), attempt(0.6, 0.4)])
    assert chosen.fraction == 0.5


def test_ties_go_to_the_larger_fraction() -> None:
    assert best([attempt(0.4, 0.3), attempt(0.8, 0.3), attempt(0.6, 0.3)]).fraction == 0.8


def test_only_those_that_other_checks_pass_compete() -> None:
    tries = [attempt(0.4, 0.9, "likeness"), attempt(0.5, 0.1, "direction"), attempt(0.6, 0.05, "direction")]
    assert best(tries).fraction == 0.5
    assert best(tries).verdict.check == "direction"
    assert best(tries[:1]).verdict.check == "likeness"


def test_an_image_or_caption_that_did_not_change_is_refused_as_no_change() -> None:
    same = {"likeness": 1.0, "match": 0.9, "caption": 0.1}
    claimed = edit("a car by day", "a car by night", "by day", "by night")
    assert judge(same, claimed, {}, EDITED_CHECKS).check == "no change"
    assert judge({**same, "direction": -0.5}, claimed, {}, EDITED_CHECKS).accepted, "without thresholds it only scores"
    low = judge({**same, "direction": 0.1}, claimed, {"direction": {"default": 0.2}}, EDITED_CHECKS)
    assert (low.check, "φ = 0.100" in low.reason) == ("direction", True)
    assert judge(same, claimed, {}).accepted, "DILLEMA's images are drawn anew"


def test_thresholds_are_those_of_the_factor() -> None:
    scores = {"likeness": 0.6, "match": 0.9, "direction": 0.3}
    claimed = edit("a car on a beach", "a car in a city", "on a beach", "in a city")
    assert judge(scores, claimed, {"likeness": {"default": 0.7, "background": 0.5}}, EDITED_CHECKS).accepted
    assert judge(scores, claimed, {"likeness": {"default": 0.7, "weather": 0.5}}, EDITED_CHECKS).check == "likeness"


def test_parameters_are_described_and_wrong_ones_refused() -> None:
    described = LanceParameters.model_json_schema()["properties"]
    page = (REPOSITORY / "docs" / "reference" / "parameters.md").read_text()
    assert all(f"`{parameter}`" in page for parameter in described)
    refused: list[dict[str, object]] = [
        {"factors": ["style"]}, {"factors": []}, {"self_fractions": [1.5]}, {"self_fractions": []},
    ]  # fmt: skip
    for wrong in refused:
        with pytest.raises(ValidationError, match=r"factors|self_fractions"):
            LanceParameters.model_validate(wrong)


def test_the_method_is_listed() -> None:
    spec = METHODS["lance"]
    assert (spec.parameters, spec.needs) == (LanceParameters, ("evaluator.text_embedder",))
    assert LanceParameters().self_fractions == (0.4, 0.5, 0.6, 0.7, 0.8, 0.9), "the paper's"
