"""What `measure_repair` keeps: repairs of planted models as the renderer judges them, as data and as a table."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from shared.schemas.base import Contract
from shared.schemas.repairs import CONTROLS, TRAINED, Arm, Paired, RepairRequest, SetFigures, TrainedArm
from shared.weights import REPOSITORY

COMMITTED = tuple(REPOSITORY / "benchmarks/results" / name for name in ("repair.json", "repair-lacking.json"))


class RepairedPlant(Contract):
    """What renderer truth says of one planted weakness; differences in −1 … 1 over scenes of the planted class.

    `won_back`: `won` as a share of `true_loss`, with the 95 % interval that resamples scenes; None where that loss does
    not stand up.
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
    best_control: TrainedArm
    over_best_control: Paired


class RepairedModel(Contract):
    """One model: its plants, what the repair cost on scenes as they are, and what the system itself found and said.

    `sets`: its figures on the job's held-out source images and their counterfactuals.
    """

    model: str
    plants: list[RepairedPlant]
    own_scenes: int
    own_before: float
    own_after: dict[Arm, float]
    lost: Paired
    sets: list[SetFigures] = Field(default_factory=list)
    said: list[str]
    seconds: float


class MeasuredRepairs(Contract):
    """All models of a measurement.

    `lacking`: what no source image of the job shows, nor a scene of those "as they are" ("time=night"). `scenes_from`:
    the first of the scenes that judge, of the split "final-test".
    """

    command: str
    per_class: int
    lacking: list[str] = Field(default_factory=list)
    scenes_from: int = 400_000
    factors: list[str]
    counterfactuals: int
    request: RepairRequest
    models: list[RepairedModel]


def committed() -> list[MeasuredRepairs]:
    """The measurements that are committed, in their order."""
    return [read(path) for path in COMMITTED if path.exists()]


def read(path: Path) -> MeasuredRepairs:
    """A measurement from its file. Raises ValueError where the file is none."""
    return MeasuredRepairs.model_validate_json(path.read_text(encoding="utf-8"))


def table(measured: MeasuredRepairs) -> str:
    """The measurement in Markdown: a line per plant."""
    images = (
        f"no source image shows {', '.join(measured.lacking)}"
        if measured.lacking
        else "the source images hold what was planted, too"
    )
    lines = [
        f"{images[0].upper()}{images[1:]}. {measured.counterfactuals} accepted counterfactuals of "
        f"{measured.per_class} source images a class, {measured.request.steps} steps, seed {measured.request.seed}: "
        f"`{measured.command}`",
        "",
        f"| model | planted | right: as it is → with the value | {' | '.join(TRAINED)} | won back "
        "| over the best control | on scenes as they are | n |",
        "|---" * (len(TRAINED) + 7) + "|",
    ]
    for model in measured.models:
        for plant in model.plants:
            arms = " | ".join(f"{plant.after[arm]:.1%}" for arm in TRAINED)
            lines.append(
                f"| {model.model} | {plant.label}, {plant.value} | {plant.before_as_it_is:.1%} → {plant.before:.1%} "
                f"| {arms} | {_share(plant)} | {_points(plant.over_best_control)}, {plant.best_control} "
                f"| {_points(model.lost)} | {plant.scenes}, {model.own_scenes} |"
            )
    return "\n".join(lines)


def best_control(after: dict[Arm, float]) -> TrainedArm:
    """The first of the controls that are right most often."""
    return max(CONTROLS, key=lambda arm: after[arm])


def _share(plant: RepairedPlant) -> str:
    if plant.won_back is None:
        return "nothing to win"
    if plant.won_back_low is None or plant.won_back_high is None:
        return f"{plant.won_back:.0%}"
    return f"{plant.won_back:.0%} ({100 * plant.won_back_low:.0f} to {100 * plant.won_back_high:.0f})"


def _points(found: Paired) -> str:
    said = f"{100 * found.difference:+.1f}"
    if found.interval is None:
        return said
    return f"{said} ({100 * found.interval.low:+.1f} to {100 * found.interval.high:+.1f})"
