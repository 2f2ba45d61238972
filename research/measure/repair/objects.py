"""Repair planted models of the yardstick through the public API, and compare the result with renderer truth.

    python -m research.measure.repair --out runs/repair [--models night-bus-60,snow-car-60] [--per-class 60]
    python -m research.measure.repair --out runs/repair-lacking --lacking     # images that lack what was planted

One job renders counterfactuals; each model is repaired on them. The repaired model and its controls are downloaded and
judged on scenes with geometry that no generator, scorer or model under test was trained on: sampled from the models'
own distribution, and with the planted value rendered in. True loss: accuracy on the scenes as they are minus accuracy
with the value; won back: the repair's gain with the value, as a share of that loss. All are paired over scenes.

With `--lacking` no source image of the job shows a planted value (no night in any class, for example), so that only
counterfactuals can teach it; nor do the scenes "as they are". An interrupted command resumes.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoImageProcessor, AutoModelForImageClassification

from research.measure.repair.printing import object_table
from research.measure.repair.records import (
    MeasuredObjectRepairs,
    RepairedModel,
    RepairedPlant,
    add_options,
    command,
    repaired_model,
    repaired_plant,
    request_of,
    resume,
)
from research.measure.repair.running import measure_repairs, repair_spec
from research.measure.repair.truth import Truth
from research.objects.pictures import render_pair
from research.pictures.rendered_once import Pixels
from research.system.public_jobs import embedded_client
from research.yardstick.classifiers import model_folder
from research.yardstick.contrafact import profile_text
from research.yardstick.plants import MODELS, TESTED_CLASSES, Planned, Plant
from shared.chunks import chunks
from shared.schemas.repairs import Arm, RepairView
from tinyworld.domain.scenes import Shown
from tinyworld.objects.demo import own_distribution, write_demo
from tinyworld.objects.world import CLASSES, Scene

TASK = "classify the vehicle in the picture"
FIRST_SCENE = 400_000  # of the split "final-test": beyond those of the answer key
SCENES = 400
AT_ONCE = 100
Bits = NDArray[np.bool_]


def main() -> None:
    """The command."""
    options = _options()
    names = options.models.split(",")
    planned = {model.name: model for model in MODELS}
    lacking = planted_values([planned[name] for name in names]) if options.lacking else ()
    request = request_of(options, names[0])
    options.out.mkdir(parents=True, exist_ok=True)
    images = options.out / f"images-{options.per_class}{'-lacking' if lacking else ''}"
    write_demo(images, options.classes.split(","), options.per_class, lacking)
    profile = options.out / "profile.toml"
    profile.write_text(profile_text([planned[name] for name in names]))
    path = options.out / "repair.json"
    measured = MeasuredObjectRepairs(
        command=command(options),
        per_class=options.per_class,
        lacking=[f"{field}={value}" for field, value in lacking],
        scenes_from=options.scenes_from,
        factors=["weather"],
        counterfactuals=0,
        request=request,
        models=[],
    )
    measured = resume(path, measured)
    truth = renderer_truth(options.scenes_from, options.scenes, lacking)
    with embedded_client(options.out / "contrafact", str(profile.resolve())) as client:
        measured = measure_repairs(
            client,
            repair_spec(TASK, names, measured.factors, options.counterfactuals),
            images,
            path,
            measured,
            lambda name, folder: ClassifierUnderTest(folder or model_folder(name)),
            lambda name, models, view: judge_repair(name, planned[name].plants, models, truth, view),
        )
    print(object_table(measured))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="night-bus-60,snow-car-60")
    parser.add_argument("--lacking", action="store_true", help="no source image shows a value that is planted")
    parser.add_argument("--per-class", type=int, default=60)
    parser.add_argument("--classes", default=",".join(TESTED_CLASSES))
    parser.add_argument("--scenes", type=int, default=SCENES, help="of each planted class, and as many of all classes")
    add_options(parser, FIRST_SCENE)
    return parser.parse_args()


def planted_values(models: Sequence[Planned]) -> tuple[Shown, ...]:
    """The fields and values that are planted in any of the models, each once."""
    return tuple(dict.fromkeys((plant.field, plant.value) for model in models for plant in model.plants))


class ClassifierUnderTest:
    """A classifier in a folder, used as a model under test."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.float32).eval()
        self._processor = AutoImageProcessor.from_pretrained(folder, backend="pil")

    @torch.inference_mode()
    def right(self, images: Sequence[Pixels], labels: Sequence[str]) -> Bits:
        """Whether each image's label is the most probable class."""
        logits = [
            self._model(**self._processor(images=list(chunk), return_tensors="pt")).logits
            for chunk in chunks(images, AT_ONCE)
        ]
        truth = np.array([CLASSES.index(label) for label in labels])
        return np.asarray(torch.cat(logits).argmax(1).numpy() == truth)


@cache
def _picture(scene: Scene) -> Pixels:
    return render_pair(scene)[0]


def renderer_truth(first: int, scenes: int, lacking: Collection[Shown] = ()) -> Truth[Scene]:
    """The scenes that judge repairs: `scenes` of them from number `first` on, none that shows a value of `lacking`."""
    return Truth(own_distribution, _with_label, first, scenes, lacking)


def _with_label(scenes: Iterable[Scene], label: str) -> Iterator[Scene]:
    return (scene.changed(label=label) for scene in scenes)


def judge_repair(
    model: str,
    plants: Sequence[Plant],
    models: Mapping[Arm, ClassifierUnderTest],
    truth: Truth[Scene],
    view: RepairView,
) -> RepairedModel:
    """Renderer truth of one repair."""
    scenes = truth.as_they_are()
    images, labels = [_picture(scene) for scene in scenes], [scene.label for scene in scenes]
    right = {arm: classifier.right(images, labels) for arm, classifier in models.items()}
    return repaired_model(model, [_plant(plant, models, truth) for plant in plants], right, view)


def _plant(plant: Plant, models: Mapping[Arm, ClassifierUnderTest], truth: Truth[Scene]) -> RepairedPlant:
    """Scenes of the planted class, first with another value of the field than the planted one, then with it."""
    without_plant = truth.without(plant)
    labels = [plant.label] * len(without_plant)
    as_they_are = models["before"].right([_picture(scene) for scene in without_plant], labels)
    changed = [_picture(scene.changed(**{plant.field: plant.value})) for scene in without_plant]
    right = {arm: classifier.right(changed, labels) for arm, classifier in models.items()}
    return repaired_plant(plant.label, plant.value, as_they_are, right)
