"""Intake: every upload becomes a stored image or a failure with its reason; where labels come from."""

from __future__ import annotations

import hashlib
import io
import json
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gateway.intake.intake import relabel, take_in
from gateway.intake.sources import SourceFile, keep_image
from shared.media.images import decode, encode
from shared.media.storage import DirectoryStore, image_key
from shared.media.testsets import folder_labels
from shared.problems import InvalidInput, Problem, TooLarge
from shared.schemas.boxes import TrueBox
from tests.support.gateway_under_test import picture
from tests.support.sent_files import LIMITS, archive, sent, sources_of


def test_images_are_kept_in_canonical_form_in_their_order(store: DirectoryStore) -> None:
    sources = sources_of(
        [sent("b.png", picture(2)), sent("a.png", picture(1)), sent("b.png", picture(2))], None, (), store, LIMITS
    )
    assert [source.name for source in sources] == ["b.png", "a.png", "b.png"]  # equal images at two positions are two
    first = sources[0].image
    assert first is not None
    assert first.upload == hashlib.sha256(picture(2)).hexdigest()
    assert store.get(image_key(first.digest)) == picture(2)
    assert first == sources[2].image


def test_one_bad_image_fails_alone_and_only_bad_ones_are_refused(store: DirectoryStore) -> None:
    noise = encode(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    bad = [sent("text.png", b"hello"), sent("cut.png", noise[: len(noise) // 2]), sent("vast.png", picture(size=101))]
    good, *failed = sources_of([sent("a.png", picture()), *bad], None, (), store, LIMITS)
    assert good.image is not None
    assert [source.image for source in failed] == [None] * 3
    assert "PNG" in failed[0].failure
    assert "broken" in failed[1].failure
    assert "more than 10000" in failed[2].failure
    with pytest.raises(InvalidInput, match=r"'text\.png'"):
        sources_of(bad, None, (), store, LIMITS)


def test_a_large_image_is_scaled_down_to_the_working_side(store: DirectoryStore) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (45, 90, 3), dtype=np.uint8)
    image = keep_image(store, encode(noise), replace(LIMITS, working_side=60))
    assert (image.width, image.height, image.file_size) == (60, 30, (90, 45))
    assert decode(store.get(image_key(image.digest))).shape == (30, 60, 3)
    small = keep_image(store, encode(noise[:, :60]), replace(LIMITS, working_side=60))
    assert (decode(store.get(image_key(small.digest))) == noise[:, :60]).all()
    assert small.file_size == (60, 45)


def test_a_large_file_fails_alone(store: DirectoryStore) -> None:
    sources = sources_of([sent("a.png", picture()), sent("b.png", bytes(100_001))], None, (), store, LIMITS)
    assert "larger than 100,000 bytes" in sources[1].failure
    with pytest.raises(TooLarge):
        keep_image(store, bytes(100_001), LIMITS)


@pytest.mark.parametrize(
    ("names", "classes", "labels"),
    [
        (["car/1.png", "bus/1.png"], (), ["car", "bus"]),
        (["set/test/car/1.png", "set/test/bus/1.png"], (), ["car", "bus"]),
        (["images/1.png", "images/2.png"], ("car",), [None, None]),
        (["car/1.png", "car/2.png"], ("car",), ["car", "car"]),
        (["set/1.png", "set/car/2.png"], (), [None, None]),
        (["1.png", "car/2.png"], (), [None, None]),
    ],
)
def test_class_folders_are_labels_only_when_they_look_like_classes(
    names: list[str], classes: tuple[str, ...], labels: list[str | None]
) -> None:
    assert folder_labels(names, classes)[0] == labels


def test_a_manifest_wins_over_folders_wherever_it_comes_from(store: DirectoryStore) -> None:
    files = {"x/1.png": picture(1), "y/2.png": picture(2)}
    rows = b"file,label\nx/1.png,car\ny/2.png,\n"
    outside = sources_of([archive(files)], rows, (), store, LIMITS)
    inside = sources_of([archive({**files, "manifest.csv": rows})], None, (), store, LIMITS)
    assert [source.label for source in outside] == ["car", None]
    assert inside == outside
    with pytest.raises(InvalidInput, match="more than one manifest"):
        sources_of([archive({**files, "manifest.csv": rows})], rows, (), store, LIMITS)


def test_archives_come_alone_and_not_empty(store: DirectoryStore) -> None:
    with pytest.raises(InvalidInput, match=r"'set\.zip' is an archive"):
        sources_of([sent("a.png", picture()), archive({"b.png": picture()})], None, (), store, LIMITS)
    with pytest.raises(InvalidInput, match="holds no files"):
        sources_of([archive({".hidden": b"x"})], None, (), store, LIMITS)
    with pytest.raises(InvalidInput, match="no images"):
        sources_of([], None, (), store, LIMITS)
    with pytest.raises(TooLarge):
        sources_of([archive({f"{i}.png": picture() for i in range(23)})], None, (), store, LIMITS)
    with pytest.raises(TooLarge, match="21 images"):
        sources_of([archive({f"{i}.png": picture() for i in range(21)})], None, (), store, LIMITS)


def test_labels_that_a_model_does_not_know_are_listed() -> None:
    sources = [SourceFile("a", "automobile", None), SourceFile("b", None, None), SourceFile("c", "bus", None)]
    assert [source.label for source in relabel(sources, {"automobile": "car"}, {"m": ["car", "bus"]})[0]] == [
        "car",
        None,
        "bus",
    ]
    with pytest.raises(InvalidInput, match="'automobile'") as raised:
        relabel(sources, {}, {"m": ["car", "bus"]})
    assert raised.value.members == {"unknown_labels": ["automobile"]}


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4),
    data=st.data(),
)
def test_any_bytes_are_images_or_problems(
    names: list[str], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = DirectoryStore(tmp_path_factory.mktemp("store"))
    good = picture()
    content = (
        st.binary(max_size=60) | st.integers(0, len(good)).map(lambda n: good[:n] + b"\0" * (n % 3)) | st.just(good)
    )
    files = [sent(name, data.draw(content)) for name in names]
    try:
        sources, test_set = take_in(files, None, (), store, LIMITS)
    except Problem as problem:
        assert problem.status in (400, 413, 422)  # noqa: PT017
        return
    assert {len(name) for name in names} == {len(name) for name in [*(s.name for s in sources), *test_set.left_out]}
    assert not any("\0" in source.name for source in sources)
    assert all((source.image is None) == bool(source.failure) for source in sources)


def test_a_file_beside_the_class_folders_of_an_archive_leaves_their_labels(store: DirectoryStore) -> None:
    files = {"bus/1.png": picture(1), "car/1.png": picture(2), "README.txt": b"exported", "bus/.x/1.png": picture(3)}
    sources, test_set = take_in([archive(files)], None, (), store, LIMITS)
    assert [source.label for source in sources] == ["bus", "car"]
    assert set(test_set.left_out) == {"README.txt", "bus/.x/1.png"}
    with pytest.raises(InvalidInput, match=r"none of the 1 files can be used: 'README\.txt': no image"):
        take_in([archive({"README.txt": b"exported"})], None, (), store, LIMITS)


def test_files_of_a_form_are_sorted_as_those_of_an_archive(store: DirectoryStore) -> None:
    """A README and `.DS_Store` of a form were failed images."""
    files = {"bus/1.png": picture(1), "car/1.png": picture(2), "README": b"exported", "bus/._1.png": picture(3)}
    form = take_in([sent(name, data) for name, data in files.items()], None, (), store, LIMITS)
    assert form == take_in([archive(files)], None, (), store, LIMITS)
    with pytest.raises(InvalidInput, match=r"'\._1\.png': hidden"):
        take_in([sent("._1.png", picture())], None, (), store, LIMITS)


def test_labels_in_another_normal_form_or_by_index_are_those_of_the_model() -> None:
    form = unicodedata.normalize
    sources = [SourceFile("a", form("NFD", "é"), None)]
    assert relabel(sources, {}, {"m": [form("NFC", "é")]})[0][0].label == form("NFC", "é")
    assert relabel(sources, {form("NFC", "é"): "bus"}, {"m": ["bus"]})[0][0].label == "bus"
    numbered, note = relabel([SourceFile("a", "0", None), SourceFile("b", "1", None)], {}, {"m": ["car", "bus"]})
    assert [source.label for source in numbered] == ["car", "bus"]
    assert "numbers" in note


def test_boxes_are_of_the_images_beside_folders_of_masks_or_refused(store: DirectoryStore) -> None:
    """COCO's bare names meant no image of several folders, and the job went on without ground truth."""
    boxes = [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 1, 1]}]
    coco = {"images": [{"id": 1, "file_name": "1.png"}], "categories": [{"id": 1, "name": "car"}], "annotations": boxes}
    files = {"s/images/1.png": picture(1), "s/masks/1.png": picture(2), "s/a.json": json.dumps(coco).encode()}
    (source,), test_set = take_in([archive(files)], None, (), store, LIMITS, boxes=True)
    assert [box.label for box in source.boxes or ()] == ["car"]
    assert test_set.left_out == {"s/masks/1.png": "not in the folder images"}
    files["s/images/2.png"] = files.pop("s/images/1.png")
    with pytest.raises(InvalidInput, match=r"'1\.png', and the images are 's/images/2\.png'"):
        take_in([archive(files)], None, (), store, LIMITS, boxes=True)


def test_masks_of_instances_are_boxes_and_no_images(store: DirectoryStore) -> None:
    values = io.BytesIO()
    Image.fromarray(np.full((16, 16), 26_001, np.uint16)).save(values, "PNG")
    files = {"s/instances/1.png": values.getvalue(), "s/images/1.png": picture(1)}
    files["s/instances.json"] = b'{"classes": {"car": 26}}'
    (source,), test_set = take_in([archive(files)], None, (), store, LIMITS, boxes=True)
    assert source.boxes == (TrueBox(box=(0, 0, 16, 16), label="car"),)
    assert (test_set.left_out, test_set.labels_from) == ({}, "boxes are read from 1 masks of instances")
