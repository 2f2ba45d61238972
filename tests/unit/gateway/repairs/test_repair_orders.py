"""Training and test images of a repair never overlap, however images repeat within a job."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.repairs.orders import Original, RenderedImage, order_of, split_sources
from shared.problems import InvalidInput
from shared.schemas.repairs import RepairOrder, RepairRequest

LABELS = ("car", "bus")
VALUES = ("night", "snow", "fog")


def digest(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def rows(picks: list[tuple[int, int, str]], sources: int) -> tuple[list[Original], list[RenderedImage]]:
    """`picks`: source, image and value; images below `sources` are equal to a source image."""
    originals = [Original(digest(number), LABELS[number % 2]) for number in range(sources)]
    rendered = [
        RenderedImage(digest(image), digest(source), "m", False, ("weather",), (value,))
        for source, image, value in picks
    ]
    return originals, rendered


@pytest.mark.slow
@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 59), st.integers(0, 4_000), st.sampled_from(VALUES)), min_size=120, max_size=200),
    st.integers(0, 3),
    st.sampled_from([0.3, 0.5, 0.7]),
)
def test_no_image_and_no_equal_one_is_on_both_sides(picks: list[tuple[int, int, str]], seed: int, share: float) -> None:
    originals, counterfactuals = rows(picks, 60)
    try:
        order = order_of(
            "a", "b", RepairRequest(model="m", seed=seed, held_out=share), "", None, originals, counterfactuals
        )
    except InvalidInput:  # where so much is shared that too few groups remain
        return
    trained = [*order.originals, *order.counterfactuals, *order.null_arms]
    touched = {name for example in trained for name in (example.image, example.source)}
    judged = {name for example in order.judged for name in (example.image, example.source)}
    assert not touched & judged
    assert {example.source for example in trained} | {example.source for example in order.judged} <= {
        row.image for row in originals
    }
    assert len(order.originals) + sum(example.set == "originals" for example in order.judged) == 60
    untrained = set(order.values_not_trained_on)
    assert {example.value in untrained for example in order.judged if example.set == "counterfactuals"} <= {False}
    assert {example.value in untrained for example in order.judged if example.set == "values not trained on"} <= {True}


def test_sources_that_share_an_image_stay_together() -> None:
    originals, counterfactuals = rows([(0, 100, "night"), (2, 100, "night"), (4, 2, "snow")], 40)
    truths = {original.image: original for original in originals}
    for seed in range(20):
        held_out = split_sources(truths, counterfactuals, 0.5, seed)
        assert len({digest(number) in held_out for number in (0, 2, 4)}) == 1


def test_the_split_is_by_class_and_the_same_every_time() -> None:
    originals, counterfactuals = rows([(number, 1_000 + number, "night") for number in range(40)], 40)
    truths = {original.image: original for original in originals}
    held_out = split_sources(truths, counterfactuals, 0.5, 3)
    assert held_out == split_sources(truths, list(reversed(counterfactuals)), 0.5, 3)
    for label in LABELS:
        assert sum(truths[name].label == label for name in held_out) == 10
    assert held_out != split_sources(truths, counterfactuals, 0.5, 4)


def test_an_order_with_a_leak_cannot_be_written_or_read() -> None:
    originals, counterfactuals = rows([(number, 1_000 + number, VALUES[number % 2]) for number in range(60)], 60)
    order = order_of("a", "b", RepairRequest(model="m"), "", None, originals, counterfactuals)
    sent = order.model_dump(mode="json")
    stolen = sent["counterfactuals"][0]["image"]
    sent["judged"][0]["image"] = stolen
    with pytest.raises(ValidationError, match=stolen):
        RepairOrder.model_validate(sent)


def test_one_picture_under_two_labels_is_refused() -> None:
    originals, counterfactuals = rows([(number, 1_000 + number, "night") for number in range(40)], 40)
    with pytest.raises(InvalidInput, match="is labelled 'car' and 'bus'"):
        order_of(
            "a", "b", RepairRequest(model="m"), "", None, [*originals, Original(digest(0), "bus")], counterfactuals
        )


@settings(max_examples=30)
@given(st.lists(st.integers(0, 39), min_size=60, max_size=60), st.integers(0, 3))
def test_images_of_one_mask_stay_together_and_masks_go_along(masks: list[int], seed: int) -> None:
    originals = [Original(digest(number), "", digest(9_000 + mask)) for number, mask in enumerate(masks)]
    _, counterfactuals = rows([(number, 1_000 + number, VALUES[number % 3]) for number in range(60)], 60)
    request = RepairRequest(model="m", seed=seed)
    try:
        order = order_of("a", "b", request, "", None, originals, counterfactuals, ["road", "sky"], "segmentation")
    except InvalidInput:  # where so many share a mask that too few groups remain
        return
    assert (order.kind, order.classes) == ("segmentation", ["road", "sky"])
    trained, judged = [*order.originals, *order.counterfactuals], order.judged
    assert not {example.mask for example in trained} & {example.mask for example in judged}
    of_source = {original.image: original.mask for original in originals}
    assert all((example.label, example.mask) == ("", of_source[example.source]) for example in [*trained, *judged])


def test_one_picture_under_two_masks_is_refused() -> None:
    originals = [Original(digest(number), "", digest(9_000 + number)) for number in range(40)]
    _, counterfactuals = rows([(number, 1_000 + number, "night") for number in range(40)], 40)
    again = Original(digest(0), "", digest(9_999))
    with pytest.raises(InvalidInput, match="has two masks"):
        order_of(
            "a", "b", RepairRequest(model="m"), "", None, [*originals, again], counterfactuals, classes=["road", "sky"]
        )
