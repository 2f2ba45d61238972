"""Shared by the repair measurements of both domains: one job, a repair of each model, results written after each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import JsonValue

from contrafact.client import Client
from research.measure.repair.records import Measured, RepairedModel, write
from research.system.public_jobs import repaired_models, run_job, run_repair
from shared.schemas.jobs import JobSpec, MethodChoice
from shared.schemas.repairs import Arm, RepairView

Model = TypeVar("Model")


def repair_spec(task: str, models: Sequence[str], factors: Sequence[str], counterfactuals: int) -> JobSpec:
    """The job that renders the training images, by DILLEMA."""
    parameters: dict[str, JsonValue] = {
        "factors": list(factors),
        "counterfactuals_per_image": counterfactuals,
        "same_seed": True,
    }
    methods = [MethodChoice(name="dillema", parameters=parameters)]
    return JobSpec(task_description=task, methods=methods, models=list(models))


def measure_repairs(
    client: Client,
    spec: JobSpec,
    sources: Path,
    path: Path,
    measured: Measured,
    load: Callable[[str, Path | None], Model],
    judge: Callable[[str, Mapping[Arm, Model], RepairView], RepairedModel],
) -> Measured:
    """Complete `measured` with the missing models of the spec; `path` is rewritten after each model.

    `load` returns a model by its name: as planted (None), or from the folder of an arm. `judge` compares them.
    """
    job = run_job(client, spec, sources, "counterfactuals")
    accepted = sum(1 for _ in client.counterfactuals(job.id, {"verdict": "accepted"}))
    for name in (spec.models or [])[len(measured.models) :]:
        view = run_repair(client, job.id, measured.request.model_copy(update={"model": name}))
        with tempfile.TemporaryDirectory() as place:
            models: dict[Arm, Model] = {"before": load(name, None)}
            models |= {arm: load(name, folder) for arm, folder in repaired_models(client, view.id, Path(place)).items()}
            repaired = judge(name, models, view)
        measured = measured.model_copy(update={"counterfactuals": accepted, "models": [*measured.models, repaired]})
        write(path, measured)
    return measured
