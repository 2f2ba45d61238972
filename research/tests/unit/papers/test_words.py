"""The steps before the image are judged by the grammar: what is stated, lost, changed and invented."""

from __future__ import annotations

from gateway.methods.counterfactual import ACCEPTED, Change, Edit, Verdict
from gateway.methods.schedule import Proposal
from research.papers.words import SceneWords, outcomes, step_table, type_table
from tinyworld.objects.captions import read
from tinyworld.objects.proposals import rephrase
from tinyworld.objects.world import sample_scene

SCENE = sample_scene("final-test", 0).changed(label="bus", colour="red", weather="clear", time="day", companion="none")
CAPTION = "There is a red bus. It is night."
REFUSED = Verdict(False, "word diff", "")


def keyword(phrase: str) -> Proposal:
    return Proposal(Edit((Change("other", phrase, "", "", ""),), CAPTION, ""), 0, ACCEPTED)


def edit(factor: str, old: str, new: str, verdict: Verdict = ACCEPTED) -> Proposal:
    change = Change(factor, old, new, old, new)  # type: ignore[arg-type]
    return Proposal(Edit((change,), CAPTION, rephrase(CAPTION, old, new)), 0, verdict)


WORDS = SceneWords(
    SCENE,
    CAPTION,
    [keyword("red"), keyword("bus"), keyword("There"), keyword("green")],
    [
        edit("adjective", "red", "blue"),
        edit("weather", "night", "day"),
        edit("adjective", "night", "day", REFUSED),
        edit("adjective", "red bus", "blue truck", REFUSED),
        edit("adjective", "red", "nice"),
    ],
)


def test_each_step_is_judged_by_the_fields_of_the_scene() -> None:
    assert read(CAPTION) == {"label": "bus", "colour": "red", "time": "night"}
    found = outcomes([WORDS])

    def judged(step: str) -> list[tuple[bool | None, bool | None]]:
        return [(outcome.valid, outcome.invented) for outcome in found if outcome.step == step]

    captions = judged("captions")
    assert sum(valid is True for valid, _ in captions) == 2, "class and colour"
    assert [invented for _, invented in captions if invented is not None] == [False, False, True], "it is day"
    assert judged("keywords") == [(True, False), (False, False), (False, False), (False, True)]
    right, class_too, nothing = (True, False), (False, True), (False, False)
    assert judged("alternatives") == [right, right, right, class_too, nothing]
    assert judged("new captions") == [right, right, right, class_too, nothing]
    assert judged("… let through") == [right, right, nothing]
    assert "| … let through | 67 % (2/3;" in step_table(found)


def test_types_and_the_text_checks_stand_beside_the_papers_table() -> None:
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in type_table([WORDS]).splitlines()}
    assert rows["weather"][1:4] == ["100 % (1/1; 0–100)", "–", "–"]
    success, precision, recall = (cell.split(";")[0] for cell in rows["overall"][1:4])
    assert success == "40 % (2/5", "one is of another type, one changes two fields, one none"
    assert precision == "50 % (1/2", "one of the refused ones was right"
    assert recall == "50 % (1/2", "one that changes nothing was let through"
    assert rows["overall"][4].strip("| ") == "89 %; 97.2 %; 98.4 %"
    assert rows["adjective"][4].strip("| ") == "82 %; 92.9 %; 98.9 %"
