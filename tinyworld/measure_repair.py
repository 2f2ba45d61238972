"""Repair planted models of the yardstick through the public API, and hold the result against renderer truth.

    python -m tinyworld.measure_repair --out runs/repair [--models night-bus-60,snow-car-60] [--per-class 60]

One job renders counterfactuals; each model is repaired on them. The repaired model and its controls are downloaded and
judged on scenes of which no generator, scorer or model under test has seen the geometry: drawn as the models' own
distribution has them, and with the planted value truly there. True loss: right on the scenes as they are minus right
with the value; won back: what the repair adds with the value, as a share of it. All paired over scenes.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoImageProcessor, AutoModelForImageClassification

from gateway.analysis.repair import paired
from gateway.client import Client
from shared.schemas.base import Contract
from shared.schemas.jobs import JobDetail, JobSpec, MethodChoice
from shared.schemas.repairs import CONTROLS, TRAINED, Arm, Paired, RepairRequest, RepairView
from shared.seeds import derive_seed
from tinyworld.demo_images import write_demo_images
from tinyworld.own_distribution import own_distribution
from tinyworld.pictures import Pixels, rendered
from tinyworld.public_jobs import embedded_client, run_job
from tinyworld.world import CLASSES
from tinyworld.yardstick.classifiers import model_folder
from tinyworld.yardstick.contrafact import profile_text
from tinyworld.yardstick.plants import MODELS, TESTED_CLASSES, Plant

TASK = "classify the vehicle in the picture"
FIRST_SCENE = 400_000  # of the split "final-test": beyond those of the answer key
SCENES = 400
LOOK_SECONDS = 2.0
AT_ONCE = 100
Bits = NDArray[np.bool_]


class RepairedPlant(Contract):
    """What renderer truth says of one planted weakness; differences in −1 … 1 over scenes of the planted class."""

    label: str
    value: str
    scenes: int
    before_as_it_is: float
    before: float
    after: dict[Arm, float]
    true_loss: Paired
    won: Paired
    won_back: float | None
    best_control: Arm
    over_best_control: Paired


class RepairedModel(Contract):
    """One model: its plants, what the repair cost on scenes as they are, and what the system itself said."""

    model: str
    plants: list[RepairedPlant]
    own_scenes: int
    own_before: float
    own_after: dict[Arm, float]
    lost: Paired
    said: list[str]
    seconds: float


class MeasuredRepairs(Contract):
    """All models of a measurement."""

    command: str
    per_class: int
    factors: list[str]
    counterfactuals: int
    request: RepairRequest
    models: list[RepairedModel]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default="night-bus-60,snow-car-60")
    parser.add_argument("--per-class", type=int, default=60)
    parser.add_argument("--classes", default=",".join(TESTED_CLASSES))
    parser.add_argument("--counterfactuals", type=int, default=5, help="of each source image")
    parser.add_argument("--scenes", type=int, default=SCENES, help="of each planted class, and as many of all classes")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    options = parser.parse_args()
    names = options.models.split(",")
    request = RepairRequest(
        model=names[0], steps=options.steps, learning_rate=options.learning_rate, hold_out_values=[]
    )
    command = (
        f"python -m tinyworld.measure_repair --models {options.models} --per-class {options.per_class} "
        f"--classes {options.classes} --counterfactuals {options.counterfactuals} --scenes {options.scenes} "
        f"--steps {options.steps} --learning-rate {options.learning_rate:g}"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    images = options.out / f"images-{options.per_class}"
    write_demo_images(images, options.classes.split(","), options.per_class)
    profile = options.out / "profile.toml"
    planned = {one.name: one for one in MODELS}
    profile.write_text(profile_text([planned[name] for name in names]))
    with embedded_client(options.out / "contrafact", str(profile.resolve())) as client:
        choice = MethodChoice(
            name="dillema",
            parameters={
                "factors": ["weather"],
                "counterfactuals_per_image": options.counterfactuals,
                "same_seed": True,
            },
        )
        job = run_job(client, JobSpec(task=TASK, methods=[choice], models=names), images, "counterfactuals")
        repaired = [
            _measured(client, job, request.model_copy(update={"model": name}), planned[name].plants, options.scenes)
            for name in names
        ]
        counterfactuals = sum(1 for _ in client.counterfactuals(job.id, {"verdict": "accepted"}))
    measured = MeasuredRepairs(
        command=command,
        per_class=options.per_class,
        factors=["weather"],
        counterfactuals=counterfactuals,
        request=request,
        models=repaired,
    )
    (options.out / "repair.json").write_text(json.dumps(measured.model_dump(mode="json"), indent=1) + "\n")
    print(table(measured))


def _measured(
    client: Client, job: JobDetail, request: RepairRequest, plants: Sequence[Plant], scenes: int
) -> RepairedModel:
    view = client.begin_repair(job.id, request)
    while view.state == "running":
        time.sleep(LOOK_SECONDS)
        view = client.repair(view.id)
    if view.result is None:
        raise RuntimeError(f"the repair of {request.model} is {view.state}: {view.failure}")
    assert view.finished_at is not None
    models: dict[Arm, Judge] = {"before": Judge(model_folder(request.model))}
    with tempfile.TemporaryDirectory() as place:
        for arm in TRAINED:
            folder = Path(place, arm)
            with tarfile.open(fileobj=io.BytesIO(client.repaired_model(view.id, arm))) as archive:
                archive.extractall(folder, filter="data")
            models[arm] = Judge(folder)
    return judged(request.model, plants, models, scenes, view)


class Judge:
    """A classifier in a folder, asked as a user would ask it."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.float32).eval()
        self._processor = AutoImageProcessor.from_pretrained(folder, backend="pil")

    @torch.inference_mode()
    def right(self, images: Sequence[Pixels], labels: Sequence[str]) -> Bits:
        """Whether each picture's label comes first."""
        said = [
            self._model(**self._processor(images=list(images[start : start + AT_ONCE]), return_tensors="pt")).logits
            for start in range(0, len(images), AT_ONCE)
        ]
        wanted = np.array([CLASSES.index(label) for label in labels])
        return np.asarray(torch.cat(said).argmax(1).numpy() == wanted)


def judged(
    model: str, plants: Sequence[Plant], models: Mapping[Arm, Judge], scenes: int, view: RepairView
) -> RepairedModel:
    """Renderer truth of one repair."""
    own = [own_distribution(FIRST_SCENE + index, "final-test") for index in range(scenes)]
    images, labels = [rendered(scene)[0] for scene in own], [scene.label for scene in own]
    right = {arm: judge.right(images, labels) for arm, judge in models.items()}
    seconds = 0.0 if view.finished_at is None else (view.finished_at - view.created_at).total_seconds()
    return RepairedModel(
        model=model,
        plants=[_plant(plant, models, scenes) for plant in plants],
        own_scenes=scenes,
        own_before=float(right["before"].mean()),
        own_after={arm: float(right[arm].mean()) for arm in TRAINED},
        lost=_paired(right["repaired"], right["before"], model),
        said=[] if view.result is None else view.result.sentences,
        seconds=round(seconds, 1),
    )


def _plant(plant: Plant, models: Mapping[Arm, Judge], scenes: int) -> RepairedPlant:
    """Scenes of the planted class, first with another value of the field than the planted one, then with it."""
    drawn = [
        own_distribution(FIRST_SCENE + index, "final-test").changed(label=plant.label) for index in range(4 * scenes)
    ]
    other = [scene for scene in drawn if getattr(scene, plant.field) != plant.value][:scenes]
    labels = [plant.label] * len(other)
    as_they_are = models["before"].right([rendered(scene)[0] for scene in other], labels)
    changed = [rendered(scene.changed(**{plant.field: plant.value}))[0] for scene in other]
    right = {arm: judge.right(changed, labels) for arm, judge in models.items()}
    best = max(CONTROLS, key=lambda arm: float(right[arm].mean()))
    loss = _paired(as_they_are, right["before"], plant.value)
    won = _paired(right["repaired"], right["before"], plant.value)
    return RepairedPlant(
        label=plant.label,
        value=plant.value,
        scenes=len(other),
        before_as_it_is=float(as_they_are.mean()),
        before=float(right["before"].mean()),
        after={arm: float(right[arm].mean()) for arm in TRAINED},
        true_loss=loss,
        won=won,
        won_back=won.difference / loss.difference if loss.interval and loss.interval.low > 0 else None,
        best_control=best,
        over_best_control=_paired(right["repaired"], right[best], plant.value),
    )


def _paired(mine: Bits, other: Bits, name: str) -> Paired:
    return paired(mine, other, np.arange(len(mine)), derive_seed("measured repair", name))


def table(measured: MeasuredRepairs) -> str:
    """The measurement in Markdown: a line per plant."""
    lines = [
        f"`{measured.command}`: {measured.counterfactuals} accepted counterfactuals, {measured.request.steps} steps.",
        "",
        "| model | planted | right as it is → with the value | repaired | won back | over the best control "
        "| on scenes as they are | n |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in measured.models:
        for plant in model.plants:
            share = "nothing to win" if plant.won_back is None else f"{plant.won_back:.0%}"
            lines.append(
                f"| {model.model} | `{plant.label}`, {plant.value} | {plant.before_as_it_is:.1%} → {plant.before:.1%} "
                f"| {plant.after['repaired']:.1%} | {share} | {_points(plant.over_best_control)} "
                f"({plant.best_control}) | {_points(model.lost)} | {plant.scenes}, {model.own_scenes} |"
            )
    return "\n".join(lines)


def _points(found: Paired) -> str:
    said = f"{100 * found.difference:+.1f}"
    if found.interval is None:
        return said
    return f"{said} [{100 * found.interval.low:+.1f}, {100 * found.interval.high:+.1f}]"


if __name__ == "__main__":
    main()
