"""Quality of a road segmenter: IoU per class, and detection of single pedestrians and vehicles by size; two oracles.

An instance counts as detected if most of its pixels have its class. Void is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForSemanticSegmentation, PreTrainedModel

from research.judges.oracles.roads import trained_folder
from research.networks.segmenters import class_masks
from research.statistics.rates import wilson
from tinyworld.drawing.canvas import Image
from tinyworld.roads.render import Rendering, render
from tinyworld.roads.world import CLASSES, THINGS, Scene

_JUDGED = range(1, len(CLASSES))
SEGMENTERS = ("oracle-a", "oracle-b")  # both must detect a thing in its place
HEIGHTS = ((8, 20), (20, 26), (26, 34), (34, 128))  # pixels of 128: at least, below


def class_ious(guess: Image, truth: Image) -> dict[str, float]:
    """Intersection over union per class over all pixels (n x h x w), and their mean; void pixels are left out.

    A class that occurs in neither is absent.
    """
    judged_pixels = truth != 0
    ious: dict[str, float] = {}
    for index in _JUDGED:
        predicted, reference = (guess == index) & judged_pixels, truth == index
        if either := int((predicted | reference).sum()):
            ious[CLASSES[index]] = round(int((predicted & reference).sum()) / either, 4)
    return {"mean": round(float(np.mean(list(ious.values()))), 4), **ious}


@dataclass(frozen=True, slots=True)
class Instance:
    """One vehicle or pedestrian, whether it was detected, and the height of its visible part in pixels."""

    name: str
    height: int
    detected: bool


def instances(guess: Image, rendering: Rendering, smallest: int = 30) -> Iterable[Instance]:
    """The instances of a scene with at least `smallest` visible pixels, judged by a class mask (h x w)."""
    for number, name in rendering.instance_classes.items():
        instance = rendering.instances == number
        if instance.sum() >= smallest:
            rows = np.flatnonzero(instance.any(axis=1))
            right = float((guess[instance] == CLASSES.index(name)).mean())
            yield Instance(name, int(rows[-1] - rows[0]) + 1, right >= 0.5)


def detection_rates(instances: Sequence[Instance]) -> dict[str, str]:
    """Detection rates with n and Wilson interval, of vehicles and pedestrians, and of pedestrians by height."""
    shares = {name: [instance.detected for instance in instances if instance.name == name] for name in THINGS}
    for least, below in HEIGHTS:
        sized = [
            instance.detected
            for instance in instances
            if instance.name == "pedestrian" and least <= instance.height < below
        ]
        shares[f"pedestrians of {least} to {below - 1} pixels"] = sized
    return {name: _share(right) for name, right in shares.items() if right}


def judge(model: nn.Module, scene_of: Callable[[int], Scene], count: int) -> dict[str, object]:
    """Figures on the first `count` scenes of a series, and on counterfactuals of them: day, night, snowy road."""
    scenes = [scene_of(index) for index in range(count)]
    report: dict[str, object] = {"pictures judged": count}
    for name, rows in (
        ("as drawn", scenes),
        ("all by day", [scene.changed(time="day") for scene in scenes]),
        ("all at night", [scene.changed(time="night") for scene in scenes]),
        ("all on snowy roads", [scene.changed(surface="snowy") for scene in scenes]),
    ):
        ious, shares = _evaluate(model, rows)
        report[f"IoU, {name}"] = ious
        report[f"found, {name}"] = shares
    return report


def _evaluate(model: nn.Module, scenes: Sequence[Scene]) -> tuple[dict[str, float], dict[str, str]]:
    renderings = [render(scene) for scene in scenes]
    guesses = class_masks(model, [rendering.image for rendering in renderings])
    truth = np.stack([rendering.classes for rendering in renderings])
    results = [
        instance
        for guess, rendering in zip(guesses, renderings, strict=True)
        for instance in instances(guess, rendering)
    ]
    return class_ious(guesses, truth), detection_rates(results)


def _share(right: Sequence[bool]) -> str:
    rate = wilson(sum(right), len(right))
    return f"{sum(right) / len(right):.1%} ({sum(right)} of {len(right)}; {rate.low:.1%} to {rate.high:.1%})"


def load_segmenters() -> list[PreTrainedModel]:
    """Both oracle segmenters, in float32; raises SystemExit where one is missing."""
    return [_load(trained_folder(name, "segmenter")) for name in SEGMENTERS]


@cache
def _load(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForSemanticSegmentation.from_pretrained(folder, dtype=torch.float32)
    return model
