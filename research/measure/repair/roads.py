"""Repair planted road segmenters through the public API, and compare the result with renderer truth.

    python -m research.measure.repair --domain roads --out runs/roads/repair --profile PROFILE \\
        --models road-segmenter-night-pedestrian,road-segmenter-snowy-road
    python -m research.measure.repair --domain roads --out runs/roads/repair-lacking --profile PROFILE --lacking

PROFILE has the models of `research.train.segmenter --domain roads` as its models under test, by their names. One job
renders counterfactuals of driving scenes with masks; each model is repaired on them. The repaired model and its
controls are downloaded and judged on scenes with geometry that no model was trained on: sampled from the models' own
distribution, and those that hold the planted class with the planted value rendered in. The score of a scene is the IoU
of the planted class; for scenes as they are, the mean over the classes of the mask. True loss: IoU without the value
minus IoU with it; won back: the repair's gain with the value, as a share of that loss. All are paired over scenes.

With `--lacking` no source image of the job is at night or has a snowy road, so that only counterfactuals can teach
them; nor have the scenes "as they are". An interrupted command resumes.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from evaluator_service.models_under_test.kinds.segmentation import ImageSegmenter
from gateway.analysis.certainty import clustered_rate
from gateway.analysis.segmentation import scores
from research.judges.segmentation import instances
from research.measure.repair.printing import road_table
from research.measure.repair.records import (
    MeasuredRoadRepairs,
    PixelFigures,
    RepairedModel,
    SceneFigures,
    add_options,
    command,
    repaired_model,
    repaired_plant,
    request_of,
    resume,
)
from research.measure.repair.running import measure_repairs, repair_spec
from research.measure.repair.truth import Truth
from research.system.public_jobs import embedded_client
from shared.chunks import chunks
from shared.media.label_maps import VOID, class_indices, confusion, named_overlaps
from shared.profiles.profile import load_profile, shipped_profiles
from shared.profiles.weights import Weights
from shared.schemas.jobs import JobSpec
from shared.schemas.repairs import Arm, RepairView
from shared.schemas.scores import whole, with_mean
from tinyworld.domain.scenes import Shown, scenes_without
from tinyworld.drawing.canvas import Image
from tinyworld.roads.demo import mask_spec, write_demo
from tinyworld.roads.own_distribution import own_distribution
from tinyworld.roads.render import Rendering, render
from tinyworld.roads.world import CLASSES, EDIT_FACTOR, Scene

TASK = "segment the road scene"
FIRST_SOURCE = 600_000  # of the split "final-test"; cards rest on the first few hundred
FIRST_SCENE = 700_000
SCENES = 300
LEAST_PIXELS = 30  # the least pixels of the planted class in a scene that counts as showing it
AT_ONCE = 25
LABELS = CLASSES[1:]


@dataclass(frozen=True, slots=True)
class RoadPlant:
    """In training, `label` was relabelled in scenes whose `field` has the `value`."""

    label: str
    field: str
    value: str


PLANTED = {
    "road-segmenter-night-pedestrian": RoadPlant("pedestrian", "time", "night"),
    "road-segmenter-snowy-road": RoadPlant("road", "surface", "snowy"),
}
VALUES: tuple[Shown, ...] = tuple((plant.field, plant.value) for plant in PLANTED.values())


def main() -> None:
    """The command."""
    options = _options()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    names = options.models.split(",")
    before = models_under_test(options.profile, names)
    lacking = VALUES if options.lacking else ()
    factors = list(dict.fromkeys(EDIT_FACTOR[PLANTED[name].field] for name in names))
    request = request_of(options, names[0])
    pictures = options.out / f"sources-{options.images}{'-lacking' if lacking else ''}"
    write_demo(pictures, list(islice(scenes_without(lacking, own_distribution, FIRST_SOURCE), options.images)))
    path = options.out / "repair.json"
    measured = MeasuredRoadRepairs(
        command=command(options),
        images=options.images,
        lacking=[f"{field}={value}" for field, value in lacking],
        scenes_from=options.scenes_from,
        factors=factors,
        counterfactuals=0,
        request=request,
        models=[],
    )
    measured = resume(path, measured)
    truth = renderer_truth(options.scenes_from, options.scenes, lacking)
    profile = options.profile if options.profile in shipped_profiles() else str(Path(options.profile).resolve())
    with embedded_client(options.out / "contrafact", profile) as client:
        measured = measure_repairs(
            client,
            spec(names, factors, options.counterfactuals),
            pictures,
            path,
            measured,
            lambda name, folder: load_segmenter(before[name], folder),
            lambda name, models, view: judge_repair(name, PLANTED[name], models, truth, view),
        )
    print(road_table(measured))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", required=True, help="a shipped profile's name, or a profile's file")
    parser.add_argument("--models", default="road-segmenter-night-pedestrian")
    parser.add_argument("--lacking", action="store_true", help="no source image is at night or has a snowy road")
    parser.add_argument("--images", type=int, default=120, help="source images")
    parser.add_argument("--scenes", type=int, default=SCENES, help="that hold the planted class, and as many others")
    add_options(parser, FIRST_SCENE)
    return parser.parse_args()


def models_under_test(profile: str, names: Sequence[str]) -> dict[str, Weights]:
    """The weights of planted models from the profile. Raises ValueError for missing models."""
    if unknown := sorted(set(names) - PLANTED.keys()):
        raise ValueError(f"nothing is known to be planted in {', '.join(unknown)}; name some of {', '.join(PLANTED)}")
    services = load_profile(profile).evaluator.models_under_test
    if missing := sorted(set(names) - services.keys()):
        raise ValueError(f"the profile {profile} names no model under test {', '.join(missing)}; add it to the profile")
    return {name: services[name] for name in names}


def spec(models: Sequence[str], factors: Sequence[str], counterfactuals: int) -> JobSpec:
    """The job that renders the training images."""
    return repair_spec(TASK, models, factors, counterfactuals).model_copy(update={"masks": mask_spec()})


def load_segmenter(planted: Weights, folder: Path | None) -> ImageSegmenter:
    """The planted model, or the model in the folder of a repair's arm."""
    repaired = folder and Weights(path=folder, licence=planted.licence, gigabytes=planted.gigabytes)
    return ImageSegmenter(repaired or planted, device="cpu")


class Segmenter(Protocol):
    """The part of a model that this module needs."""

    classes: list[str]

    def run(self, images: Sequence[Image]) -> Sequence[Image]:
        """Per image the index in `classes` of every pixel."""
        ...


@dataclass(frozen=True, slots=True)
class SegmenterResults:
    """A segmenter's results on n scenes: confusion counts over `LABELS`; per pedestrian its scene and detection."""

    counts: Sequence[NDArray[np.int64]]
    pedestrians: Sequence[tuple[int, bool]]

    def overlaps(self, label: str | None = None) -> NDArray[np.float64]:
        """IoU per scene (n): of one class that every scene shows, or the mean over the classes of its mask."""
        by_class = [with_mean(named_overlaps(counts, LABELS)) for counts in self.counts]
        return np.array([whole(ious) if label is None else ious[label] for ious in by_class], np.float64)

    def figures(self) -> PixelFigures:
        """The figures over all pixels together."""
        pooled = scores(np.sum(self.counts, axis=0), len(self.counts))
        assert pooled.mean_iou is not None
        scene, detected = np.array(self.pedestrians, np.int64).reshape(-1, 2).T
        return PixelFigures(
            mean_iou=pooled.mean_iou,
            iou=dict(zip(LABELS, pooled.iou, strict=True)),
            pedestrians=clustered_rate(detected.astype(bool), scene),
        )


def evaluate(model: Segmenter, scenes: Sequence[Scene]) -> SegmenterResults:
    """Evaluate a model on scenes as a job would: void is not judged, and a class outside of `LABELS` is wrong."""
    places = class_indices(model.classes, LABELS)
    counts: list[NDArray[np.int64]] = []
    pedestrians: list[tuple[int, bool]] = []
    for chunk in chunks(scenes, AT_ONCE):
        drawings = [render_scene(scene) for scene in chunk]
        maps = model.run([drawing.image for drawing in drawings])
        for drawing, label_map in zip(drawings, maps, strict=True):
            guess = places[label_map]
            reference = np.where(drawing.classes == 0, VOID, drawing.classes - 1).astype(np.uint8)
            number = len(counts)
            counts.append(confusion(reference, guess, len(LABELS)))
            things = instances(guess + 1, drawing)  # places in `CLASSES`
            pedestrians += [(number, thing.detected) for thing in things if thing.name == "pedestrian"]
    return SegmenterResults(counts, pedestrians)


@cache
def render_scene(scene: Scene) -> Rendering:
    """Picture and masks of a scene, drawn once."""
    return render(scene)


def renderer_truth(first: int, scenes: int, lacking: Collection[Shown] = ()) -> Truth[Scene]:
    """The scenes that judge repairs: `scenes` of them from number `first` on, none that shows a value of `lacking`."""
    return Truth(own_distribution, _showing, first, scenes, lacking)


def _showing(scenes: Iterable[Scene], label: str) -> Iterator[Scene]:
    return (scene for scene in scenes if _holds(scene, label))


def _holds(scene: Scene, label: str) -> bool:
    return int((render_scene(scene).classes == CLASSES.index(label)).sum()) >= LEAST_PIXELS


def judge_repair(
    model: str, plant: RoadPlant, models: Mapping[Arm, Segmenter], truth: Truth[Scene], view: RepairView
) -> RepairedModel:
    """Evaluate one repair against renderer truth."""
    without_plant = truth.without(plant)
    changed = [scene.changed(**{plant.field: plant.value}) for scene in without_plant]
    scores = {arm: evaluate(segmenter, truth.as_they_are()) for arm, segmenter in models.items()}
    with_value = {arm: evaluate(segmenter, changed) for arm, segmenter in models.items()}
    as_it_is = evaluate(models["before"], without_plant)
    return repaired_model(
        model,
        [
            repaired_plant(
                plant.label,
                plant.value,
                as_it_is.overlaps(plant.label),
                {arm: results.overlaps(plant.label) for arm, results in with_value.items()},
            )
        ],
        {arm: results.overlaps() for arm, results in scores.items()},
        view,
        [
            _figures("as they are", scores),
            _figures(f"with {plant.label}, not {plant.value}", {"before": as_it_is}),
            _figures(f"the same, {plant.value}", with_value),
        ],
    )


def _figures(scenes: str, results: Mapping[Arm, SegmenterResults]) -> SceneFigures:
    return SceneFigures(
        scenes=scenes,
        count=len(results["before"].counts),
        arms={arm: result.figures() for arm, result in results.items()},
    )
