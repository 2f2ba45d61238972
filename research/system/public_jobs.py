"""Run jobs as a user would: through the public API of an embedded system in a separate process."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

from contrafact.client import Client
from shared.package import module
from shared.problems import NotReady
from shared.profiles.weights import REPOSITORY
from shared.schemas.jobs import JobDetail, JobSpec
from shared.schemas.repairs import TRAINED, RepairRequest, RepairView, TrainedArm
from shared.schemas.results import JobResults

WAIT_SECONDS = 2.0
START_SECONDS = 1800.0


@contextlib.contextmanager
def embedded_client(directory: Path, profile: str) -> Iterator[Client]:
    """A client of a ready embedded system; the system ends with the block.

    `profile` is a shipped profile's name or a path. Raises RuntimeError if the system does not start.
    """
    place = ["--directory", str(directory.resolve()), "--profile", profile]
    command = [sys.executable, "-m", module("embedded"), "--port", "0", *place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()  # "Contrafact answers at URL and keeps everything in DIRECTORY"
            if " answers at " not in line:
                raise RuntimeError("the embedded system did not start; its message is above")
            with contextlib.closing(Client(line.split(" answers at ")[1].split()[0])) as client:
                _wait_until_ready(client)
                yield client
        finally:
            process.terminate()


def _wait_until_ready(client: Client) -> None:
    """Wait until all weights are loaded. Raises NotReady if that fails, or takes longer than on a busy machine."""
    give_up = time.monotonic() + START_SECONDS
    while True:
        try:
            client.models_when_ready()
            return
        except NotReady as problem:
            if problem.members.get("failed") is True or time.monotonic() > give_up:
                raise


def run_job(client: Client, spec: JobSpec, folder: Path, title: str) -> JobDetail:
    """Run one job over the pictures of a folder, to its end; `title` names it in the progress.

    The pictures are PNG files with a `manifest.csv`, or in `images/`, with masks of the same names in `masks/`. Jobs of
    an interrupted run are cancelled first; their recorded renderings are reused.
    """
    archive = folder.with_suffix(".tar")
    with tarfile.open(archive, "w") as tar:
        for path in sorted(path for place in (".", "images", "masks") for path in (folder / place).glob("*.png")):
            tar.add(path, path.relative_to(folder))
    manifest = folder / "manifest.csv"
    for abandoned in client.jobs().jobs:
        if abandoned.state == "running":
            client.cancel(abandoned.id)
    started = client.create_from_archive(spec, archive, manifest.read_bytes() if manifest.exists() else None)
    printed_per_cent = -1
    for job in client.follow(started.id):  # goes on after a broken connection: a run takes hours
        if (per_cent := int(100 * job.progress.fraction)) >= printed_per_cent + 5:
            print(f"{title}: {per_cent} %", file=sys.stderr, flush=True)
            printed_per_cent = per_cent
    return job


def run_repair(client: Client, job: str, request: RepairRequest) -> RepairView:
    """Repair a model on a job's counterfactuals, to its end. Raises RuntimeError if the repair fails."""
    return wait_for_repair(client, client.begin_repair(job, request))


def wait_for_repair(client: Client, view: RepairView) -> RepairView:
    """Wait until a repair has ended. Raises RuntimeError if it has no result."""
    while view.state == "running":
        time.sleep(WAIT_SECONDS)
        view = client.repair(view.id)
    if view.result is None:
        raise RuntimeError(f"the repair of {view.request.model} is {view.state}: {view.failure}")
    return view


def repaired_models(client: Client, repair: str, folder: Path) -> dict[TrainedArm, Path]:
    """Download the repaired model and its controls, each to a folder of its own in `folder`."""
    for arm in TRAINED:
        with tarfile.open(fileobj=io.BytesIO(client.repaired_model(repair, arm))) as archive:
            archive.extractall(folder / arm, filter="data")
    return {arm: folder / arm for arm in TRAINED}


def figures(client: Client, job: JobDetail) -> JobResults:
    """The results of a job. Raises RuntimeError for a job without results."""
    measured = client.results(job.id, {}, limit=1).metrics
    if job.state != "done" or measured is None:
        raise RuntimeError(f"job {job.id} ended as {job.state} without results: {job.failure}")
    return measured


def seconds_of(job: JobDetail) -> float:
    """Seconds from a job's start to its end, interruptions included."""
    return 0.0 if job.finished_at is None else (job.finished_at - job.created_at).total_seconds()
