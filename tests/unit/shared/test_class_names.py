"""Files of class names, and labels that are no class's name as it stands."""

from __future__ import annotations

import unicodedata

import pytest

from shared.media.class_names import imagenet_positions, names_of_labels, read_class_names, read_label_map

NAMES = ["car", "bus", "truck"]


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbfcar\r\nbus\r\ntruck\r\n",
        "car\nbus\ntruck\n".encode("utf-16"),
        b"0 car\n1 bus\n2 truck\n",
        b"0: car\n1: bus\n2: truck\n",
        b"car,0\nbus,1\ntruck,2\n",
        b'{"0": "car", "1": "bus", "2": "truck"}',
        b'["car", "bus", "truck"]',
    ],
)
def test_class_names_as_people_have_them(data: bytes) -> None:
    assert read_class_names(data, "classes.txt") == NAMES


def test_what_only_looks_like_an_index_is_part_of_the_name() -> None:
    assert read_class_names(b"2 doors\n4 doors\n", "c") == ["2 doors", "4 doors"]
    assert read_class_names(b'{"car": 0, "bus": [1, 2]}', "c") == {"car": 0, "bus": [1, 2]}
    with pytest.raises(ValueError, match="index 1 has no name"):
        read_class_names(b'{"0": "car", "2": "bus"}', "c")


def test_labels_may_be_indices_or_imagenets_ids_where_nothing_else_is_meant() -> None:
    assert names_of_labels({"0", "2"}, [NAMES])[0] == {"0": "car", "2": "truck"}
    assert names_of_labels({"1", "2"}, [NAMES])[0] == {"1": "1", "2": "2"}, "they may count from 1"
    assert names_of_labels({"0", "1"}, [NAMES, NAMES[::-1]])[0] == {"0": "0", "1": "1"}, "two orders"
    classes = [f"class {index}" for index in range(1_000)]
    assert names_of_labels({"n01443537"}, [classes])[0] == {"n01443537": "class 1"}
    assert names_of_labels({"n01443537"}, [sorted(classes)])[0] == {"n01443537": "n01443537"}, "another order"
    assert len(imagenet_positions()) == 1_000
    form = unicodedata.normalize
    assert names_of_labels({form("NFD", "é")}, [[form("NFC", "é")]])[0] == {form("NFD", "é"): form("NFC", "é")}


def test_a_label_map_may_be_a_file() -> None:
    expected = {"n01440764": "tench, Tinca tinca", "automobile": "car"}
    assert read_label_map(b"n01440764 tench, Tinca tinca\nautomobile,car\n", "map.txt") == expected
    assert read_label_map(b'{"n01440764": "tench, Tinca tinca", "automobile": "car"}', "map.json") == expected
    with pytest.raises(ValueError, match="'nonsense' is not"):
        read_label_map(b"nonsense", "map.txt")
