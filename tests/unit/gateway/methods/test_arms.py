"""Rows of proposals and null arms: ordinals, the null arm of an edit, seeds, lineage."""

from __future__ import annotations

from gateway.methods.counterfactual import Edit, Verdict
from gateway.methods.lineage import Exchange
from gateway.methods.schedule import Proposal, RenderedArm, accepted_edits, rows
from shared.schemas.base import ImagePayload

REFUSED = Verdict(False, "class words", "it touches the class")
UNLIKE = Verdict(False, "likeness", "the image is no longer like the source")


def exchange(reply: str) -> Exchange:
    return {"question": "perturb", "messages": [], "reply": reply, "temperature": 0.0, "seed": 1}


PROPOSALS = [
    Proposal(Edit((), "a car", "a red car"), 11, scores={"class_words": 0.1}, exchanges=(exchange("red"),)),
    Proposal(Edit((), "a car", "a bus"), 12, REFUSED, exchanges=(exchange("bus"),)),
    Proposal(Edit((), "a car", "a blue car"), 13),
]


def arm(name: str, pair: float, verdict: Verdict = UNLIKE) -> RenderedArm[float]:
    image = ImagePayload(png=name.encode())
    return RenderedArm(image, 9, verdict, {"likeness": pair}, pair, 4, image, {"self_fraction": pair})


ARMS = [arm("red", 0.8), arm("blue", 0.5, Verdict(True))]
NULLS = [arm("low", 0.5), arm("high", 0.8)]
ROWS = list(rows({"exchanges": []}, "a car", PROPOSALS, ARMS, NULLS))


def test_proposals_come_first_and_each_has_the_null_arm_of_its_pair() -> None:
    assert [(row.ordinal, row.arm, row.null_ordinal) for row in ROWS] == [
        (0, "edit", 4),
        (1, "edit", None),
        (2, "edit", 3),
        (3, "null", None),
        (4, "null", None),
    ]
    assert [row.image.png if row.image else None for row in ROWS] == [b"red", None, b"blue", b"low", b"high"]


def test_seeds_of_edits_are_their_proposals() -> None:
    assert [row.seed for row in ROWS] == [11, 12, 13, 9, 9]


def test_verdicts_and_scores_are_those_of_words_and_images() -> None:
    assert [row.verdict for row in ROWS] == [UNLIKE, REFUSED, Verdict(True), Verdict(True), Verdict(True)]
    assert ROWS[0].scores == {"class_words": 0.1, "likeness": 0.8}
    assert accepted_edits(PROPOSALS) == [PROPOSALS[0].edit, PROPOSALS[2].edit]


def test_an_edit_that_is_not_rendered_costs_no_evaluation() -> None:
    assert [row.evaluations for row in ROWS] == [4, 0, 4, 4, 4]
    assert [row.control for row in ROWS] == [row.image for row in ROWS]


def test_every_row_has_the_caption_and_a_record_of_its_own() -> None:
    assert {row.caption for row in ROWS} == {"a car"}
    assert ROWS[0].lineage == {"exchanges": [exchange("red")], "self_fraction": 0.8}
    assert ROWS[1].lineage == {"exchanges": [exchange("bus")]}
    assert ROWS[3].lineage == {"exchanges": [], "self_fraction": 0.5}


def test_an_edit_without_null_arm_is_refused_unless_it_is_compared_with_the_source() -> None:
    compared = [PROPOSALS[0]], [arm("red", 0.8, Verdict(True))]
    assert [row.verdict.check for row in rows({}, "a car", *compared, [])] == ["null arm"]
    assert [row.verdict for row in rows({}, "a car", *compared, None)] == [Verdict(True)]
