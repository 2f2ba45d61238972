"""Contrafact's own answer: jobs through the public API of an embedded system, over one set of source images.

The models under test are registered by a profile, the shipped `tiny` one with theirs added. A job takes 20 models at
most, so there are several jobs; the first one's renderings are recorded, and the others find them.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.client import Client
from shared.profiles import shipped_profiles
from shared.schemas.jobs import JobDetail, JobSpec, MethodChoice
from shared.schemas.results import CellEffect, JobResults
from shared.weights import REPOSITORY
from tinyworld.demo_images import write_demo_images
from tinyworld.yardstick.classifiers import YARDSTICK, model_folder
from tinyworld.yardstick.formats import Answer, FoundCell, Spent
from tinyworld.yardstick.plants import CLEAN, PLANTED, TESTED_CLASSES, Planned

TASK = "classify the vehicle in the picture"
_MODEL = """
[evaluator.models_under_test.{name}]
path = "{path}"
licence = "Apache-2.0"
gigabytes = 0.01
"""
WAIT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much is asked. Sources are per class; every factor that is asked for needs counterfactuals of its own."""

    sources: int
    factors: tuple[str, ...]
    counterfactuals: int


SIZES = {
    "small": Size(sources=60, factors=("weather",), counterfactuals=5),
    "full": Size(sources=400, factors=("weather", "background", "domain", "adjective"), counterfactuals=16),
}


def answers(size: Size, command: str, groups: Sequence[Sequence[Planned]] = (PLANTED, CLEAN)) -> list[Answer]:
    """One answer per method, over all models; a job for each group. Started again, it finds what was rendered."""
    folder = YARDSTICK / f"sources-{size.sources}"
    write_demo_images(folder, TESTED_CLASSES, size.sources)
    profile = YARDSTICK / "profile.toml"
    profile.write_text(profile_text([one for group in groups for one in group]))
    with _embedded(profile) as url, contextlib.closing(Client(url)) as client:
        client.models_when_ready()
        jobs = [_job(client, folder, size, [one.name for one in group]) for group in groups]
        measured = [_results(client, job) for job in jobs]
    return merged(measured, size.factors, command, [job.models for job in jobs], _seconds(jobs))


def profile_text(planned: Sequence[Planned]) -> str:
    """The `tiny` profile with the models of the yardstick added; its paths made absolute."""
    tiny = shipped_profiles()["tiny"].read_text(encoding="utf-8")
    rooted = tiny.replace('path = "tinyworld/', f'path = "{REPOSITORY.as_posix()}/tinyworld/')
    return rooted + "".join(
        _MODEL.format(name=one.name, path=model_folder(one.name).resolve().as_posix()) for one in planned
    )


def merged(
    measured: Sequence[JobResults],
    factors: Sequence[str],
    command: str,
    models: Sequence[Sequence[str]],
    seconds: float,
) -> list[Answer]:
    """The jobs' results as one answer per method. A cell with too few images has an effect but no interval."""
    found: dict[str, list[FoundCell]] = {}
    for results in measured:
        for result in results.results:
            cells = found.setdefault(f"contrafact {result.method}", [])
            cells += [_found(result.model, effect) for effect in result.cells]
    first = measured[0]
    return [
        Answer(
            method=method,
            command=command,
            models=[name for names in models for name in names],
            factors=list(factors),
            spent=Spent(
                seconds=round(seconds, 1),
                source_images=first.sources - first.sources_failed,
                counterfactuals=next(f.accepted.count for f in first.funnels if method.endswith(f" {f.method}")),
                network_evaluations=next(c.evaluations for c in first.costs if method.endswith(f" {c.method}")),
            ),
            cells=cells,
        )
        for method, cells in found.items()
    ]


def _found(model: str, effect: CellEffect) -> FoundCell:
    finding = effect.standing in ("weakness", "improvement")
    shown = effect.selected_interval or effect.interval
    return FoundCell(
        model=model,
        cell=effect.cell,
        effect=round(effect.delta_accuracy, 4),
        low=None if shown is None else round(shown.low, 4),
        high=None if shown is None else round(shown.high, 4),
        finding=finding,
        provisional=finding and effect.provisional,
        images=effect.sources,
    )


@contextlib.contextmanager
def _embedded(profile: Path) -> Iterator[str]:
    """The URL of an embedded system in a process of its own, which ends with the block."""
    place = ["--directory", str((YARDSTICK / "contrafact").resolve()), "--profile", str(profile.resolve())]
    command = [sys.executable, "-m", "embedded", "--port", "0", *place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()  # "Contrafact answers at URL and keeps everything in DIRECTORY"
            if " answers at " not in line:
                raise RuntimeError("the embedded system did not start; its message is above")
            yield line.split(" answers at ")[1].split()[0]
        finally:
            process.terminate()


def _job(client: Client, folder: Path, size: Size, models: list[str]) -> JobDetail:
    """Run one job to its end. What an interrupted run had rendered is recorded, and found again."""
    parameters = {
        "factors": list(size.factors),
        "counterfactuals_per_image": size.counterfactuals,
        "same_seed": True,  # one null arm for all counterfactuals of an image under the same edges
    }
    spec = JobSpec(task=TASK, methods=[MethodChoice(name="dillema", parameters=parameters)], models=models)
    archive = YARDSTICK / f"{folder.name}.tar"
    with tarfile.open(archive, "w") as tar:
        for path in sorted(folder.glob("*.png")):
            tar.add(path, path.name)
    for abandoned in client.jobs().jobs:
        if abandoned.state == "running":
            client.cancel(abandoned.id)
    job = client.create_from_archive(spec, archive, (folder / "manifest.csv").read_bytes())
    shown = -1
    while (job := client.job(job.id)).state == "running":
        if (per_cent := int(100 * job.progress.fraction)) >= shown + 5:
            print(f"job of {len(models)} models: {per_cent} %", file=sys.stderr, flush=True)
            shown = per_cent
        time.sleep(WAIT_SECONDS)
    return job


def _results(client: Client, job: JobDetail) -> JobResults:
    measured = client.results(job.id, {}, limit=1).metrics
    if job.state != "done" or measured is None:
        raise RuntimeError(f"job {job.id} ended as {job.state} without results: {job.failure}")
    return measured


def _seconds(jobs: Sequence[JobDetail]) -> float:
    """From the start of each job to its end, added up; stops in between count too."""
    return sum((job.finished_at - job.created_at).total_seconds() for job in jobs if job.finished_at is not None)
