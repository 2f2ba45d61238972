"""Text checks reject edits that would change the ground truth, or change nothing."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator_service.similarity import TextEmbedder
from gateway.methods.counterfactual import Change, Edit, Factor, MethodImage, Scores, TaskDescription, Verdict
from gateway.methods.similarity import check_texts
from gateway.methods.text_checks import check_caption, check_change, check_keyword, differing_part
from gateway.methods.words import content_words, names_class, occurrences, stem
from shared.media.images import encode
from shared.profiles.profile import load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import EmbedTextsReply, EmbedTextsRequest

BLANK = ImagePayload(png=encode(np.zeros((8, 8, 3), np.uint8)))
CAPTION = "A photo of a red bus in a city. It is a foggy night."
CLASSES = ("car", "bus", "traffic light")


def change(old: str, new: str, from_value: str = "", to_value: str = "", factor: Factor = "weather") -> Change:
    return Change(factor, old, new, from_value or old, to_value or new)


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("bus", "buses"), ("car", "cars"), ("fog", "foggy"), ("rain", "raining"), ("plane", "planes"),
        ("house", "houses"), ("sun", "sunny"), ("stripe", "striped"), ("puppy", "puppies"), ("night", "nightly"),
    ],
)  # fmt: skip
def test_stems_agree(word: str, other: str) -> None:
    assert stem(word) == stem(other)


@pytest.mark.parametrize(("word", "other"), [("car", "cart"), ("bus", "bush"), ("boat", "boar"), ("sun", "snow")])
def test_stems_differ(word: str, other: str) -> None:
    assert stem(word) != stem(other)


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
    ("proposed", "check"),
    [
        (change("foggy", "snowy", "fog", "snow"), None),
        (change("foggy", "misty", "fog", "fog"), "no change"),
        (change("in a city", "in the city", "city", "town"), "no change"),
        (change("night", "bus stop"), "class words"),
        (change("in a city", "next to cars"), "other class"),
        (change("in a city", "at a traffic light"), "other class"),
        (change("red", "black", factor="adjective"), None),
    ],
)
def test_changes(proposed: Change, check: str | None) -> None:
    refusal = check_change(proposed, "bus", ("car", "traffic light"))
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
    ],
)
def test_new_captions(new_caption: str, check: str | None) -> None:
    changes = (change("foggy", "snowy", "fog", "snow"),)
    refusal = check_caption(changes, CAPTION, new_caption, "bus", ("car", "traffic light"))
    assert (refusal.check if refusal else None) == check


def test_a_phrase_that_occurs_twice_is_replaced_once() -> None:
    caption = "A red bus is on a beach. There is also a red dog."
    new = "A blue bus is on a beach. There is also a red dog."
    assert check_caption((change("red", "blue", factor="adjective"),), caption, new, "bus", ()) is None


def test_a_new_phrase_may_hold_the_old_one() -> None:
    changes = (change("photo", "grainy photo", factor="domain"),)
    assert check_caption(changes, CAPTION, CAPTION.replace("photo", "grainy photo"), "bus", ()) is None


def test_a_caption_that_never_named_the_class_cannot_lose_it() -> None:
    changes = (change("foggy", "snowy"),)
    assert check_caption(changes, "A foggy street.", "A snowy street.", "bus", CLASSES) is None


class Embedder:
    """The shipped text embedder, with a note of each request."""

    def __init__(self) -> None:
        weights = load_profile("tiny").evaluator.text_embedder
        assert weights is not None
        self._model = TextEmbedder(weights, device="cpu")
        self.requests: list[list[str]] = []

    def embed_texts(self, request: EmbedTextsRequest) -> EmbedTextsReply:
        self.requests.append(request.texts)
        rows = [self._model.tokens(text) for text in request.texts]
        texts = [self._model.embed([row], self._model.padded_length(len(row)))[0].tolist() for row in rows]
        return EmbedTextsReply(texts=texts)


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder()


LONG_CAPTION = "A photo of a red bus in a city. It is a foggy night. There is also a dog."
LABELS = ("car", "bus", "truck", "boat")


def meant(
    embedder: Embedder,
    old: str,
    new: str,
    new_caption: str = "",
    truth: str | None = "bus",
    caption: str = LONG_CAPTION,
) -> tuple[Verdict, Scores]:
    edit = Edit((change(old, new),), caption, new_caption or caption.replace(old, new))
    task = TaskDescription("name the vehicle", LABELS)
    [verdict] = check_texts(embedder, MethodImage("", BLANK, truth), task, [edit], load_profile("tiny").text_thresholds)
    return verdict


@pytest.mark.parametrize(
    ("old", "new", "new_caption", "check"),
    [
        ("foggy", "snowy", "", ""),
        ("red bus", "blue bus", "", ""),
        ("dog", "bench", "", ""),
        ("in a city", "in a forest", "", ""),
        ("foggy", "hazy", "", "paraphrase"),
        ("red", "crimson", "", "paraphrase"),
        ("in a city", "downtown", "", "paraphrase"),
        ("a dog", "a lorry", "", "other class"),
        ("a dog", "a sailboat", "", "other class"),
        ("dog", "omnibus", "", "class words"),
        ("dog", "motor vehicle", "", "class words"),
        ("foggy", "snowy", LONG_CAPTION.replace("bus", "coach").replace("foggy", "snowy"), ""),
        ("foggy", "snowy", LONG_CAPTION.replace("bus", "vehicle").replace("foggy", "snowy"), "class kept"),
        ("foggy", "snowy", LONG_CAPTION.replace("bus", "bench").replace("foggy", "snowy"), "class kept"),
        ("foggy", "snowy", LONG_CAPTION.replace("dog", "lorry").replace("foggy", "snowy"), "other class"),
    ],
)
def test_edits_are_judged_by_what_they_mean(
    embedder: Embedder, old: str, new: str, new_caption: str, check: str
) -> None:
    verdict, scores = meant(embedder, old, new, new_caption)
    assert (verdict.check, verdict.accepted) == (check, not check), scores
    assert {"class_words", "class_before", "class_kept", "other_class", "paraphrase"} == set(scores)


@pytest.mark.parametrize("name", ["coach", "vehicle"])
def test_a_class_that_goes_by_another_name_may_not_go(embedder: Embedder, name: str) -> None:
    verdict, _ = meant(embedder, f"red {name}", "red bench", caption=LONG_CAPTION.replace("bus", name))
    assert verdict.check == "class words"


def test_without_ground_truth_no_class_may_be_touched(embedder: Embedder) -> None:
    assert meant(embedder, "red coach", "red bench", truth=None, caption=LONG_CAPTION.replace("bus", "coach"))[0].check
    assert meant(embedder, "foggy", "snowy", truth=None)[0].accepted


def test_all_edits_of_an_image_share_requests_and_class_names_come_first(embedder: Embedder) -> None:
    embedder.requests.clear()
    edits = [
        Edit((change("foggy", new),), LONG_CAPTION, LONG_CAPTION.replace("foggy", new))
        for new in ("snowy", "rainy", "hazy")
    ]
    task = TaskDescription("name the vehicle", LABELS)
    verdicts = check_texts(embedder, MethodImage("", BLANK, "bus"), task, edits, {})
    assert [verdict.accepted for verdict, _ in verdicts] == [True] * 3, "without thresholds only equal stems count"
    assert [embedder.requests[0], len(embedder.requests)] == [sorted(LABELS), 2]


def test_the_differing_part_of_phrases() -> None:
    assert differing_part("a Red bus", "a blue bus") == ("Red", "blue")
    assert differing_part("photo", "grainy photo") == ("", "grainy")
    assert differing_part("under a clear sky", "in clear weather") == ("under a clear sky", "in clear weather")


def test_content_words_leave_articles_and_prepositions_out() -> None:
    text = "It is a red bus at No. 5."
    assert [text[start:end] for start, end in content_words(text)] == ["red", "bus", "No", "5"]
