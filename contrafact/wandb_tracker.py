"""A job as a run of Weights & Biases. Needs the extra `wandb`."""

from __future__ import annotations

import wandb

from contrafact.tracked_job import TrackedJob

PROJECT = "contrafact"


def log_to_wandb(job: TrackedJob, project: str = PROJECT) -> str:
    """Store the job as a run of a project, and return the run's id. `WANDB_MODE=offline` stores it here.

    The data set is an artifact without images: their digests, as JSON lines. Raises ValueError for what W&B refuses.
    """
    try:
        with wandb.init(project=project, name=job.id, config=job.parameters, job_type="evaluation") as run:
            run.log(job.metrics)
            run.log_artifact(_artifact(job.data.name, "dataset", {"dataset.jsonl": job.data.listing}, _about_data(job)))
            run.log_artifact(_artifact(f"report-{job.id}", "report", job.files, {"job": job.id}))
            return str(run.id)
    except wandb.errors.Error as error:
        raise ValueError(f"Weights & Biases refused the run: {error}") from error


def _about_data(job: TrackedJob) -> dict[str, str | int]:
    return {"digest": job.data.digest, "source": job.data.source, "counterfactuals": job.data.images}


def _artifact(name: str, kind: str, files: dict[str, bytes], metadata: dict[str, str | int]) -> wandb.Artifact:
    artifact = wandb.Artifact(name, type=kind, metadata=metadata)
    for file_name, content in files.items():
        with artifact.new_file(file_name, mode="wb") as file:
            file.write(content)
    return artifact
