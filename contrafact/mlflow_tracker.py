"""A job as a run of MLflow. Needs the extra `mlflow`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from contrafact.tracked_job import TrackedJob
from shared.chunks import chunks

EXPERIMENT = "contrafact"
BATCH = 500  # MLflow takes 1,000 metrics in a call


def log_to_mlflow(job: TrackedJob, uri: str, experiment: str = EXPERIMENT) -> str:
    """Store the job as a finished run of an experiment, which is created if it is missing; return the run's id.

    Raises ValueError for what MLflow refuses and for files that cannot be sent. After any error the run, if there is
    one, is marked as failed, after Ctrl-C as killed.
    """
    try:
        client = MlflowClient(tracking_uri=uri)
        existing = client.get_experiment_by_name(experiment)
        experiment_id = client.create_experiment(experiment) if existing is None else existing.experiment_id
        run_id: str = client.create_run(experiment_id, run_name=job.id, tags={"contrafact.job": job.id}).info.run_id
    except MlflowException as error:
        raise ValueError(f"MLflow at {uri} refused the run: {error.message}") from error
    try:
        _fill(client, run_id, job)
        client.set_terminated(run_id)
    except MlflowException as error:
        _end(client, run_id, "FAILED")
        raise ValueError(f"MLflow at {uri} refused the run {run_id}: {error.message}") from error
    except OSError as error:
        _end(client, run_id, "FAILED")
        raise ValueError(f"the files of the run {run_id} cannot be sent to MLflow at {uri}: {error}") from error
    except BaseException as error:
        _end(client, run_id, "FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    return run_id


def _end(client: MlflowClient, run_id: str, status: str) -> None:
    """Set a run's final status. A server that cannot be reached is no second error."""
    with suppress(Exception):
        client.set_terminated(run_id, status)


def _fill(client: MlflowClient, run_id: str, job: TrackedJob) -> None:
    now = int(1000 * time.time())
    parameters = [Param(name, value[:500]) for name, value in job.parameters.items()]
    client.log_batch(run_id, params=parameters)
    metrics = [Metric(name, value, now, 0) for name, value in job.metrics.items()]
    for batch in chunks(metrics, BATCH):
        client.log_batch(run_id, metrics=batch)
    client.log_inputs(run_id, [_data_set(job)])
    with TemporaryDirectory() as directory:
        for path in _write_files(Path(directory), job):
            client.log_artifact(run_id, str(path))


def _data_set(job: TrackedJob) -> DatasetInput:
    data = job.data
    profile = json.dumps({"counterfactuals": data.images})
    source = json.dumps({"url": data.source})
    data_set = Dataset(data.name, data.digest, source_type="http", source=source, profile=profile)
    return DatasetInput(data_set, tags=[InputTag("mlflow.data.context", "evaluation")])


def _write_files(directory: Path, job: TrackedJob) -> Sequence[Path]:
    paths = []
    for name, content in {**job.files, "dataset.jsonl": job.data.listing}.items():
        paths.append(directory / name)
        paths[-1].write_bytes(content)
    return paths
