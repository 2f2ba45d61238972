"""Pairing edits with their null and sham arms: properties that hold for any rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kinds.rows import CounterfactualRow
from gateway.results.pairing import triples

ORDINALS = st.integers(0, 8)
CHECKS = st.sampled_from(["", "label", "structure"])
ROW = st.builds(
    CounterfactualRow,
    position=st.just(0),
    id=st.uuids().map(str),
    source_image_id=st.sampled_from(["a", "b"]),
    method=st.sampled_from(["lance", "dillema"]),
    ordinal=ORDINALS,
    arm=st.sampled_from(["edit", "null", "sham"]),
    null_ordinal=st.none() | ORDINALS,
    changes=st.just([]),
    rendered=st.just(True),
    accepted=st.booleans(),
    check=st.just(""),
    evaluations=st.none(),
    sham_ordinal=st.none() | ORDINALS,
    null_check=st.none() | CHECKS,
    lost_to=CHECKS,
)
ROWS = st.lists(ROW, max_size=25, unique_by=lambda row: (row.source_image_id, row.method, row.ordinal))


@pytest.mark.slow
@given(ROWS)
def test_every_edit_comes_once_with_arms_of_its_own_source_method_and_kind(rows: list[CounterfactualRow]) -> None:
    paired = list(triples(rows))
    assert [triple.edit for triple in paired] == [row for row in rows if row.arm == "edit"]
    for triple in paired:
        edit = triple.edit
        for arm, ordinal, kind in ((triple.null, edit.null_ordinal, "null"), (triple.sham, edit.sham_ordinal, "sham")):
            places = {(row.source_image_id, row.method, row.ordinal, row.arm) for row in rows}
            assert (arm is not None) == ((edit.source_image_id, edit.method, ordinal, kind) in places)
            if arm is not None:
                place = (arm.source_image_id, arm.method, arm.ordinal, arm.arm)
                assert place == (edit.source_image_id, edit.method, ordinal, kind)


@pytest.mark.slow
@given(ROWS)
def test_the_reference_is_the_sham_arm_or_else_what_null_is(rows: list[CounterfactualRow]) -> None:
    answers = {name: name for row in rows for name in (row.id, row.source_image_id)}
    for triple in triples(rows):
        compared = triple.predictions(answers)
        assert compared.counterfactual == triple.edit.id
        assert compared.null == (
            triple.original if triple.edit.null_ordinal is None else triple.null and triple.null.id
        )
        if triple.edit.sham_ordinal is None:
            assert compared.reference == compared.null
        else:
            assert compared.reference == (triple.sham and triple.sham.id)


@given(ROW)
def test_a_pair_counts_if_and_only_if_both_of_its_arms_are_accepted(row: CounterfactualRow) -> None:
    assert row.counted == (row.accepted and row.lost_to == "")
