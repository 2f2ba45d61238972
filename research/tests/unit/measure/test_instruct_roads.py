"""Measuring the editor that follows instructions on driving scenes: what counts as kept, shown and unchanged."""

from __future__ import annotations

from research.datasets.instructed_pictures import WORDINGS
from research.judges.oracles.roads import READ
from research.judges.protection.domain import EditReading
from research.measure.instruct.roads import record_of, report, request_of


def test_edits_change_each_readable_look_in_turn() -> None:
    requests = [request_of(number) for number in range(len(READ))]
    assert [request.field for request, _ in requests] == list(READ)
    for request, instruction in requests:
        slots = [slot for slot in WORDINGS["roads"].slots.values() if slot.field == request.field]
        phrases = {phrase for slot in slots for phrase in slot.wordings[request.to_value].usual}
        assert any(phrase in instruction.lower() for phrase in phrases)


def test_only_what_the_judges_read_on_the_source_can_be_lost() -> None:
    request, instruction = request_of(0)
    facts = {name: request.facts[name] for name in READ}
    others = [name for name in READ if name != request.field]
    before = {**facts, others[0]: None}
    after = {**facts, others[0]: None, others[1]: None}
    things = (EditReading(False, (True, True, False)), EditReading(True, (True, False, False)))
    record = record_of(request, "edit", instruction, (before, after), things, evaluations=4)
    assert (record.there, record.kept, record.shown) == (2, 1, True)
    assert record.changed_besides == (others[1],)
    text = report([record, record.model_copy(update={"arm": "null", "kept": 2})])
    assert "50.0% (1 of 2" in text
    assert "100.0% (2 of 2" in text.split("null arms")[1]
