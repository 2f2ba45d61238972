"""Composition: the object's pixels stay, nothing else changes, and dishonest pastes are refused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffusion_service.editors.compose import (
    MOST_FEATHER,
    compose,
    covering,
    cut_out,
    object_of,
    place,
    refusal,
    without,
)
from shared.media.images import Pixels
from shared.media.regions import Mask
from shared.schemas.diffusion import Composition, Place

PLACES: list[Place | None] = [None, "left", "right", "top", "bottom", "middle"]


@dataclass(frozen=True, slots=True)
class Cut:
    """A source of noise with an object, and a background of one colour."""

    source: Pixels
    mask: Mask
    background: Pixels


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    """An elliptical object, perhaps cut by the frame, in an image of 24 to 90 pixels a side."""
    height, width = draw(st.integers(24, 90)), draw(st.integers(24, 90))
    y, x = draw(st.floats(0, 1)) * height, draw(st.floats(0, 1)) * width
    down, across = draw(st.floats(0.12, 0.4)) * height, draw(st.floats(0.12, 0.4)) * width
    rows, columns = np.mgrid[:height, :width]
    mask = ((rows - y) / down) ** 2 + ((columns - x) / across) ** 2 <= 1
    source = np.random.default_rng(3).integers(0, 200, (height, width, 3)).astype(np.uint8)
    return Cut(source, object_of(mask), np.full((height, width, 3), 230, np.uint8))


compositions = st.builds(
    Composition,
    scale=st.sampled_from([0.5, 0.8, 1.0, 1.3, 2.0]),
    place=st.sampled_from(PLACES),
    mirrored=st.booleans(),
)


@given(cuts(), compositions)
def test_outside_the_placed_object_the_background_is_unchanged(cut: Cut, composition: Composition) -> None:
    image = compose(cut.source, cut.mask, cut.background, composition)
    if isinstance(image, str):
        return
    placed = place(cut_out(cut.source, cut.mask), composition, cut.mask.shape)
    assert not isinstance(placed, str)
    left, top, right, bottom = placed.box
    assert 0 <= left < right <= cut.mask.shape[1]
    assert 0 <= top < bottom <= cut.mask.shape[0]
    beside = np.ones(cut.mask.shape, np.bool_)
    beside[top:bottom, left:right] = placed.alpha == 0
    assert (image[beside] == 230).all()


@given(cuts(), st.sampled_from(PLACES), st.booleans())
def test_an_object_that_is_not_scaled_keeps_its_pixels_inside_the_feather(
    cut: Cut, where: Place | None, mirrored: bool
) -> None:
    composition = Composition(place=where, mirrored=mirrored)
    image = compose(cut.source, cut.mask, cut.background, composition)
    if isinstance(image, str):
        return
    original = cut_out(cut.source, cut.mask)
    placed = place(original, composition, cut.mask.shape)
    assert not isinstance(placed, str)
    left, top, right, bottom = placed.box
    whole = placed.alpha == 1
    expected = original.colours[:, ::-1] if mirrored else original.colours
    assert np.array_equal(image[top:bottom, left:right][whole], expected[whole])


@given(cuts())
def test_the_null_arm_is_the_source_but_for_the_objects_surroundings(cut: Cut) -> None:
    background = without(cut.source, cut.mask)
    image = compose(cut.source, cut.mask, background, Composition())
    assert not isinstance(image, str), "an object at its own place is never refused"
    opaque = cut_out(cut.source, cut.mask).alpha == 1
    left, top, right, bottom = cut_out(cut.source, cut.mask).box
    assert np.array_equal(image[top:bottom, left:right][opaque], cut.source[top:bottom, left:right][opaque])
    far = np.ones(cut.mask.shape, np.bool_)
    reach = max(1, round(5 / 128 * min(cut.mask.shape)))
    far[max(0, top - reach) : bottom + reach, max(0, left - reach) : right + reach] = False
    assert np.array_equal(image[far], cut.source[far])


def striped(height: int = 64, width: int = 96) -> Pixels:
    """Sky, horizon and ground: rows of equal colour."""
    return np.repeat(np.linspace(0, 255, height).astype(np.uint8)[:, None, None], width, axis=1).repeat(3, axis=2)


def square(top: int, left: int, side: int = 20, size: tuple[int, int] = (64, 96)) -> Mask:
    mask = np.zeros(size, np.bool_)
    mask[top : top + side, left : left + side] = True
    return mask


def test_a_hole_is_filled_by_what_continues_beside_it() -> None:
    source = striped()
    mask = square(20, 40)
    painted = source.copy()
    painted[mask] = (255, 0, 0)
    assert np.abs(without(painted, mask).astype(int) - source).max() <= 1


def test_a_hole_over_the_whole_width_is_filled_too() -> None:
    mask = np.zeros((64, 96), np.bool_)
    mask[20:40] = True
    painted = striped()
    painted[mask] = (255, 0, 0)
    filled = without(painted, mask)
    assert (filled[30].astype(int)[:, 0] - filled[30].astype(int)[:, 1] < 60).all(), "the red is gone"
    assert np.array_equal(without(painted, np.ones((64, 96), np.bool_)), painted), "nothing to fill it from"


@pytest.mark.parametrize(
    ("composition", "fits"),
    [
        (Composition(place="right"), False),
        (Composition(mirrored=True), False),
        (Composition(scale=0.5), False),
        (Composition(), True),
    ],
)
def test_an_object_that_the_frame_cuts_stays_at_the_frame(composition: Composition, fits: bool) -> None:
    """The object touches the left edge, and elsewhere its straight cut would show."""
    source = striped()
    image = compose(source, square(20, 0), source, composition)
    assert isinstance(image, str) is not fits


def test_an_object_stands_on_its_ground_at_any_scale() -> None:
    cut = cut_out(striped(), square(30, 40))
    for scale in (0.5, 1.5):
        placed = place(cut, Composition(scale=scale), (64, 96))
        assert not isinstance(placed, str)
        left, _, right, bottom = placed.box
        assert bottom == 50
        assert (left + right) / 2 == pytest.approx(50, abs=1)
    assert isinstance(place(cut, Composition(scale=4), (64, 96)), str), "it would not fit"


def test_a_place_where_the_object_is_already_is_refused() -> None:
    assert isinstance(place(cut_out(striped(), square(22, 4)), Composition(place="left"), (64, 96)), str)


def test_specks_and_small_pieces_are_no_part_of_the_object() -> None:
    mask = square(20, 40)
    mask[0, 0] = True
    mask[2:6, 80:84] = True
    assert np.array_equal(object_of(mask), square(20, 40))
    assert refusal(object_of(np.zeros((64, 96), np.bool_)))
    assert refusal(np.ones((64, 96), np.bool_))
    assert not refusal(square(20, 40))


@given(st.integers(4, 80), st.integers(4, 80), st.integers(4, 80), st.integers(4, 80))
def test_a_background_of_any_shape_covers_the_source(height: int, width: int, rows: int, columns: int) -> None:
    covered = covering(np.full((height, width, 3), 77, np.uint8), (rows, columns))
    assert covered.shape == (rows, columns, 3)
    assert (covered == 77).all()


WIDTHS = {1: 300, 3: 600, 8: 900, 20: 1200}  # pixels of a part: its left


def photograph() -> Mask:
    """An object of photograph size: a body, and parts of these widths that stand on it."""
    mask = np.zeros((1536, 2048), np.bool_)
    mask[900:1400, 200:1500] = True
    for width, left in WIDTHS.items():
        mask[300:900, left : left + width] = True
    return mask


@pytest.mark.parametrize(("width", "left"), WIDTHS.items(), ids=str)
def test_thin_parts_of_a_photographs_object_stay_opaque(width: int, left: int) -> None:
    """A feather of 1/128 of the short side left 0.15 of a part of 4 pixels, and 0.31 of one of 8."""
    mask = photograph()
    source = np.full((*mask.shape, 3), 40, np.uint8)
    placed = place(cut_out(source, mask), Composition(), mask.shape)
    assert not isinstance(placed, str)
    part = placed.alpha[310 - placed.top : 890 - placed.top, left - placed.left :][:, :width]
    assert (part.max(axis=1) == 1).all(), "opaque in the middle"
    assert (np.diff(part[0, : min((width + 1) // 2, MOST_FEATHER + 1)]) > 0).all(), "feathered towards its outline"
    assert (part[:, 0] < 1).all() or width < 3
    image = compose(source, mask, np.full((*mask.shape, 3), 230, np.uint8), Composition())
    assert not isinstance(image, str)
    assert (image[310:890, left : left + width].min(axis=1) == 40).all()


def test_the_feather_of_a_photograph_is_as_wide_as_that_of_a_small_image() -> None:
    alpha = cut_out(np.zeros((1536, 2048, 3), np.uint8), photograph()).alpha
    assert np.count_nonzero((alpha[800] > 0) & (alpha[800] < 1)) <= 8 * MOST_FEATHER
    assert alpha[1000, :6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1])


def test_a_rough_outline_is_no_thin_part() -> None:
    """Its teeth are feathered with the outline; opaque ones would show as dots."""
    mask = np.zeros((1024, 1024), np.bool_)
    tops = 300 - np.random.default_rng(1).integers(0, 3, 400)
    for column, top in enumerate(tops):
        mask[top:800, 300 + column] = True
    alpha = cut_out(np.zeros((1024, 1024, 3), np.uint8), mask).alpha
    outline = alpha[tops - tops.min(), np.arange(400)]
    assert outline.max() < 0.5
