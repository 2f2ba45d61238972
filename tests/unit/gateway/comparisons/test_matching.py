"""Matching the source images of two jobs."""

from __future__ import annotations

import pytest

from gateway.comparisons.comparisons import MatchedSource, match_sources
from shared.problems import InvalidInput


def sources(*rows: tuple[str | None, str | None] | tuple[str | None, str | None, str]) -> list[MatchedSource]:
    """Source images of these digests, labels and groups, at positions 0, 10, 20, ..."""
    return [
        MatchedSource(10 * index, row[0], row[1], None, row[2] if len(row) > 2 else None)
        for index, row in enumerate(rows)
    ]


def test_images_match_by_pixels_and_label_in_any_order() -> None:
    matching = match_sources(sources(("a", "bus"), ("b", "car"), ("c", "car")), sources(("b", "car"), ("a", "bus")))
    assert matching.number.tolist() == [0, 1, -1]
    assert matching.other_number.tolist() == [1, 0]
    assert (matching.position, matching.other_position) == ([0, 10], [10, 0])
    assert (matching.only_this, matching.only_other, matching.relabelled) == (1, 0, 0)


def test_images_with_other_labels_are_counted_and_left_out() -> None:
    matching = match_sources(sources(("a", "bus"), ("b", "car")), sources(("a", "truck"), ("b", "car"), ("d", "car")))
    assert (matching.number.tolist(), matching.other_number.tolist()) == ([-1, 0], [-1, 0, -1])
    assert (matching.only_this, matching.only_other, matching.relabelled) == (0, 1, 1)


def test_equal_images_match_one_to_one() -> None:
    matching = match_sources(sources(("a", "bus"), ("a", "bus"), ("a", "bus")), sources(("a", "bus"), ("a", "bus")))
    assert matching.number.tolist() == [0, 1, -1]
    assert matching.only_this == 1


def test_unreadable_files_do_not_match() -> None:
    matching = match_sources(sources((None, "bus"), ("a", "bus")), sources((None, "bus"), ("a", "bus")))
    assert matching.number.tolist() == [-1, 0]
    assert (matching.only_this, matching.only_other, matching.relabelled) == (0, 0, 0)


def test_a_group_that_either_job_names_holds_for_both() -> None:
    matching = match_sources(
        sources(("a", "bus", "film"), ("b", "bus"), ("c", "bus")),
        sources(("a", "bus"), ("b", "bus", "film"), ("c", "bus")),
    )
    assert matching.group.tolist() == matching.other_group.tolist() == [0, 0, 1]


def test_other_groups_of_an_image_are_refused() -> None:
    with pytest.raises(InvalidInput, match="source image 10 into the groups 'one' and 'two'"):
        match_sources(sources(("a", "bus"), ("b", "bus", "one")), sources(("a", "bus"), ("b", "bus", "two")))
