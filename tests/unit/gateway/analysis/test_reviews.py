"""Estimates from reviews, on populations of known validity."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.analysis.effects import Differences
from gateway.analysis.findings import Checked, assess
from gateway.analysis.reviews import (
    JudgeScores,
    OwnSample,
    RandomSample,
    Reviewed,
    Tally,
    check_errors,
    estimate,
    valid_counts,
)
from gateway.analysis.validity import Screened
from shared.schemas.effects import Cell, CheckErrors

CELL = Cell(label="bus", factor="weather", value="night", direction="to")


def sample(valid: int, invalid: int) -> RandomSample:
    """Of that many source images."""
    return RandomSample(np.repeat([True, False], [valid, invalid]), np.arange(valid + invalid))


def test_what_people_saw_of_every_picture_is_certain() -> None:
    counts = valid_counts(Tally(valid=17, invalid=3), None, np.random.default_rng(1))
    assert np.unique(counts).tolist() == [17]
    rate = estimate(counts, 20)
    assert rate is not None
    assert (rate.low, rate.value, rate.high) == (0.85, 0.85, 0.85)


def test_without_a_sample_the_others_may_be_anything() -> None:
    rate = estimate(valid_counts(Tally(valid=10, open=90), None, np.random.default_rng(1)), 100)
    assert rate is not None
    assert rate.low < 0.11
    assert rate.high > 0.99


def test_failures_prioritised_for_review_are_excluded_from_the_estimate() -> None:
    """Of 200 accepted, 40 flipped and were all reviewed: half are invalid. A random 25 of the others: all valid."""
    reviewed = Reviewed({("", False): sample(25, 0)}, {}, (Tally(valid=25, open=135), Tally(valid=20, invalid=20)))
    unflipped, flipped = reviewed.draw_valid(reviewed.whole, seed=1)
    assert np.unique(flipped).tolist() == [20]
    whole = estimate(unflipped + flipped, 200)
    assert whole is not None
    assert 0.8 < whole.low < whole.value < whole.high <= 0.9, "not the 69 % of all that were reviewed"


def test_a_cell_has_its_own_pictures_and_those_of_its_factor() -> None:
    samples = {
        ("", True): sample(40, 0),
        ("", False): sample(1, 0),
        ("weather", True): sample(2, 18),
        ("weather", False): sample(1, 0),
    }
    many = Reviewed(samples, {CELL: (Tally(), Tally(valid=1, open=30))}, (Tally(), Tally()))
    few = Reviewed({**samples, ("weather", True): sample(0, 9)}, many.cells, many.whole)
    assert np.median(many.shares(CELL, 1)) < 0.25, "21 reviewed of its factor say more than those of all"
    assert np.median(few.shares(CELL, 1)) > 0.95
    assert np.all(np.diff(many.shares(CELL, 1)) >= 0)


def test_a_class_has_its_own_sample_where_that_is_large_enough() -> None:
    samples = {("weather", True): sample(40, 0), ("weather", False): sample(20, 0)}
    tallies = {CELL: (Tally(), Tally(open=30))}
    pools: list[tuple[str, bool]] = []
    for invalid in (28, 30):
        classes = {("bus", True): sample(0, invalid), ("car", True): sample(90, 0)}
        reviewed = Reviewed(samples, tallies, (Tally(), Tally()), None, classes)
        pools.append((reviewed.pool(CELL), bool(np.median(reviewed.shares(CELL, 1)) > 0.5)))
    assert pools == [("factor", True), ("class", False)]
    all_reviewed = Reviewed({}, {CELL: (Tally(), Tally(valid=12))}, (Tally(), Tally()))
    assert all_reviewed.pool(CELL) == "class"


def test_a_finding_whose_pictures_were_all_seen_is_not_provisional() -> None:
    cells = {CELL: Differences(np.arange(40), np.repeat([-1.0, 0.0], [32, 8]), np.zeros(40), 40)}
    fully_reviewed = Reviewed({}, {CELL: (Tally(valid=8), Tally(valid=30, invalid=2))}, (Tally(), Tally()))
    unseen = Reviewed({}, {CELL: (Tally(open=8), Tally(open=32))}, (Tally(), Tally()))
    sound, open_ = (assess(cells, 1, reviewed)[0] for reviewed in (fully_reviewed, unseen))
    assert sound.among_valid is not None
    assert (sound.among_valid.valid, sound.among_valid.source, sound.provisional) == (0.95, "reviews", False)
    assert open_.provisional


def with_own(valid: int, invalid: int, changed: int = 30) -> Reviewed:
    """A cell that loses 30 of 40 images. Those of other cells are valid, and so are nearly all of the reviewed ones."""
    samples = {("", True): sample(60, 1), ("", False): sample(60, 1)}
    cells = {CELL: (Tally(open=10), Tally(valid=valid, invalid=invalid, open=30 - valid - invalid))}
    return Reviewed(samples, cells, (Tally(), Tally()), own={CELL: OwnSample(sample(valid, invalid), changed)})


CELLS = {CELL: Differences(np.arange(40), np.repeat([-1.0, 0.0], [30, 10]), np.zeros(40), 40)}


@pytest.mark.parametrize(
    ("valid", "invalid", "pool", "stands"),
    [(0, 0, "all", True), (0, 1, "cell", False), (0, 10, "cell", False), (5, 4, "all", True), (10, 0, "cell", True)],
)
def test_a_findings_own_images_replace_those_of_other_cells(valid: int, invalid: int, pool: str, stands: bool) -> None:
    """From 10 on, or at once if most of them are invalid; with 10 of 10 invalid a finding stood."""
    (effect,) = assess(CELLS, 1, with_own(valid, invalid))
    assert effect.among_valid is not None
    assert (effect.among_valid.pool, effect.provisional) == (pool, not stands)


@pytest.mark.parametrize("known", ["checks", "reviews"])
@pytest.mark.parametrize(
    ("valid", "invalid", "stands"), [(0, 0, False), (9, 0, False), (10, 0, True), (4, 6, False), (0, 1, False)]
)
def test_an_improvement_stands_only_once_its_own_images_are_seen(
    known: str, valid: int, invalid: int, stands: bool
) -> None:
    """The errors of the checks are those of edits: arms that lost the class stood as improvements by valid edits."""
    gains = {CELL: Differences(np.arange(40), np.repeat([1.0, 0.0], [30, 10]), np.zeros(40), 40)}
    reviewed = with_own(valid, invalid)
    errors = CheckErrors(valid=300, valid_accepted=270, invalid=300, invalid_accepted=3)
    screened = {CELL: Screened(np.arange(50), np.arange(50) < 45)}
    by_checks = Checked({"weather": errors}, screened, reviewed=reviewed)
    (effect,) = assess(gains, 1, by_checks if known == "checks" else reviewed)
    assert (effect.standing, effect.provisional) == ("improvement", not stands)
    (loss,) = assess(CELLS, 1, by_checks)
    assert loss.provisional == (2 * valid < valid + invalid), "a weakness needs no own images"


def test_all_own_images_decide_where_there_are_fewer_than_ten() -> None:
    assert with_own(4, 2, changed=6).pool(CELL) == "cell"
    assert with_own(4, 2, changed=7).pool(CELL) == "all"


@pytest.mark.parametrize(("valid", "invalid", "stands"), [(0, 0, True), (10, 0, True), (1, 2, False), (0, 10, False)])
def test_a_findings_own_images_decide_where_the_errors_of_the_checks_are_known(
    valid: int, invalid: int, stands: bool
) -> None:
    errors = CheckErrors(valid=300, valid_accepted=290, invalid=300, invalid_accepted=3)
    screened = {CELL: Screened(np.arange(40), np.ones(40, bool))}
    checked = Checked({"weather": errors}, screened, reviewed=with_own(valid, invalid))
    (effect,) = assess(CELLS, 1, checked)
    assert effect.provisional == (not stands)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    ("valid", "invalid", "stands"), [(10, 0, True), (18, 12, True), (14, 16, False), (5, 0, False), (0, 1, False)]
)
def test_a_finding_stands_on_its_own_images_alone(sign: int, valid: int, invalid: int, stands: bool) -> None:
    """No errors of the checks and no random sample are known. An invalid image that was not lost made no loss."""
    correct = np.repeat([float(sign), 0.0], [30, 10])
    cells = {CELL: Differences(np.arange(40), correct, np.zeros(40), 40, null_accuracy=0.95)}
    (effect,) = assess(cells, 1, Checked({}, {}, reviewed=with_own(valid, invalid)))
    assert effect.provisional == (not stands)
    assert effect.reviews_needed == 10
    assert effect.selected_interval is not None
    if valid + invalid >= 10:
        assert effect.among_valid is not None
        assert (effect.among_valid.pool, effect.among_valid.valid) == ("cell", valid / (valid + invalid))
        mirrored = abs(effect.among_valid.interval.high if sign < 0 else effect.among_valid.interval.low)
        assert mirrored <= abs(effect.selected_interval.high if sign < 0 else effect.selected_interval.low)
    else:
        assert effect.among_valid is None or not effect.among_valid.stands


@pytest.mark.parametrize(("lost", "kept"), [(14, 0), (13, 3), (35, 5), (40, 60)])
def test_so_many_valid_images_as_are_asked_for_let_a_finding_stand(lost: int, kept: int) -> None:
    correct = np.repeat([-1.0, 0.0], [lost, kept])
    cells = {CELL: Differences(np.arange(len(correct)), correct, correct, len(correct), null_accuracy=1.0)}
    needed = assess(cells, 1)[0].reviews_needed
    assert needed is not None
    assert 10 <= needed <= lost
    for n in (needed, needed - 1):
        (effect,) = assess(cells, 1, Checked({}, {}, reviewed=with_own(n, 0, changed=lost)))
        assert effect.provisional == (n < needed)


@pytest.mark.slow
@pytest.mark.parametrize("valid_share", [0.6, 0.95])
def test_intervals_hold_the_truth_of_drawn_populations(valid_share: float) -> None:
    """400 edits of 200 sources; siblings share their fate half of the time. A random 20 or 60 of each verdict."""
    covered: list[bool] = []
    for seed in range(120):
        random = np.random.default_rng(seed)
        source = np.repeat(np.arange(200), 2)
        independent, shared = random.random(400) < valid_share, (random.random(200) < valid_share)[source]
        valid = np.where(random.random(400) < 0.5, shared, independent)
        accepted = random.random(400) < np.where(valid, 0.9, 0.3)
        counts = []
        for verdict in (True, False):
            members = random.permutation(np.flatnonzero(accepted == verdict))
            sampled, unreviewed = np.split(members, [random.choice([20, 60])])
            tally = Tally(int(valid[sampled].sum()), int((~valid[sampled]).sum()), len(unreviewed))
            counts.append(valid_counts(tally, RandomSample(valid[sampled], source[sampled]), random))
        rate = estimate(counts[0], accepted.sum())
        assert rate is not None
        covered.append(rate.low <= valid[accepted].mean() <= rate.high)
        right, wrong = check_errors(counts[0], int(accepted.sum()), counts[1], int((~accepted).sum()))
        covered += [right.low <= 0.9 <= right.high, wrong.low <= 0.3 <= wrong.high]
    assert np.mean(covered) > 0.93


@pytest.mark.parametrize("wrong", [0.05, 0.5])
def test_a_judge_of_the_others_narrows_the_valid_share_if_it_is_right_and_misleads_in_no_case(wrong: float) -> None:
    """40 of 300 reviewed; the judge says yes too often, or knows nothing."""
    covered, widths = [], {True: 0.0, False: 0.0}
    for seed in range(60):
        random = np.random.default_rng(seed)
        valid = random.random(300) < 0.7
        scores = np.where((random.random(300) < wrong) & ~valid, 1.0, valid * 0.8)
        if wrong == 0.5:
            scores = random.random(300)
        judged = JudgeScores(scores[:40], scores[40:], np.arange(40, 300))
        tally = Tally(int(valid[:40].sum()), int((~valid[:40]).sum()), 260)
        for known in (True, False):
            reviewed = RandomSample(valid[:40], np.arange(40), judged if known else None)
            share = estimate(valid_counts(tally, reviewed, random), 300)
            assert share is not None
            widths[known] += share.high - share.low
            if known:
                covered.append(share.low <= valid.mean() <= share.high)
    assert np.mean(covered) >= 0.9, "of 60"
    assert widths[True] < (0.75 if wrong < 0.5 else 1.05) * widths[False]
