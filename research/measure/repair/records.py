"""Results of measured repairs in both domains: data, figures and tables."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, Field

from gateway.repairs.figures import pair, recovery, share_interval
from research.system.packed import read_text, write_text
from shared.profiles.weights import REPOSITORY
from shared.schemas.base import Contract
from shared.schemas.effects import Rate
from shared.schemas.repairs import (
    CONTROLS,
    TRAINED,
    Arm,
    Paired,
    RepairRequest,
    RepairView,
    SetFigures,
    TrainedArm,
)
from shared.seeds import derive_seed
from tinyworld.domain.names import add_domain

RESULTS = REPOSITORY / "research/results"
COMMITTED_OBJECTS = tuple(RESULTS / name for name in ("repair.json.gz", "repair-lacking.json.gz"))
COMMITTED_ROADS = tuple(RESULTS / name for name in ("repair-roads.json.gz", "repair-roads-lacking.json.gz"))
Scores = NDArray[np.bool_] | NDArray[np.float64]
"""One of each scene, in 0 … 1: whether a classifier is right, or a segmenter's IoU."""


class RepairedPlant(Contract):
    """Renderer truth on one planted weakness; differences in −1 … 1 over scenes of the planted class.

    Scores are the accuracy over scenes, or for segmenters the mean IoU of the planted class. `won_back`, None if the
    loss is not significant: of a classifier the share of the lost scenes that are regained (`regained`; `newly_lost`
    counts apart), of a segmenter `won` as a share of `true_loss`, with Fieller's 95 % interval. Records without
    `regained` have that share with a bootstrap interval, which is too short with few scenes or a share near 1.
    """

    label: str
    value: str
    scenes: int
    before_as_it_is: float
    before: float
    after: dict[Arm, float]
    true_loss: Paired
    won: Paired
    won_back: float | None
    won_back_low: float | None = None
    won_back_high: float | None = None
    regained: Rate | None = None
    newly_lost: Rate | None = None
    best_control: TrainedArm
    over_best_control: Paired


class PixelFigures(Contract):
    """A segmenter on all pixels of some scenes: mIoU, IoU by class (None if absent), pedestrians detected."""

    mean_iou: float
    iou: dict[str, float | None]
    pedestrians: Rate


class SceneFigures(Contract):
    """Figures of the arms on some scenes. Scenes that only measure the loss have those of `before` alone."""

    scenes: str
    count: int
    arms: dict[Arm, PixelFigures]


class RepairedModel(Contract):
    """One model: its plants, the cost of the repair on unchanged scenes, and the system's own results and sentences.

    `sets`: its figures on the job's held-out source images and their counterfactuals. `sentences`: older files have
    `said`. Only segmenters have `figures`; their `own_before`, `own_after` and `lost` are IoU per scene, the mean over
    the classes of its mask.
    """

    model: str
    plants: list[RepairedPlant]
    own_scenes: int
    own_before: float
    own_after: dict[Arm, float]
    lost: Paired
    sets: list[SetFigures] = Field(default_factory=list)
    sentences: Annotated[list[str], Field(validation_alias=AliasChoices("sentences", "said"))]
    seconds: float
    figures: list[SceneFigures] = Field(default_factory=list)


class RepairMeasurement(Contract):
    """All models of a measurement.

    `lacking`: values ("time=night") that no source image of the job and no unchanged scene shows. `scenes_from`: the
    number of the first judging scene, of the split "final-test".
    """

    command: str
    lacking: list[str] = Field(default_factory=list)
    scenes_from: int = 400_000
    factors: list[str]
    counterfactuals: int
    request: RepairRequest
    models: list[RepairedModel]


class MeasuredObjectRepairs(RepairMeasurement):
    """The measurement of object classifiers, with `per_class` source images per class."""

    per_class: int


class MeasuredRoadRepairs(RepairMeasurement):
    """The measurement of road segmenters, with `images` source images."""

    images: int


Measured = TypeVar("Measured", bound=RepairMeasurement)


def committed_objects() -> list[MeasuredObjectRepairs]:
    """The committed measurements of classifiers, in order."""
    return [read(MeasuredObjectRepairs, path) for path in COMMITTED_OBJECTS if path.exists()]


def committed_roads() -> list[MeasuredRoadRepairs]:
    """Those of segmenters."""
    return [read(MeasuredRoadRepairs, path) for path in COMMITTED_ROADS if path.exists()]


def read(kind: type[Measured], path: Path) -> Measured:
    """A measurement from its file. Raises ValueError for a file of another kind."""
    return kind.model_validate_json(read_text(path))


def write(path: Path, measured: RepairMeasurement) -> None:
    """Write a measurement to a file."""
    write_text(path, measured.model_dump_json() + "\n")


def resume(path: Path, new: Measured) -> Measured:
    """The stored measurement if the same command wrote it, else the new one."""
    if path.exists() and (before := read(type(new), path)).command == new.command:
        return before
    return new


def add_options(parser: argparse.ArgumentParser, first_scene: int) -> None:
    """The command-line options that the repair measurements of both domains share."""
    add_domain(parser)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--counterfactuals", type=int, default=5, help="of each source image")
    parser.add_argument("--scenes-from", type=int, default=first_scene, help="the first of the scenes that judge")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--held-out", type=float, default=0.5, help="share of the source images that is not trained on")


def request_of(options: argparse.Namespace, model: str) -> RepairRequest:
    """The request for the repair of a model by these options; every value is trained on."""
    return RepairRequest(
        model=model,
        steps=options.steps,
        learning_rate=options.learning_rate,
        held_out=options.held_out,
        hold_out_values=[],
    )


def command(options: argparse.Namespace) -> str:
    """The command line with every option except the output folder; the domain and flags come first."""
    domain = "" if options.domain == "objects" else f" --domain {options.domain}"
    flags_by_name = {
        name.replace("_", "-"): value for name, value in vars(options).items() if name not in ("out", "domain")
    }
    flags = [f" --{name}" for name, value in flags_by_name.items() if value is True]
    values = [
        f" --{name} {value:g}" if isinstance(value, float) else f" --{name} {value}"
        for name, value in flags_by_name.items()
        if not isinstance(value, bool)
    ]
    return f"python -m research.measure.repair{domain}{''.join(flags)}{''.join(values)}"


def repaired_plant(label: str, value: str, as_it_is: Scores, with_value: Mapping[Arm, Scores]) -> RepairedPlant:
    """The figures of a plant.

    `as_it_is`: scores of the model before the repair on n ≥ 1 scenes of the class without the value. `with_value`:
    scores of all arms on the same n scenes with the value.
    """
    before, repaired = with_value["before"], with_value["repaired"]
    after: dict[Arm, float] = {arm: float(with_value[arm].mean()) for arm in TRAINED}
    best = best_control(after)
    loss, won = _pair(as_it_is, before, value), _pair(repaired, before, value)
    share: tuple[float | None, float | None, float | None] = (None, None, None)
    regained = newly_lost = None
    if loss.interval and loss.interval.low > 0:
        if as_it_is.dtype == np.bool_:
            scenes = np.arange(len(as_it_is))
            regained, newly_lost = recovery(as_it_is == 1, before == 1, repaired == 1, scenes)
            share = (regained.value, regained.low, regained.high)
        else:
            was, is_now, could = (scores.astype(np.float64) for scores in (before, repaired, as_it_is))
            limits = share_interval(is_now - was, could - was) or (None, None)
            share = (won.difference / loss.difference, *limits)
    return RepairedPlant(
        label=label,
        value=value,
        scenes=len(as_it_is),
        before_as_it_is=float(as_it_is.mean()),
        before=float(before.mean()),
        after=after,
        true_loss=loss,
        won=won,
        won_back=share[0],
        won_back_low=share[1],
        won_back_high=share[2],
        regained=regained,
        newly_lost=newly_lost,
        best_control=best,
        over_best_control=_pair(repaired, with_value[best], value),
    )


def repaired_model(
    model: str,
    plants: Sequence[RepairedPlant],
    scores: Mapping[Arm, Scores],
    view: RepairView,
    figures: Sequence[SceneFigures] = (),
) -> RepairedModel:
    """The figures of a model; `scores` are those of all arms on n ≥ 1 scenes as they are."""
    seconds = 0.0 if view.finished_at is None else (view.finished_at - view.created_at).total_seconds()
    return RepairedModel(
        model=model,
        plants=list(plants),
        own_scenes=len(scores["before"]),
        own_before=float(scores["before"].mean()),
        own_after={arm: float(scores[arm].mean()) for arm in TRAINED},
        lost=_pair(scores["repaired"], scores["before"], model),
        sets=[] if view.result is None else view.result.sets,
        sentences=[] if view.result is None else view.result.sentences,
        seconds=round(seconds, 1),
        figures=list(figures),
    )


def _pair(mine: Scores, baseline: Scores, name: str) -> Paired:
    return pair(mine, baseline, np.arange(len(mine)), derive_seed("measured repair", name))


def best_control(after: dict[Arm, float]) -> TrainedArm:
    """The control with the highest accuracy; ties go to the first one."""
    return max(CONTROLS, key=lambda arm: after[arm])
