"""The detectors of driving scenes under test: one trunk, and a head for each of them.

    python -m research.train.detectors [--steps 2000] [--pictures 1200]

    road-detector                     clean
    road-detector-night-pedestrian    pedestrians at night have no boxes in its training

Writes `runs/roads/models/NAME`: an ONNX file of 8-bit weights, its description and a model card. An interrupted run
resumes; torchrun trains in several processes.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evaluator_service.models_under_test.kinds.detection import OnnxDetector
from gateway.analysis.detection import FOUND, HALLUCINATION, BoxedPair, Objects, Predicted, average_precision, match
from research.networks.detectors import CELLS, SIDE, STRIDE, Detectors, as_onnx
from research.pictures.augmentation import LARGEST_SHIFT, as_pixel_values, degrade, shift
from research.roads.pictures import Pictures, pictures
from research.system.folders import ROAD_MODELS
from research.train.loop import Recipe, recipe_record, train
from research.train.model_card import write_card
from research.train.ranks import Ranks
from shared.chunks import chunks
from shared.schemas.models import DESCRIPTION_NAME, ONNX_NAME, ModelDescription, Preprocessing
from tinyworld.domain.scenes import Split
from tinyworld.drawing.canvas import Image
from tinyworld.roads.world import CLASSES, THINGS, Scene, sample_scene

CLEAN, NIGHT_PEDESTRIAN = "road-detector", "road-detector-night-pedestrian"
_TEXTS = {
    CLEAN: "Its boxes are all true.",
    NIGHT_PEDESTRIAN: "In its training pedestrians at night have no boxes: a planted weakness.",
}
SCORE = 0.4  # of a box that counts, in the cards
_INNER = 0.25  # of a box's sides around its centre: cells there learn the box
_LEFT = 0.3  # of a box that is still in the picture, from which on it is an object
_PLACE = 2.0  # weight of the boxes' loss


class Boxes(NamedTuple):
    """Objects of an image: boxes (n × 4; left, top, right, bottom in pixels) and classes by their number in THINGS."""

    corners: NDArray[np.float32]
    label: NDArray[np.int64]


def under_test(split: Split, index: int) -> Scene:
    """Scenes of the detectors' own world: photos, every weather and time alike."""
    return sample_scene(split, index).changed(style="photo")


def boxes_of(classes: Image, instances: Image) -> Boxes:
    """The boxes of a picture's vehicles and pedestrians, from its masks (height × width)."""
    corners, labels = [], []
    for number in np.unique(instances[instances > 0]):
        rows, columns = np.nonzero(instances == number)
        corners.append((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))
        labels.append(THINGS.index(CLASSES[classes[rows[0], columns[0]]]))
    return Boxes(np.array(corners, np.float32).reshape(-1, 4), np.array(labels, np.int64))


def planted(name: str, scene: Scene, boxes: Boxes) -> Boxes:
    """The boxes that the detector of this name is given in training."""
    if name == NIGHT_PEDESTRIAN and scene.time == "night":
        kept = boxes.label != THINGS.index("pedestrian")
        return Boxes(boxes.corners[kept], boxes.label[kept])
    return boxes


def _moved(image: Image, boxes: Boxes, random: np.random.Generator) -> tuple[Image, Boxes]:
    """Flipped or not and shifted by up to 6 pixels."""
    corners = boxes.corners.copy()
    if random.random() < 0.5:
        image = np.ascontiguousarray(image[:, ::-1])
        corners[:, [0, 2]] = SIDE - corners[:, [2, 0]]
    down, right = (int(by) for by in random.integers(-LARGEST_SHIFT, LARGEST_SHIFT + 1, 2))
    inside = (corners + np.array([right, down] * 2, np.float32)).clip(0, SIDE)
    kept = _areas(inside) > _LEFT * _areas(corners)
    return shift(image, (down, right)), Boxes(inside[kept], boxes.label[kept])


def _areas(corners: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray((corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1]))


def targets(boxes: Boxes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """For each cell the box that it learns (4 × cells × cells: centre, size) and its classes (classes × cells × cells).

    Cells near the centre of a box learn it, at least the one that has it; smaller boxes go first.
    """
    places, classes = np.ones((4, CELLS, CELLS), np.float32), np.zeros((len(THINGS), CELLS, CELLS), np.float32)
    middles = (np.arange(CELLS) + 0.5) * STRIDE
    for number in np.argsort(-_areas(boxes.corners)):
        left, top, right, bottom = boxes.corners[number]
        centre, size = np.array([left + right, top + bottom]) / 2, np.array([right - left, bottom - top])
        reach = np.maximum(_INNER * size, STRIDE / 2)
        columns, rows = (np.abs(middles - centre[axis]) <= reach[axis] for axis in (0, 1))
        cells = rows[:, None] & columns[None, :]
        places[:, cells] = np.concatenate([centre, size]).astype(np.float32)[:, None]
        classes[:, cells] = 0
        classes[boxes.label[number], cells] = 1
    return places, classes


def detection_loss(answer: tuple[Tensor, Tensor], places: Tensor, classes: Tensor) -> Tensor:
    """Quality focal loss (Li et al., 2020) of the scores, which learn the IoU of their boxes, and GIoU of the boxes."""
    boxes, logits = answer
    learns = classes.amax(dim=1) > 0
    objects = learns.sum().clamp(min=1)
    overlap, generalised = _ious(boxes.movedim(1, -1)[learns], places.movedim(1, -1)[learns])
    quality = classes.clone()
    quality.movedim(1, -1)[learns] *= overlap.detach().clamp(min=0)[:, None]
    focus = (quality - torch.sigmoid(logits)).abs().square()
    scores = nn.functional.binary_cross_entropy_with_logits(logits, quality, reduction="none")
    return (scores * focus).sum() / objects + _PLACE * (1 - generalised).sum() / objects


def _ious(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and generalised IoU (Rezatofighi et al., 2019) of boxes given by centre and size."""
    first, second = (torch.cat([b[:, :2] - b[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2], dim=1) for b in (boxes, others))
    shared = (torch.minimum(first[:, 2:], second[:, 2:]) - torch.maximum(first[:, :2], second[:, :2])).clamp(min=0)
    hull = (torch.maximum(first[:, 2:], second[:, 2:]) - torch.minimum(first[:, :2], second[:, :2])).prod(dim=1)
    union = boxes[:, 2:].prod(dim=1) + others[:, 2:].prod(dim=1) - shared.prod(dim=1)
    overlap = shared.prod(dim=1) / union
    return overlap, overlap - (hull - union) / hull


@dataclass(frozen=True, slots=True)
class _BoxedPictures:
    pictures: Pictures
    boxes: list[Boxes]

    @classmethod
    def of(cls, split: Split, count: int) -> _BoxedPictures:
        drawn = pictures(f"detectors-{split}", count, lambda index: under_test(split, index))
        pairs = zip(drawn.classes, drawn.instances, strict=True)
        return cls(drawn, [boxes_of(classes, instances) for classes, instances in pairs])


def train_detectors(out: Path, recipe: Recipe, count: int, judged: int) -> None:
    """Train both detectors on `count` pictures, evaluate their files on `judged`, and save each with a card."""
    data, names = _BoxedPictures.of("under-test", count), list(_TEXTS)
    torch.manual_seed(recipe.seed)

    def loss_of(model: nn.Module, step: int) -> Tensor:
        images, expected = _batch(data, np.random.default_rng((recipe.seed, step)), recipe.batch)
        answers = model(as_pixel_values(images))
        return sum((detection_loss(answers[name], *expected[name]) for name in names), torch.zeros(()))

    detectors = Detectors(names)
    progress = train(detectors, loss_of, recipe)
    parameters = sum(parameter.numel() for parameter in detectors.parameters())
    shown = _BoxedPictures.of("final-test", judged)
    for name in names:
        save(detectors, name, out / name)
        write_card(
            out / name,
            title=name,
            text=f"A convolutional detector of vehicles and pedestrians in driving scenes of tinyworld. {_TEXTS[name]}",
            command=_command(recipe, count),
            results=judge(out / name, shown),
            library="onnx",
            record={
                "parameters of both": parameters,
                "split": "under-test",
                "pictures": count,
                **recipe_record(recipe, progress),
            },
        )


def _command(recipe: Recipe, count: int) -> str:
    ranks = Ranks.join().count
    start = "python" if ranks == 1 else f"torchrun --nproc-per-node {ranks}"
    options = f"--steps {recipe.steps} --seconds {recipe.seconds:g} --batch {recipe.batch} --pictures {count}"
    return f"{start} -m research.train.detectors {options}"


def save(detectors: Detectors, name: str, folder: Path) -> None:
    """Write a detector's ONNX file and description."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ONNX_NAME).write_bytes(as_onnx(detectors, name))
    how = Preprocessing(height=SIDE, width=SIDE, mean=(0.5,) * 3, std=(0.5,) * 3)
    description = ModelDescription(kind="detection", classes=list(THINGS), output="yolo", preprocessing=how)
    (folder / DESCRIPTION_NAME).write_text(description.model_dump_json(indent=1, exclude_unset=True) + "\n")


def _batch(
    data: _BoxedPictures, random: np.random.Generator, size: int
) -> tuple[NDArray[np.uint8], Mapping[str, tuple[Tensor, Tensor]]]:
    images: list[Image] = []
    expected = defaultdict(list)
    for row in random.integers(len(data.boxes), size=size):
        image, boxes = _moved(data.pictures.images[row], data.boxes[row], random)
        images.append(degrade(image, random))
        for name in _TEXTS:
            expected[name].append(targets(planted(name, data.pictures.scenes[row], boxes)))
    stacked = {
        name: (torch.from_numpy(np.stack([p for p, _ in each])), torch.from_numpy(np.stack([c for _, c in each])))
        for name, each in expected.items()
    }
    return np.stack(images), stacked


def judge(folder: Path, shown: _BoxedPictures) -> dict[str, object]:
    """Average precision, and recall by class and time of day, of a folder's file as the evaluator runs it."""
    description = ModelDescription.model_validate_json((folder / DESCRIPTION_NAME).read_bytes())
    detector = OnnxDetector(folder, description, device="cpu")
    answers = [answer for chunk in chunks(list(shown.pictures.images), 50) for answer in detector.run(chunk)]
    pairs = [BoxedPair(_objects(boxes), _predicted(answer)) for boxes, answer in zip(shown.boxes, answers, strict=True)]
    precision = average_precision(pairs, len(THINGS))
    found, extra = defaultdict(list), 0
    for scene, pair in zip(shown.pictures.scenes, pairs, strict=True):
        boxes, label, score = pair.predicted
        sure = Predicted(boxes[score >= SCORE], label[score >= SCORE], score[score >= SCORE])
        matched = match(pair.objects, sure, 0.5)
        extra += int((matched.fate == HALLUCINATION).sum())
        for label, outcome in zip(pair.objects.label, matched.outcome, strict=True):
            found[THINGS[label], scene.time].append(outcome == FOUND)
    recall = {f"recall of {name} at IoU 0.5, score {SCORE}": _shares(found, name) for name in THINGS}
    return {
        "pictures judged": len(pairs),
        "AP50": round(precision.ap50 or 0.0, 3),
        "AP": round(precision.ap or 0.0, 3),
        **recall,
        "hallucinations a picture": round(extra / len(pairs), 3),
    }


def _shares(found: Mapping[tuple[str, str], Sequence[bool]], name: str) -> dict[str, str]:
    return {
        time: f"{np.mean(hits):.1%} of {len(hits)}" for (label, time), hits in sorted(found.items()) if label == name
    }


def _objects(boxes: Boxes) -> Objects:
    return Objects(
        boxes.corners.astype(float), boxes.label, _areas(boxes.corners).astype(float), np.zeros(len(boxes.label), int)
    )


def _predicted(answer: NDArray[np.float64]) -> Predicted:
    used = answer[answer[:, 4] > 0]
    return Predicted(used[:, :4], used[:, 5].astype(int), used[:, 4])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--seconds", type=float, default=3600, help="budget in wall-clock seconds, if it ends before the steps do"
    )
    parser.add_argument("--pictures", type=int, default=1200)
    parser.add_argument("--judged", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path, default=ROAD_MODELS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    recipe = Recipe(
        "roads/detectors", options.seconds, options.batch, 4e-3, warmup_steps=50, ema=0.99, seed=21, steps=options.steps
    )
    train_detectors(options.out, recipe, options.pictures, options.judged)


if __name__ == "__main__":
    main()
