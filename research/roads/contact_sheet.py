"""Labelled grids of driving scenes to look at: `python -m research.roads.contact_sheet runs/roads/sheet.png`.

With `--looks` the first scene is drawn once for every value of every look; with `--masks` masks stand beside pictures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from research.pictures.sheet import contact_sheet
from tinyworld.drawing.canvas import Image
from tinyworld.roads.render import colour_map, render
from tinyworld.roads.world import LOOKS, Scene, sample_scene


def describe(scene: Scene) -> str:
    """The light and the ground in a few words, for the caption line."""
    return f"{scene.place} {scene.surface} {scene.weather} {scene.time}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--columns", type=int, default=6)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--scale", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--masks", action="store_true")
    parser.add_argument("--looks", action="store_true")
    parser.add_argument("--photos", action="store_true", help="no paintings and sketches")
    args = parser.parse_args()
    scenes = [sample_scene("demo", args.first + i) for i in range(args.count)]
    if args.photos or args.looks:
        scenes = [scene.changed(style="photo") for scene in scenes]
    named = [(scene, describe(scene)) for scene in scenes]
    if args.looks:
        base = scenes[0].changed(weather="clear", time="day", surface="asphalt")
        named = [(base.changed(**{look: v}), f"{look}: {v}") for look, values in LOOKS.items() for v in values]
    pictures: list[tuple[Image, str]] = []
    for scene, text in named:
        rendering = render(scene, args.width)
        pictures.append((rendering.image, text))
        if args.masks:
            pictures.append((colour_map(rendering.classes), ""))
    contact_sheet(pictures, args.columns, args.path, args.scale)


if __name__ == "__main__":
    main()
