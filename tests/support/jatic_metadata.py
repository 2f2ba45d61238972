"""Metadata of a JATIC_ONNX classifier, as its file beside the network has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path


def write_jatic_metadata(
    path: Path, names: Sequence[str], height: int, width: int, *, named: bool = True, **changes: object
) -> Path:
    """Write the metadata of a classifier of these classes; `changes` replace entries of `io`. Returns the path."""
    document = {
        "interface": {"name": "JATIC_ONNX", "version": "v1"},
        "io": {
            "batchSize": -1,
            "interface": "IMAGE_CLASSIFICATION",
            "input": {"channels": "RGB", "height": height, "width": width},
            "output": {"nClasses": len(names)},
            **changes,
        },
        "index2label": {str(index): name for index, name in enumerate(names)} if named else {},
    }
    path.write_text(json.dumps(document))
    return path
