"""Render images of scenes once into a memory map, which training reads many times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
S = TypeVar("S")


def render_once(path: Path, scenes: Sequence[S], planes_of: Callable[[S], Pixels], shape: tuple[int, ...]) -> Pixels:
    """The planes (`shape`: height, width, planes; uint8) of every scene, read from `path`.

    A missing file is written first, to a temporary file and renamed, so an interrupted file is never used.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npy")
        stored = np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=(len(scenes), *shape))
        started = time.monotonic()
        for place, scene in enumerate(scenes):
            stored[place] = planes_of(scene)
            if (place + 1) % 1_000 == 0:
                print(f"{path.name}: {place + 1} of {len(scenes)}, {time.monotonic() - started:.0f} s", flush=True)
        stored.flush()
        part.replace(path)
    loaded: Pixels = np.load(path, mmap_mode="r")
    return loaded
