"""Metadata of JATIC_ONNX models as specs of uploads."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrafact.jatic import jatic_metadata_beside, jatic_spec
from tests.support.jatic_metadata import write_jatic_metadata

CLASSES = ("car", "bus", "truck")


def test_the_spec_has_the_interface_in_our_terms(tmp_path: Path) -> None:
    spec = jatic_spec(write_jatic_metadata(tmp_path / "net.json", CLASSES, 32, 32), "net")
    assert spec.classes == ["car", "bus", "truck"]
    assert spec.output == "probabilities"
    assert spec.preprocessing is not None
    assert (spec.preprocessing.height, spec.preprocessing.scale, spec.preprocessing.layout) == (32, 1 / 255, "nchw")


def test_what_the_metadata_leave_open_is_given(tmp_path: Path) -> None:
    path = write_jatic_metadata(tmp_path / "net.json", CLASSES, -1, -1, named=False)
    with pytest.raises(ValueError, match="classes"):
        jatic_spec(path, "net")
    with pytest.raises(ValueError, match="input_size"):
        jatic_spec(path, "net", classes=["a", "b", "c"])
    spec = jatic_spec(path, "net", classes=["a", "b", "c"], side=(16, 24))
    assert spec.preprocessing is not None
    assert (spec.preprocessing.height, spec.preprocessing.width) == (16, 24)


def test_a_detector_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="IMAGE_CLASSIFICATION"):
        jatic_spec(
            write_jatic_metadata(tmp_path / "net.json", CLASSES, 32, 32, interface="IMAGE_OBJECT_DETECTION"), "net"
        )


def test_the_metadata_of_a_model_lie_beside_it(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    (tmp_path / "notes.json").write_text("{}")
    assert jatic_metadata_beside(model) is None
    other = write_jatic_metadata(tmp_path / "model-metadata.json", CLASSES, 32, 32)
    assert jatic_metadata_beside(model) == other
    second = write_jatic_metadata(tmp_path / "second.json", CLASSES, 32, 32)
    with pytest.raises(ValueError, match=r"net\.json"):
        jatic_metadata_beside(model)
    stored = write_jatic_metadata(tmp_path / "net.json", CLASSES, 32, 32)
    assert jatic_metadata_beside(model) == stored
    assert second.is_file()
