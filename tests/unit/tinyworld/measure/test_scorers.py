"""The comparison of two scorers: changes of scores and verdicts, and what labels say of either."""

from __future__ import annotations

from tinyworld.judges.records import Record
from tinyworld.measure.scorers import ScoredTwice, lines


def image(place: int, scores: tuple[float, float], accepted: tuple[bool, bool], valid: bool | None) -> ScoredTwice:
    first, second = ({"structure": 0.5, "label": score} for score in scores)
    record = Record(
        id=f"{place:05d}",
        arm="edit",
        source=f"{place}-source.png",
        image=f"{place}.png",
        label="bus",
        field="weather",
        factor="weather",
        from_value="clear",
        to_value="snow",
        caption="A bus.",
        new_caption="A bus in the snow.",
        withheld=False,
        accepted=accepted[0],
        check="",
        scores=first,
        kept=True,
        shown=True,
        others=(),
        predicted={},
        weights="w",
    )
    return ScoredTwice(record, (first, second), accepted, valid)


def test_changed_scores_and_verdicts_are_counted() -> None:
    images = [image(0, (0.5, 0.4), (True, False), None), image(1, (0.5, 0.2), (True, True), None)]
    counted, label, unlabelled = lines(images)
    assert "50.0% (1 of 2" in counted
    assert label.split() == ["label", "changes", "by", "0.2000", "on", "average,", "0.3000", "at", "most"]
    assert unlabelled == "0 labelled valid, 0 invalid: too few"


def test_labels_tell_which_scorer_separates_better() -> None:
    valid = [image(place, (0.9, 0.1 + place / 100), (True, place % 2 == 0), True) for place in range(12)]
    invalid = [image(place, (0.1, 0.1 + place / 100), (False, place % 2 == 0), False) for place in range(12, 24)]
    *_, profile, other, area = lines([*valid, *invalid])
    assert "100.0% (12 of 12" in profile
    assert "0.0% (0 of 12" in profile
    assert "50.0% (6 of 12" in other
    assert area.split() == ["label", "AUROC", "1.000,", "other", "0.000", "on", "24"]
