"""Folders of models under test as the evaluator reads them, and pictures for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

RANDOM = np.random.default_rng(11)
PICTURES = [RANDOM.integers(0, 256, size, dtype=np.uint8) for size in ((64, 80, 3), (99, 50, 3), (64, 64, 3))]


def written(folder: Path, files: Mapping[str, bytes], **description: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in {**files, "contrafact.json": json.dumps(description).encode()}.items():
        (folder / name).write_bytes(data)
    return folder
