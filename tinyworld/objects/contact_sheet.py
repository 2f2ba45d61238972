"""Labelled grids of images to look at: `python -m tinyworld.objects.contact_sheet runs/world.png --count 48`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tinyworld.objects.drawing import canvas
from tinyworld.objects.render import render
from tinyworld.objects.world import CLASSES, SILHOUETTES, Scene, sample_scene


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


def describe(scene: Scene) -> str:
    """The factors in a few words, for the caption line."""
    beside = "" if scene.companion == "none" else f"+{scene.companion}"
    return f"{scene.colour} {scene.label}{beside} {scene.background} {scene.weather} {scene.time}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--count", type=int, default=48)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--silhouettes", action="store_true", help="every class and silhouette once")
    args = parser.parse_args()
    scenes = [sample_scene("demo", args.first + i) for i in range(args.count)]
    if args.silhouettes:
        kinds = [(label, k) for label in CLASSES for k in range(SILHOUETTES)]
        scenes = [s.changed(label=c, silhouette=k) for s, (c, k) in zip(scenes, kinds, strict=False)]  # type: ignore[arg-type]
    contact_sheet([(render(s).image, describe(s)) for s in scenes], args.columns, args.path, args.scale)


if __name__ == "__main__":
    main()
