"""Labelled grids of images to look at: `python -m research.objects.contact_sheet runs/world.png --count 48`."""

from __future__ import annotations

import argparse
from pathlib import Path

from research.pictures.sheet import contact_sheet
from tinyworld.objects.render import render
from tinyworld.objects.world import CLASSES, SILHOUETTES, Scene, sample_scene


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
