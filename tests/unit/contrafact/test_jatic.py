"""Metadata of JATIC_ONNX models as specs of uploads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contrafact.jatic import jatic_metadata_beside, jatic_spec

CLASSES = {"0": "car", "1": "bus", "2": "truck"}


def metadata(path: Path, *, side: int = 32, labels: dict[str, str] | None = None, **changes: object) -> Path:
    document = {
        "interface": {"name": "JATIC_ONNX", "version": "v1"},
        "io": {
            "batchSize": -1,
            "interface": "IMAGE_CLASSIFICATION",
            "input": {"channels": "RGB", "height": side, "width": side},
            "output": {"nClasses": 3},
            **changes,
        },
        "index2label": CLASSES if labels is None else labels,
    }
    path.write_text(json.dumps(document))
    return path


def test_the_spec_has_the_interface_in_our_terms(tmp_path: Path) -> None:
    spec = jatic_spec(metadata(tmp_path / "net.json"), "net")
    assert spec.classes == ["car", "bus", "truck"]
    assert spec.output == "probabilities"
    assert spec.preprocessing is not None
    assert (spec.preprocessing.height, spec.preprocessing.scale, spec.preprocessing.layout) == (32, 1 / 255, "nchw")


def test_what_the_metadata_leave_open_is_given(tmp_path: Path) -> None:
    path = metadata(tmp_path / "net.json", side=-1, labels={})
    with pytest.raises(ValueError, match="classes"):
        jatic_spec(path, "net")
    with pytest.raises(ValueError, match="input_size"):
        jatic_spec(path, "net", classes=["a", "b", "c"])
    spec = jatic_spec(path, "net", classes=["a", "b", "c"], side=(16, 24))
    assert spec.preprocessing is not None
    assert (spec.preprocessing.height, spec.preprocessing.width) == (16, 24)


def test_a_detector_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="IMAGE_CLASSIFICATION"):
        jatic_spec(metadata(tmp_path / "net.json", interface="IMAGE_OBJECT_DETECTION"), "net")


def test_the_metadata_of_a_model_lie_beside_it(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    (tmp_path / "notes.json").write_text("{}")
    assert jatic_metadata_beside(model) is None
    other = metadata(tmp_path / "model-metadata.json")
    assert jatic_metadata_beside(model) == other
    second = metadata(tmp_path / "second.json")
    with pytest.raises(ValueError, match=r"net\.json"):
        jatic_metadata_beside(model)
    stored = metadata(tmp_path / "net.json")
    assert jatic_metadata_beside(model) == stored
    assert second.is_file()
