"""Questions about images in a manifest, and answers: how they are read from words and compared with the truth."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.answers import (
    is_right,
    is_unknown,
    items_in,
    normalised,
    number_in,
    number_text,
    short_text,
    yes_or_no,
)
from shared.media.manifests import parse_manifest
from shared.problems import InvalidInput
from shared.schemas.questions import ImageQuestion

NUMBERS = st.one_of(st.integers(-(10**9), 10**9), st.floats(-1e6, 1e6).map(lambda value: round(value, 3)))
WORDS = st.text("abcdefghij", min_size=2, max_size=8).filter(lambda word: word not in ("an",))
WRAPS = ("{}", "{}.", " {} ", "**{}**", "The answer is {}.", "Answer: {}", "The correct answer is: {}")


@given(value=NUMBERS, wrap=st.sampled_from([*WRAPS, "There are {} of them.", "{} cars", "About {}%"]))
def test_a_number_is_read_in_the_words_around_it(value: float, wrap: str) -> None:
    assert number_in(wrap.format(number_text(value))) == pytest.approx(value)
    if value == int(value):
        assert number_in(wrap.format(f"{int(value):,}")) == value


@given(value=NUMBERS, tolerance=st.integers(0, 100), off=st.integers(-200, 200))
def test_a_number_is_right_within_its_tolerance(value: float, tolerance: int, off: int) -> None:
    answer = number_text(round(value + off, 3))
    assert is_right("number", answer, [number_text(value)], tolerance) is (abs(off) <= tolerance)


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("three", 3),
        ("There are none.", 0),
        ("2 cars and 3 buses", None),
        ("2 cars and two drivers", 2),
        ("Answer: 5\nI counted 3 on the left and 2 on the right.", 5),
        ("the 3rd from the left", None),
        ("1,000.5", 1000.5),
        ("1.2.3", None),
        ("many", None),
        ("−4", -4),
    ],
)
def test_of_several_numbers_none_is_the_answer(words: str, number: float | None) -> None:
    assert number_in(words) == number


@settings(max_examples=25)
@given(words=st.text(max_size=20))
def test_a_normal_form_is_its_own(words: str) -> None:
    assert normalised(normalised(words)) == normalised(words)


@given(words=st.lists(WORDS, min_size=1, max_size=4), wrap=st.sampled_from([*WRAPS, "It is {}.", "The {}", "“{}”"]))
def test_a_text_is_right_whatever_its_case_punctuation_and_article(words: list[str], wrap: str) -> None:
    truth = " ".join(words)
    for said in (wrap.format(truth), wrap.format(truth.upper())):
        answer = short_text(said)
        assert answer is not None
        assert is_right("text", answer, ["something else", truth])
        assert not is_right("text", answer, ["something else"])


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("The bus is red", True),
        ("The bus is not red", False),
        ("red or blue", False),
        ("It is red or blue, perhaps red", False),
        ("dark red", False),
        ("reddish", False),
        ("RED!", True),
    ],
)
def test_a_sentence_counts_by_what_it_ends_in(answer: str, right: bool) -> None:
    assert is_right("text", answer, ["red"]) is right


@given(items=st.lists(WORDS, min_size=1, max_size=5, unique=True), order=st.randoms(), separator=st.sampled_from(
    [", ", "\n- ", "; ", " and ", " & ", ", and "]
))  # fmt: skip
def test_a_list_is_right_in_any_order_and_writing(items: list[str], order: object, separator: str) -> None:
    shuffled = list(items)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert is_right("list", separator.join(shuffled), items)
    assert not is_right("list", separator.join([*shuffled, "zzz"]), items)
    assert is_right("list", "[" + ", ".join(f'"{item}"' for item in shuffled) + "]", items)
    assert items_in("None.") == items_in("nothing") == []


@given(yes=st.booleans(), wrap=st.sampled_from([*WRAPS, "{}, there is a car.", "{}\nBecause it rains."]))
def test_yes_or_no_is_the_first_word(yes: bool, wrap: str) -> None:
    for word in ("yes", "Yes", "YES", "True") if yes else ("no", "No", "false"):
        assert yes_or_no(wrap.format(word)) == ("yes" if yes else "no")


@pytest.mark.parametrize("words", ["There is no car.", "No idea.", "yesterday", "Yes and no.", "maybe yes"])
def test_no_other_words_are_yes_or_no(words: str) -> None:
    assert yes_or_no(words) is None


@pytest.mark.parametrize(
    "words", ["I don't know.", "Unknown", "The answer is unclear.", "It cannot be determined", "N/A"]
)
def test_who_does_not_know_has_no_answer(words: str) -> None:
    assert is_unknown(words)
    assert not is_unknown("a known place")


@pytest.mark.parametrize(
    ("fields", "kind", "answers"),
    [
        ({"answer": 3}, "number", ["3"]),
        ({"answer": 2.50}, "number", ["2.5"]),
        ({"answer": "1,000"}, "number", ["1,000"]),
        ({"answer": True}, "yes/no", ["yes"]),
        ({"answer": "No"}, "yes/no", ["no"]),
        ({"answers": ["red", "dark red"]}, "text", ["red", "dark red"]),
        ({"options": ["bus", "car"], "answer": "bus"}, "choice", ["bus"]),
        ({"type": "list", "answers": ["cup", "pen"]}, "list", ["cup", "pen"]),
        ({}, "text", []),
    ],
)
def test_the_type_of_a_question_follows_from_its_answer(
    fields: dict[str, object], kind: str, answers: list[str]
) -> None:
    question = ImageQuestion.model_validate({"question": "What is it?", **fields})
    assert (question.type, question.answers, question.label) == (kind, answers, kind)
    assert ImageQuestion.model_validate(question.model_dump(exclude_defaults=True)) == question
    assert question.asked.answers == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"options": ["bus"], "answer": "bus"}, "two options"),
        ({"options": ["bus", "car"], "answer": "van"}, "none of its options"),
        ({"type": "choice", "answer": "bus"}, "has options"),
        ({"type": "number", "answer": "many"}, "needs a number"),
        ({"type": "yes/no", "answers": ["yes", "no"]}, "one answer"),
        ({"answer": "red", "tolerance": 1}, "belongs to numbers"),
        ({"answer": "red", "key": "all classes"}, "rename it"),
        ({"answr": "red"}, "unknown field answr"),
        ({"answer": True, "becomes": {"weather=night": "perhaps"}}, "becomes yes or no"),
        ({"options": ["a", "b"], "answer": "a", "becomes": {"weather=night": "c"}}, "none of its options"),
        ({"becomes": {"weather=night": "red"}}, "no answer that could change"),
    ],
)
def test_a_question_whose_answer_does_not_fit_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ImageQuestion.model_validate({"question": "What is it?", **fields})


@pytest.mark.parametrize(
    "manifest",
    [
        "file,question,type,options,answer,key\n"
        "a.png,How many?,,,3,\na.png,What is it?,,bus|car,bus,vehicle\nb.png,Wet?,,,no,wet\nb.png,Wet?,,,no,wet\n",
        '{"file": "a.png", "question": "How many?", "answer": 3}\n'
        '{"file": "b.png", "questions": [{"question": "Wet?", "answer": false, "key": "wet"}]}\n'
        '{"file": "a.png", "question": "What is it?", "options": ["bus", "car"], "answer": "bus", "key": "vehicle"}\n',
        "image;category;question;answers;choices;key\n"
        "a.png;x;How many?;3;;\na.png;x;What is it?;bus;bus|car;vehicle\nb.png;y;Wet?;no;;wet\n",
    ],
)
def test_questions_are_read_from_tables_and_json_lines(manifest: str) -> None:
    rows = parse_manifest(manifest.encode()).rows
    a, b = rows["a.png"], rows["b.png"]
    assert (a.label, b.label) == (None, None)
    assert [question.label for question in a.questions or ()] == ["number", "vehicle"]
    assert [(question.type, question.answers) for question in b.questions or ()] == [("yes/no", ["no"])]


def test_an_edit_to_a_value_changes_the_answer_that_the_manifest_says() -> None:
    line = b'{"file": "a.png", "question": "Is it night?", "answer": false, "becomes": {"weather=night": true}}'
    questions = parse_manifest(line).rows["a.png"].questions
    assert questions is not None
    (question,) = questions
    changed = question.after({"weather=night", "subject=car"})
    assert changed is not None
    assert (changed.before, changed.answers, changed.label) == (["no"], ["yes"], "yes/no")
    assert question.after({"weather=snow"}) is None
    assert question.asked.becomes == {}


def test_a_question_that_does_not_fit_names_its_line() -> None:
    with pytest.raises(InvalidInput, match=r"line 2 of the manifest.*none of its options"):
        parse_manifest(b"file,question,options,answer\na.png,What?,bus|car,van\n")
