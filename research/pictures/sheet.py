"""Labelled grids of images to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tinyworld.drawing import canvas


def contact_sheet(pictures: Sequence[tuple[canvas.Image, str]], columns: int, path: Path, scale: int = 1) -> None:
    """Write images (H x W x 3, all of one size) with a caption line under each as one PNG grid."""
    height, width = (side * scale for side in pictures[0][0].shape[:2])
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * (width + 4), rows * (height + 15)), "white")
    draw = ImageDraw.Draw(sheet)
    for i, (picture, text) in enumerate(pictures):
        x, y = i % columns * (width + 4), i // columns * (height + 15)
        sheet.paste(
            Image.fromarray(np.ascontiguousarray(picture)).resize((width, height), Image.Resampling.NEAREST), (x, y)
        )
        draw.text((x + 2, y + height + 1), text, fill="black", font_size=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
