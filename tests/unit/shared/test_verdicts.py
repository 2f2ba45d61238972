"""One verdict per model and method: a pass only if no drop is left open."""

from __future__ import annotations

import pytest

from shared.schemas.effects import CellEffect, Estimate, Interval, Rate, Standing
from shared.schemas.metrics import DetectionMetrics, ExchangedClass, OriginalsCheck, OriginalsStanding
from shared.schemas.results import CheckCount, FlippedReviews, JobResults, MethodReviews
from shared.words.verdicts import (
    VerdictKind,
    by_severity,
    is_suspected,
    model_hints,
    not_testable_sentences,
    verdict_of,
    verdict_sentence,
)
from shared.words.wording import nothing_accepted
from tests.support.figures import effect, job_results, results


def cell(value: str, points: int, sources: int, standing: Standing | None = None) -> CellEffect:
    observed = effect(value, points, sources=sources)
    return observed.model_copy(update={"images_needed": 12, "standing": standing or observed.standing})


def job(*cells: CellEffect, accepted: int = 9) -> JobResults:
    return job_results(results("dillema", *cells), accepted=accepted)


def cell_with_interval(value: str, points: int, sources: int, low: int, high: int) -> CellEffect:
    """A tested cell with its interval in points, as the job's test gives it for so many lost images."""
    limits = Interval(low=low / 100, high=high / 100, level=0.95, kind="betting")
    return cell(value, points, sources).model_copy(update={"interval": limits})


TESTED = cell_with_interval("snow", -2, 20, -30, 10)
LOST, HELD = cell("night", -100, 8), cell("fog", -5, 8)


@pytest.mark.parametrize(
    ("figures", "kind"),
    [
        (job(TESTED, LOST), "not settled"),
        (job(LOST), "not settled"),
        (job(TESTED, HELD), "bounded"),
        (job(TESTED), "bounded"),
        (job(HELD), "too few images"),
        (job(TESTED, cell_with_interval("night", -50, 16, -78, -12)), "not settled"),
        (job(TESTED, cell_with_interval("night", -50, 12, -83, -3)), "not settled"),
        (job(TESTED, cell_with_interval("night", -33, 12, -71, 8)), "bounded"),
        (job(TESTED, cell_with_interval("night", -4, 900, -5, -2)), "bounded"),
        (job(TESTED, cell_with_interval("night", 50, 16, 12, 78)), "bounded"),
        (job(cell("night", -60, 20, "weakness"), LOST), "weakness"),
        (job(accepted=0), "nothing compared"),
    ],
    ids=[
        "open beside tested", "open alone", "5 points", "tested", "untested", "8 of 16 lost", "6 of 12 lost",
        "interval reaches 0", "certain but small", "gained", "weakness", "refused",
    ],
)  # fmt: skip
def test_a_suspected_drop_is_no_pass(figures: JobResults, kind: VerdictKind) -> None:
    """A green "No weakness found" stood above −100 points on 8 of 8 images, and above −50 on 16 among 10 cells."""
    assert verdict_of(figures, figures.results[0]).kind == kind


RATE = Rate(count=9, n=20, value=0.45, low=0.25, high=0.66)


@pytest.mark.parametrize(
    ("standing", "cells", "kind"),
    [
        ("unsound", [TESTED], "not testable"),
        ("unsound", [cell("night", -60, 20, "weakness")], "not testable"),
        ("open", [TESTED], "not testable"),
        ("open", [cell("night", -60, 20, "weakness")], "weakness"),
        ("open", [LOST], "not settled"),
        ("sound", [TESTED], "bounded"),
    ],
)
def test_a_model_that_is_not_right_on_the_originals_gets_no_verdict(
    standing: OriginalsStanding, cells: list[CellEffect], kind: VerdictKind
) -> None:
    """A model that was right on 0 % of the originals had "No weakness found in 15 tested cells"."""
    check = OriginalsCheck(right=RATE, chance=0.5, standing=standing, sentence="" if standing == "sound" else "Why.")
    figures = job_results(results("dillema", *cells).model_copy(update={"originals": check}))
    assert verdict_of(figures, figures.results[0]).kind == kind
    assert not_testable_sentences(figures) == (["`m` has no verdict. Why."] if kind == "not testable" else [])
    hinted = standing != "sound" and kind != "not testable"
    assert model_hints(figures) == (["`m`: Why."] if hinted else [])


def test_exchanged_classes_let_no_model_pass_and_findings_of_an_untestable_one_are_none() -> None:
    check = OriginalsCheck(
        right=RATE, chance=0.5, standing="sound", order=[ExchangedClass(predicted="a", meant="b")], sentence="Why."
    )
    figures = job_results(results("dillema", TESTED).model_copy(update={"originals": check}))
    assert verdict_of(figures, figures.results[0]).kind == "not testable"
    weak = results("dillema", cell("night", -60, 20, "weakness"))
    assert len(weak.findings) == 1
    unsound = check.model_copy(update={"standing": "unsound"})
    assert weak.model_copy(update={"originals": unsound}).findings == []


def test_a_detector_that_finds_nothing_is_not_told_to_bring_more_images() -> None:
    """Without ground truth there is no cell then, and the verdict was "too few images"."""
    check = OriginalsCheck(standing="open", only="nothing", sentence="It detects nothing.")
    figures = job_results(results("dillema").model_copy(update={"originals": check}))
    assert verdict_of(figures, figures.results[0]).kind == "not testable"
    few = job_results(results("dillema", cell("night", -10, 5)).model_copy(update={"originals": check}))
    assert verdict_of(few, few.results[0]).kind == "too few images"


def test_accepted_edits_whose_arms_are_all_refused_are_nothing_compared() -> None:
    """The verdict was "too few images", and the advice to bring more."""
    figures = job(accepted=9)
    (funnel,) = figures.funnels
    none = Rate(count=0, n=9, value=0.0, low=0.0, high=0.3)
    lost = funnel.model_copy(update={"counted": none, "lost_to_arm": [CheckCount(check="label", count=9)]})
    figures = figures.model_copy(update={"funnels": [lost]})
    assert verdict_of(figures, figures.results[0]).kind == "nothing compared"
    assert "label" in nothing_accepted(figures, "dillema")


def test_the_most_severe_verdict_has_a_weakness_or_else_lost_the_most_images() -> None:
    sound, small = results("dillema", TESTED), results("dillema", TESTED, cell("rain", -40, 5))
    lost, weak = results("dillema", TESTED, LOST), results("dillema", cell("night", -60, 20, "weakness"))
    for among, first in (
        ([sound, small, lost, weak], weak),
        ([sound, small, lost], lost),
        ([sound, small], small),
        ([sound, sound.model_copy()], sound),
    ):
        assert by_severity(job_results(*among), among)[0] is first
    assert by_severity(job_results(), []) == []


def test_a_verdict_in_words_names_its_first_weakness_or_what_is_ruled_out() -> None:
    weak = job(cell("night", -60, 20, "weakness"), cell("rain", -50, 20, "weakness"))
    assert in_words(weak) == "2 weaknesses, first: `bus` at night."
    known = TESTED.model_copy(update={"loss_limit": 0.261})
    ruled_out = "No tested change costs more than 27 points (95 % limit); 1 of 3 was not tested. Provisional: review "
    assert in_words(job(known, cell_with_interval("fog", 1, 20, -9, 9), HELD)).startswith(ruled_out)
    assert in_words(job(TESTED)).startswith(
        "No tested change costs more than 30 points (95 % limit); 1 of 1 was tested."
    )
    too_few = "Nothing was tested: too few images. A cell needs 12 images with an accepted edit; "
    assert in_words(job(HELD)) == f"{too_few}`bus` with weather changed to fog has the most, 8."
    assert in_words(job(accepted=0)) == "Nothing was compared."
    assert in_words(job(LOST)).startswith("Not settled: `bus` at night: −100 points on 8 images")


@pytest.mark.parametrize(
    ("limit", "reviewed", "valid", "passes"),
    [
        (0.08, 0, None, False),
        (0.08, 20, 0.9, True),
        (0.11, 20, 0.9, False),
        (0.08, 20, 0.7, False),
        (0.08, 3, 0.9, False),
    ],
    ids=["not reviewed", "small and reviewed", "large", "many invalid", "only lost images reviewed"],
)
def test_a_verdict_is_green_only_if_all_but_a_small_loss_is_ruled_out(
    limit: float, reviewed: int, valid: float | None, passes: bool
) -> None:
    """A green "No weakness found" stood where only drops of 62 to 88 points could have been seen."""
    share = None if valid is None else Estimate(value=valid, low=valid, high=1.0)
    flipped = FlippedReviews(model="m", reviewed=3, flipped=3, valid=None, of_valid=None)
    reviews = MethodReviews(
        method="dillema", accepted=reviewed, rejected=0, undecided=0, by_lot=reviewed, more=0, more_rejected=0,
        valid=share, valid_rejected=None, accepted_if_valid=None, accepted_if_invalid=None, flipped=[flipped],
        edit_shown=None, realism=None, graded=0,
    )  # fmt: skip
    at_97_5 = Interval(low=-limit - 0.005, high=0.0, level=0.95, kind="exact")
    tested = TESTED.model_copy(update={"loss_limit": limit, "interval": at_97_5})
    figures = job(tested).model_copy(update={"reviews": [reviews]})
    verdict = verdict_of(figures, figures.results[0])
    assert verdict.passes is passes
    never = figures.results[0].model_copy(update={"originals": OriginalsCheck(standing="sound", never=["bus"])})
    assert not verdict_of(figures, never).passes, "nothing can be lost of a class that is never recognised"
    more = cell("fog", -60, 20, "weakness").model_copy(update={"sentence": "Hallucinates more in fog."})
    detection = DetectionMetrics.model_construct(**{"hallucination_cells": [more]})  # type: ignore[arg-type]
    hallucinating = figures.results[0].model_copy(update={"detection": detection})
    assert not verdict_of(figures, hallucinating).passes, "no cell of recall shows it"
    assert model_hints(job_results(hallucinating)) == ["`m`: Hallucinates more in fog."]
    silent = figures.results[0].model_copy(update={"unanswered": {"counterfactual": 12}, "counterfactuals": 40})
    assert not verdict_of(figures, silent).passes, "what a model does not answer counts nowhere"
    assert model_hints(job_results(silent))[0].startswith("`m`: It gave no answer to 12 of 52")
    assert verdict.limit == pytest.approx((limit + 0.005) / valid if valid and reviewed > 3 else limit)
    assert ("Provisional" in verdict_sentence(verdict)) is not (valid is not None and reviewed > 3)


def in_words(figures: JobResults) -> str:
    return verdict_sentence(verdict_of(figures, figures.results[0]))


def test_the_unsettled_drop_that_lost_the_most_images_comes_first() -> None:
    drops = [cell("sunset", -100, 2), cell("night", -91, 11), cell("rain", -8, 10), cell("fog", -100, 1)]
    figures = job(TESTED, *drops)
    verdict = verdict_of(figures, figures.results[0])
    assert [drop.cell.value for drop in verdict.unsettled] == ["night", "sunset"]


@pytest.mark.parametrize("images", range(1, 12))
def test_noise_is_seldom_a_suspected_drop_of_few_images(images: int) -> None:
    """One lost image of 4 to 11 was suspected, so in ten such cells a sound model was "not settled" nearly always.

    Exactly, for a model that loses and gains one image in ten at random.
    """
    shares = {0: 1.0}  # of net losses
    for _ in range(images):
        following: dict[int, float] = {}
        for lost, share in shares.items():
            for step, of_step in ((1, 0.1), (-1, 0.1), (0, 0.8)):
                following[lost + step] = following.get(lost + step, 0.0) + share * of_step
        shares = following
    suspected = {lost for lost in range(images + 1) if is_suspected(-lost / images, None, images)}
    assert suspected == set(range(3 if images >= 8 else 2, images + 1))
    assert sum(shares[lost] for lost in suspected) < 0.1


@pytest.mark.parametrize(
    ("needed", "sources", "groups", "missing"),
    [(12, 8, None, 4), (12, 30, 8, 4), (12, 12, None, None), (None, 3, None, None)],
)
def test_the_images_that_an_effect_still_needs_count_groups(
    needed: int | None, sources: int, groups: int | None, missing: int | None
) -> None:
    drop = LOST.model_copy(update={"images_needed": needed, "sources": sources, "groups": groups})
    assert drop.images_missing == missing
