"""Masks: every encoding of classes is read exactly, and everything else is refused."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import ExifTags, Image
from pydantic import ValidationError

from gateway.intake.intake import take_in
from gateway.intake.mask_files import SentMasks
from gateway.intake.masks import mask_reader, match_masks
from gateway.intake.sources import NamedFile
from shared.media.images import decode, encode
from shared.media.label_maps import VOID
from shared.media.storage import DirectoryStore, image_key
from shared.problems import InvalidInput, Problem
from shared.schemas.masks import MaskSpec
from tests.support.hostile.png import saved
from tests.support.sent_files import LIMITS, archive, sources_of

BY_INDEX = MaskSpec.model_validate(
    {"classes": [{"name": "road", "index": 0}, {"name": "car", "index": 3, "thing": True}], "void": [7]}
)
BY_COLOUR = MaskSpec.model_validate(
    {"classes": [{"name": "road", "colour": "#804080"}, {"name": "car", "colour": "#00008E"}], "void": ["#000000"]}
)
COLOURS = np.array([[0x80, 0x40, 0x80], [0x00, 0x00, 0x8E], [0, 0, 0]], np.uint8)
PLACES = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32)).map(
    lambda shape_and_seed: np.random.default_rng(shape_and_seed[2]).integers(0, 3, shape_and_seed[:2])
)


def expected(places: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.array([0, 1, VOID], np.uint8)[places]


@given(places=PLACES, bits=st.sampled_from([4, 8]))
def test_palette_indices_are_the_classes(places: NDArray[np.int64], bits: int) -> None:
    image = Image.fromarray(np.array([0, 3, 7], np.uint8)[places]).convert("P")
    image.putpalette([255 - value // 3 for value in range(48)])  # colours that mean nothing
    assert (mask_reader(BY_INDEX, {}).read(saved(image, bits=bits), 100).pixels == expected(places)).all()


@given(places=PLACES)
def test_grey_values_are_the_classes(places: NDArray[np.int64]) -> None:
    data = encode(np.array([0, 3, 7], np.uint8)[places])
    assert (mask_reader(BY_INDEX, {}).read(data, 100).pixels == expected(places)).all()


@given(places=PLACES)
def test_greys_of_one_bit_are_0_and_1(places: NDArray[np.int64]) -> None:
    spec = MaskSpec.model_validate({"classes": [{"name": "road", "index": 0}, {"name": "car", "index": 1}]})
    two = np.minimum(places, 1)
    data = saved(Image.fromarray(two.astype(bool)))
    assert (mask_reader(spec, {}).read(data, 100).pixels == two).all()


@given(places=PLACES, paletted=st.booleans())
def test_colours_are_the_classes_in_rgb_and_in_palettes(places: NDArray[np.int64], paletted: bool) -> None:
    image = Image.fromarray(COLOURS[places])
    if paletted:
        image = Image.fromarray(places.astype(np.uint8)).convert("P")
        image.putpalette(COLOURS.ravel().tolist())
    assert (mask_reader(BY_COLOUR, {}).read(saved(image), 100).pixels == expected(places)).all()


def test_classes_of_one_name_are_one_class() -> None:
    reader = mask_reader(BY_INDEX, {"car": "vehicle", "road": "vehicle"})
    assert reader.classes == ("vehicle",)
    assert (reader.read(encode(np.array([[0, 3, 7]], np.uint8)), 100).pixels == [[0, 0, VOID]]).all()


@pytest.mark.parametrize(
    ("spec", "image", "sentence"),
    [
        (BY_INDEX, np.array([[0, 3, 9]], np.uint8), r"1 of its pixels .*\(x 2, y 0\)"),
        (BY_INDEX, COLOURS[[[0, 1]]], "`masks` names indices"),
        (BY_COLOUR, COLOURS[[[0, 1]]] + np.uint8(1), "the colour #814181"),
        (BY_INDEX, np.zeros((101, 100), np.uint8), "more than 10000"),
    ],
)
def test_unknown_classes_are_named(spec: MaskSpec, image: NDArray[np.uint8], sentence: str) -> None:
    with pytest.raises(Problem, match=sentence):
        mask_reader(spec, {}).read(encode(image), 10_000)


def test_lossy_16_bit_and_transparent_masks_are_refused() -> None:
    grey = Image.fromarray(np.zeros((4, 4), np.uint8))
    buffer = io.BytesIO()
    grey.save(buffer, "JPEG")
    deep = saved(Image.fromarray(np.full((4, 4), 700, np.uint16)))
    for data, sentence in ((buffer.getvalue(), "must be a PNG"), (deep, "16 bits")):
        with pytest.raises(InvalidInput, match=sentence):
            mask_reader(BY_INDEX, {}).read(data, 100)
    clear = Image.new("LA", (4, 4), (0, 128))
    with pytest.raises(InvalidInput, match=r"transparent|colour"):
        mask_reader(BY_INDEX, {}).read(saved(clear), 100)


@given(data=st.binary(max_size=300) | st.binary(max_size=60).map(lambda tail: b"\x89PNG\r\n\x1a\n" + tail))
@settings(max_examples=50)
def test_nonsense_is_a_problem_never_a_crash(data: bytes) -> None:
    for spec in (BY_INDEX, BY_COLOUR):
        with pytest.raises(Problem):
            mask_reader(spec, {}).read(data, 100)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"classes": [{"name": "road"}]}, "an index or a colour"),
        ({"classes": [{"name": "road", "index": 1, "colour": "#000000"}]}, "needs either"),
        ({"classes": [{"name": "a", "index": 1}, {"name": "b", "colour": "#000000"}]}, "not some by each"),
        ({"classes": [{"name": "a", "index": 1}, {"name": "b", "index": 1}]}, "value '1' appears more than once"),
        ({"classes": [{"name": "a", "index": 1}], "void": [1]}, "more than once"),
        ({"classes": [{"name": "a", "index": 1}], "void": ["#000000"]}, "not some by each"),
        ({"classes": [{"name": "all classes", "index": 1}]}, "no class may be named"),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(spec: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        MaskSpec.model_validate(spec)


def test_images_find_their_masks_by_stem_or_by_name() -> None:
    images, masks = (
        ["set/images/a.jpg", "set/images/b/c.png", "set/images/d.png"],
        ["set/masks/b/c.png", "set/masks/a.png"],
    )
    assert match_masks(images, masks, None) == ["set/masks/a.png", "set/masks/b/c.png", None]
    named = ["masks/b/c.png", "set/masks/a.png", None]
    assert match_masks(images, masks, named) == ["set/masks/b/c.png", "set/masks/a.png", None]
    with pytest.raises(InvalidInput, match=r"'masks/x\.png'"):
        match_masks(["images/a.png"], ["masks/x.png"], None)
    with pytest.raises(InvalidInput, match=r"'masks/y\.png'"):
        match_masks(["images/a.png"], ["masks/x.png"], ["masks/y.png"])
    with pytest.raises(InvalidInput, match="several images"):
        match_masks(["images/a.png", "images/a.jpg"], ["masks/a.png"], None)


def test_one_bad_mask_fails_its_image_and_no_other(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    picture = encode(np.zeros((4, 6, 3), np.uint8))
    good = encode(np.array([[0, 3] * 3] * 4, np.uint8))
    files = {f"images/{name}.png": picture for name in "abcdef"}
    files |= {
        "masks/a.png": good,
        "masks/b.png": encode(np.zeros((6, 4), np.uint8)),
        "masks/c.png": encode(np.full((4, 6), 9, np.uint8)),
        "masks/d.png": b"nothing",
        "instances/a.png": picture,
        "masks/e.png": encode(np.full((4, 6), 7, np.uint8)),
    }
    reader = mask_reader(BY_INDEX, {})
    sources = sources_of([archive(files)], None, (), store, LIMITS, SentMasks(reader))
    assert [bool(source.image) for source in sources] == [True, False, False, False, False, True]
    sentences = ("has 4×6 pixels, the image 6×4", "have no class", "must be a PNG", "all of its pixels are void")
    for source, sentence in zip(sources[1:5], sentences, strict=True):
        assert sentence in source.failure
    mask = sources[0].mask
    assert mask is not None
    assert mask.classes == ("road", "car")
    assert (decode(store.get(image_key(mask.digest)), "L") == [[0, 1] * 3] * 4).all()
    assert sources[5].mask is None


def test_cityscapes_is_read_as_it_is_downloaded(tmp_path: Path) -> None:
    picture, mask = encode(np.zeros((4, 6, 3), np.uint8)), encode(np.full((4, 6), 7, np.uint8))
    files = {"c/leftImg8bit/val/ulm/ulm_0_leftImg8bit.png": picture, "c/README": b"Cityscapes"}
    kinds = ("labelIds", "labelTrainIds", "color", "instanceIds")
    files |= {f"c/gtFine/val/ulm/ulm_0_gtFine_{kind}.png": mask for kind in kinds}
    spec = MaskSpec.model_validate({"classes": [{"name": "road", "index": 7}, {"name": "car", "index": 26}]})
    (source,), test_set = take_in(
        [archive(files)], None, (), DirectoryStore(tmp_path), LIMITS, SentMasks(mask_reader(spec, {}))
    )
    assert source.mask is not None
    assert source.mask.classes == ("road",)
    assert len(test_set.left_out) == 4
    train_ids = mask_reader(BY_INDEX, {})
    assert train_ids.reads("c/gtFine/val/ulm/ulm_0_gtFine_labelTrainIds.png")
    assert not train_ids.reads("c/gtFine/val/ulm/ulm_0_gtFine_labelIds.png")
    with pytest.raises(InvalidInput, match="gtFine"):
        sources_of([archive(files)], None, (), DirectoryStore(tmp_path), LIMITS)


def test_masks_come_as_parts_and_by_the_manifest(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    picture, mask = encode(np.zeros((4, 4, 3), np.uint8)), encode(np.zeros((4, 4), np.uint8))
    images = [NamedFile(name, io.BytesIO(picture)) for name in ("a.png", "b.png")]
    sent = SentMasks(mask_reader(BY_INDEX, {}), [NamedFile("b.png", io.BytesIO(mask))])
    assert [source.mask is not None for source in sources_of(images, None, (), store, LIMITS, sent)] == [False, True]
    rows = b"file,mask\na.png,b.png\nb.png,\n"
    assert [source.mask is not None for source in sources_of(images, rows, (), store, LIMITS, sent)] == [True, False]
    with pytest.raises(InvalidInput, match="masks"):
        sources_of(images, b"file,label,mask\na.png,car,b.png\nb.png,,\n", (), store, LIMITS, sent)
    with pytest.raises(InvalidInput, match="none was sent"):
        sources_of(images, None, (), store, LIMITS, SentMasks(sent.reader))


def test_a_mask_is_scaled_with_its_image_and_its_values_are_never_mixed(tmp_path: Path) -> None:
    store, limits = DirectoryStore(tmp_path), replace(LIMITS, working_side=30)
    values = np.random.default_rng(0).choice(np.array([0, 3], np.uint8), (60, 90))
    files = {"images/a.png": encode(np.zeros((60, 90, 3), np.uint8)), "masks/a.png": encode(values)}
    files |= {"images/b.png": encode(np.zeros((60, 90, 3), np.uint8)), "masks/b.png": encode(values[:, :60])}
    files |= {"images/c.png": encode(np.zeros((60, 90, 3), np.uint8)), "masks/c.png": encode(values[::2, ::2])}
    scaled, *others = sources_of([archive(files)], None, (), store, limits, SentMasks(mask_reader(BY_INDEX, {})))
    assert scaled.image is not None
    assert scaled.mask is not None
    assert (scaled.image.width, scaled.image.height, scaled.image.file_size) == (30, 20, (90, 60))
    assert (scaled.mask.width, scaled.mask.height) == (30, 20)
    stored = decode(store.get(image_key(scaled.mask.digest)), "L")
    assert (stored == values[1::3, 1::3] // 3).all(), "the value at the centre of each pixel"
    assert [size in source.failure for size, source in zip(("60×60", "45×30"), others, strict=True)] == [True] * 2


def photograph(orientation: int, width: int, height: int) -> bytes:
    """A JPEG of this size in the sensor's orientation."""
    image, exif, file = Image.new("RGB", (width, height)), Image.Exif(), io.BytesIO()
    exif[ExifTags.Base.Orientation] = orientation
    image.save(file, "JPEG", exif=exif)
    return file.getvalue()


@pytest.mark.parametrize(
    ("orientation", "size", "mask_size", "failure"),
    [
        (1, (6, 4), (6, 4), ""),
        (6, (6, 4), (4, 6), ""),  # the mask of the upright photograph
        (6, (6, 4), (6, 4), "turn the mask as its photograph's EXIF says"),
        (6, (6, 4), (5, 6), "make them of one size"),
        (3, (6, 4), (6, 4), "its EXIF orientation 3 turned it"),
        (2, (6, 4), (6, 4), "save the photograph upright"),
        (8, (6, 6), (6, 6), "its EXIF orientation 8 turned it"),
    ],
)
def test_a_mask_is_never_silently_misplaced_by_the_orientation_of_its_photograph(
    tmp_path: Path, orientation: int, size: tuple[int, int], mask_size: tuple[int, int], failure: str
) -> None:
    width, height = mask_size
    files = {
        "images/a.jpg": photograph(orientation, *size),
        "masks/a.png": encode(np.zeros((height, width), np.uint8)),
        "images/b.png": encode(np.zeros((4, 6, 3), np.uint8)),
    }
    sources = sources_of(
        [archive(files)], None, (), DirectoryStore(tmp_path), LIMITS, SentMasks(mask_reader(BY_INDEX, {}))
    )
    source = next(source for source in sources if source.name.endswith("a.jpg"))
    assert (source.mask is None, bool(source.failure)) == (bool(failure), bool(failure))
    assert failure in source.failure
    assert not failure or "a.png" in source.failure


def test_an_archive_of_masks_without_a_spec_is_no_archive_of_classes(tmp_path: Path) -> None:
    picture = encode(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(InvalidInput, match="masks"):
        sources_of(
            [archive({"images/a.png": picture, "masks/a.png": picture})], None, (), DirectoryStore(tmp_path), LIMITS
        )
