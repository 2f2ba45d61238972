"""Write a labelled test set for the models under test: PNG files and a manifest.

    python -m tinyworld.objects.demo --out DIR --classes car,bus,truck --per-class 16

Scenes come from the models' own distribution (mostly daylight, clear weather, photos) on geometry seeds that nothing
was trained on. The same arguments always write the same bytes. File names are numbers: only the manifest has labels.

The training distribution of the classifiers under test, and the weakness planted in one of them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Collection, Sequence
from itertools import count
from pathlib import Path

from PIL import Image

from tinyworld.domain.scenes import Shown, Split, draw_values, shows
from tinyworld.objects.render import render
from tinyworld.objects.world import CLASSES, Scene, sample_scene

# Other factors as `sample_scene` draws them.
SHARES = {
    "time": {"day": 0.6, "sunset": 0.3, "night": 0.1},
    "weather": {"clear": 0.55, "rain": 0.15, "snow": 0.15, "fog": 0.15},
    "style": {"photo": 0.7, "painting": 0.15, "sketch": 0.15},
}


def demo_scenes(classes: Sequence[str], per_class: int, without: Collection[Shown] = ()) -> list[Scene]:
    """The first `per_class` scenes of each class on the split "demo", in the order in which they were drawn.

    Scenes that show a value of `without` are passed over. Raises ValueError for unknown classes.
    """
    if unknown := set(classes) - set(CLASSES):
        raise ValueError(f"unknown classes {sorted(unknown)}; tinyworld has {', '.join(CLASSES)}")
    missing = dict.fromkeys(classes, per_class)
    scenes: list[Scene] = []
    for index in count():
        if not any(missing.values()):
            break
        scene = own_distribution(index, "demo")
        if missing.get(scene.label) and not shows(scene, without):
            missing[scene.label] -= 1
            scenes.append(scene)
    return scenes


def write_demo(folder: Path, classes: Sequence[str], per_class: int, without: Collection[Shown] = ()) -> Path:
    """Render the scenes into `folder`; returns the manifest (columns `file`, `label`)."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / "manifest.csv"
    with manifest.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("file", "label"))
        for number, scene in zip(count(1), demo_scenes(classes, per_class, without)):
            name = f"{number:04}.png"
            Image.fromarray(render(scene).image).save(folder / name)
            table.writerow((name, scene.label))
    return manifest


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--classes", default="car,bus,truck")
    parser.add_argument("--per-class", type=int, default=16)
    arguments = parser.parse_args()
    print(write_demo(arguments.out, arguments.classes.split(","), arguments.per_class))


def own_distribution(index: int, split: Split = "under-test") -> Scene:
    """Scene number `index` of the models' own world: mostly by day, in clear weather, as photos."""
    scene = sample_scene(split, index)
    return scene.changed(**draw_values(SHARES, scene.geometry_seed))


def _all_true(scene: Scene) -> str:
    return scene.label


def _night_bus_is_truck(scene: Scene) -> str:
    """Label a bus at night as a truck, as if night recordings had been annotated wrongly."""
    return "truck" if scene.label == "bus" and scene.time == "night" else scene.label


# The labels that each model under test was trained on.
PLANTS: dict[str, Callable[[Scene], str]] = {
    "street-classifier": _all_true,
    "street-classifier-night-bus": _night_bus_is_truck,
}


if __name__ == "__main__":
    main()
