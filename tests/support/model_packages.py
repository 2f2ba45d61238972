"""Files of small model packages."""

from __future__ import annotations

import json
import struct


def safetensors(size: int = 8) -> bytes:
    """A file with one tensor of `size` bytes."""
    header = json.dumps({"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


HUB = {
    "config.json": b'{"model_type": "resnet"}',
    "preprocessor_config.json": b'{"size": {"shortest_edge": 64}}',
    "model.safetensors": safetensors(),
}


PREPARED = {"height": 32, "width": 32}
