"""`contrafact track`: a finished job, or the run of a suite, as a run of MLflow or Weights & Biases."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from contrafact.command_line import URL, JobId, Key, Url, messages, open_client
from contrafact.tracked_job import TrackedJob, load_tracked_job


def track(
    job: JobId,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="MLflow: a server's URL, sqlite:///FILE, or file:FOLDER")
    ] = None,
    experiment: Annotated[str, typer.Option(help="MLflow: the experiment")] = "contrafact",
    wandb: Annotated[
        bool, typer.Option("--wandb", help="Weights & Biases; WANDB_MODE=offline stores the run here")
    ] = False,
    project: Annotated[str, typer.Option(help="Weights & Biases: the project")] = "contrafact",
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Log a job's effects with their intervals, its report and its data set, and print the id of each tracker's run.

    JOB may be the run of a suite. The data set's digest depends on the images alone, so the runs of a suite share it.
    """
    with open_client(url, api_key) as client:
        if mlflow is None and not wandb:
            raise ValueError("name a tracker: --mlflow URI, --wandb, or both")
        needed = [name for name, used in (("mlflow", mlflow is not None), ("wandb", wandb)) if used]
        _require(needed)
        tracked = load_tracked_job(client, job, url)
        messages.print(f"{len(tracked.metrics)} metrics, data set {tracked.data.digest}")
        if mlflow is not None:
            print(_to_mlflow(tracked, mlflow, experiment))
        if wandb:
            print(_to_wandb(tracked, project))


def _require(names: list[str]) -> None:
    """Raises ValueError if the extra of a tracker is not installed."""
    for name in names:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise ValueError(f"the tracker is not installed; install Contrafact with its extra `{name}`") from error


def _to_mlflow(job: TrackedJob, uri: str, experiment: str) -> str:
    from contrafact.mlflow_tracker import log_to_mlflow  # an extra, which this command alone needs

    return log_to_mlflow(job, uri, experiment)


def _to_wandb(job: TrackedJob, project: str) -> str:
    from contrafact.wandb_tracker import log_to_wandb  # an extra, which this command alone needs

    return log_to_wandb(job, project)
