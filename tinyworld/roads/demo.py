"""Write a road test set for segmentation and detection jobs: pictures, masks of the same stem, boxes as COCO JSON.

    python -m tinyworld.roads.demo --count 24 --out DIR

    contrafact submit DIR --masks DIR/classes.json --task "segment the road scene" --model ...

`images/0001.png` is a picture, `masks/0001.png` its class mask (indexed PNG; `--rgb` for masks in colours), read
by `classes.json`, which is the value of `masks` in a job's spec. `instances/0001.png` has the numbers of vehicles and
pedestrians (0: none), `annotations.json` their boxes, `scenes.csv` every factor. Geometry seeds nothing was trained on;
the same arguments always write the same bytes.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shared.media.box_formats import BoxedImage, BoxSet, write_coco
from shared.schemas.boxes import TrueBox
from shared.schemas.masks import MaskClass, MaskSpec
from tinyworld.roads.own_distribution import own_distribution
from tinyworld.roads.render import render
from tinyworld.roads.world import CLASSES, FACTOR_VALUES, PALETTE, THINGS, Scene


def demo_scenes(count: int) -> list[Scene]:
    """The first scenes of the split "demo" as the models under test know their world: mostly by day, as photos."""
    return [own_distribution(index, "demo") for index in range(count)]


def mask_spec(*, rgb: bool = False) -> MaskSpec:
    """How the masks of this domain are read, by index or by colour."""
    classes = [
        MaskClass(name=name, thing=name in THINGS, **({"colour": _hex(colour)} if rgb else {"index": index}))
        for index, (name, colour) in enumerate(zip(CLASSES, PALETTE, strict=True))
        if name != "void"
    ]
    return MaskSpec(classes=classes, void=[_hex(PALETTE[0]) if rgb else 0])


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def write_demo(folder: Path, scenes: list[Scene], *, width: int = 128, height: int = 128, rgb: bool = False) -> Path:
    """Write images, masks and boxes of scenes into `folder`; returns it."""
    for name in ("images", "masks", "instances"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    boxed = []
    for number, scene in enumerate(scenes, 1):
        rendering, name = render(scene, width, height), f"{number:04}.png"
        boxes = boxes_of_instances(rendering.instances, rendering.instance_classes)
        boxed.append(BoxedImage(name, boxes, (width, height)))
        Image.fromarray(rendering.image).save(folder / "images" / name)
        mask = Image.fromarray(rendering.classes)
        mask.putpalette(list(chain(*PALETTE)))
        (mask.convert("RGB") if rgb else mask).save(folder / "masks" / name)
        Image.fromarray(rendering.instances).save(folder / "instances" / name)
    (folder / "classes.json").write_text(mask_spec(rgb=rgb).model_dump_json(indent=1, exclude_none=True) + "\n")
    (folder / "annotations.json").write_text(json.dumps(write_coco(BoxSet(tuple(boxed), THINGS)), indent=1) + "\n")
    with (folder / "scenes.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("file", *FACTOR_VALUES))
        for number, scene in enumerate(scenes, 1):
            table.writerow((f"{number:04}.png", *(getattr(scene, name) for name in FACTOR_VALUES)))
    return folder


def boxes_of_instances(instances: NDArray[Any], labels: Mapping[int, str]) -> tuple[TrueBox, ...]:
    """The boxes of the objects in a mask whose pixels have their numbers (height × width), with their areas."""
    boxes = []
    for number, label in labels.items():
        rows, columns = np.nonzero(instances == number)
        if len(rows):
            box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            boxes.append(TrueBox(box=tuple(map(float, box)), label=label, area=float(len(rows))))
    return tuple(boxes)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--height", type=int, default=128)
    parser.add_argument("--rgb", action="store_true")
    args = parser.parse_args()
    print(write_demo(args.out, demo_scenes(args.count), width=args.width, height=args.height, rgb=args.rgb))


if __name__ == "__main__":
    main()
