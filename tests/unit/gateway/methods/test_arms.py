"""Rows of proposals, null arms and sham arms: ordinals, the arms of an edit, their checks, seeds, lineage."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.methods.arms import RenderedArm, ShamArms, compare_arms, rows
from gateway.methods.checks import NOT_FINITE, judge, judge_arm
from gateway.methods.counterfactual import Change, Edit, Exchange, Factor, Verdict
from gateway.methods.schedule import Proposal, accepted_edits
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
    assert [row.verdict for row in ROWS] == [UNLIKE, REFUSED, Verdict(True), UNLIKE, UNLIKE]
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


LIMITS = {
    "label": {"default": 0.5, "domain": 0.1},
    "structure": {"default": 0.2},
    "shapes": {"default": 0.5},
    "caption": {"default": 0.9},
    "fit": {"default": 0.9},
    "direction": {"default": 0.9},
}


def edit(factor: Factor) -> Edit:
    return Edit((Change(factor, "by day", "at night", "day", "night"),), "a car by day", "a car at night")


def scored(pair: float, verdict: Verdict = Verdict(True), **scores: float) -> RenderedArm[float]:  # noqa: B008
    image = None if verdict is NOT_FINITE else ImagePayload(png=b"png")
    return RenderedArm(image, 9, verdict, {"label_margin": 1.0, **scores}, pair, 4)


def test_an_arm_is_held_to_class_and_shapes_at_the_thresholds_of_its_edit_and_to_nothing_else() -> None:
    weather, domain = edit("weather"), edit("domain")
    scores = {"label": 0.6, "label_margin": 0.2, "structure": 0.3, "caption": -1.0, "fit": -1.0, "direction": -1.0}
    assert judge_arm(scores, weather, LIMITS).accepted
    assert judge_arm(scores | {"label": 0.3}, weather, LIMITS).check == "label"
    assert judge_arm(scores | {"label": 0.3}, domain, LIMITS).accepted
    assert judge_arm(scores | {"label_margin": -0.1}, domain, LIMITS).check == "label"
    assert judge_arm(scores | {"structure": 0.1}, domain, LIMITS).check == "structure"
    assert judge_arm(scores | {"structure": 0.1}, domain, LIMITS, ("label", "shapes")).accepted, "its edit is not asked"
    assert judge_arm(scores | {"shapes": 0.4}, domain, LIMITS).check == "shapes"


def test_edits_that_share_a_null_arm_are_judged_with_it_one_by_one() -> None:
    edits = [edit("weather"), edit("domain"), edit("domain")]
    arms = [scored(0.5), scored(0.5), scored(0.8)]
    nulls = [scored(0.5, label=0.3), scored(0.8, Verdict(False, "protected", "it moved"), label=0.9)]
    compared = compare_arms(edits, arms, nulls, None, LIMITS)
    assert [arm.null_check for arm in compared.edits] == ["label", "", "protected"]
    assert [arm.sham_check for arm in compared.edits] == [None, None, None]
    assert all(arm.verdict.accepted for arm in compared.edits), "the edit keeps its own verdict"


def test_sham_arms_come_last_and_one_that_is_not_finite_leaves_its_check_alone() -> None:
    paraphrase = Edit((), "a car by day", "a car in daylight")
    edits, arms = [edit("weather")] * 2, [scored(0.5), scored(0.8)]
    shams = ShamArms(paraphrase, [scored(0.5, label=0.9), scored(0.8, NOT_FINITE)])
    compared = compare_arms(edits, arms, [scored(0.5, label=0.3), scored(0.8, label=0.9)], shams, LIMITS)
    all_rows = list(rows({}, "a car by day", [Proposal(each, 1) for each in edits], *compared))
    assert [(row.arm, row.null_ordinal, row.sham_ordinal) for row in all_rows] == [
        ("edit", 2, 4),
        ("edit", 3, None),
        ("null", None, None),
        ("null", None, None),
        ("sham", None, None),
    ]
    assert [(row.null_check, row.sham_check) for row in all_rows[:2]] == [("label", ""), ("", "not finite")]
    assert all_rows[-1].edit == paraphrase


@given(
    scores=st.fixed_dictionaries({name: st.floats(-1, 1) for name in ("label", "label_margin", "structure", "shapes")}),
    factor=st.sampled_from(["weather", "domain"]),
)
def test_equal_images_in_both_arms_fail_the_same_checks(scores: dict[str, float], factor: Factor) -> None:
    verdict = judge(scores, edit(factor), LIMITS, ("structure", "label", "shapes"))
    assert judge_arm(scores, edit(factor), LIMITS).check == verdict.check
