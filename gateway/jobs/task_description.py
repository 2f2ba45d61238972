"""The task of a job as methods see it: what its edits may not touch, and what each pixel may be."""

from __future__ import annotations

from gateway.database.tables import Job
from gateway.methods.counterfactual import TaskDescription
from shared.schemas.masks import MaskSpec


def task_of(job: Job) -> TaskDescription:
    """The user's sentence, with the classes that the job has."""
    if job.kind != "segmentation":
        return TaskDescription(job.task, told_classes(job))
    masks, renamed = job.spec.get("masks"), job.spec.get("label_map", {})
    marked = MaskSpec.model_validate(masks).things if masks is not None else []
    things = dict.fromkeys(renamed.get(name, name) for name in marked)
    return TaskDescription(job.task, told_classes(job), tuple(job.classes), tuple(things))


def told_classes(job: Job) -> tuple[str, ...]:
    """The label set as methods see it; in a segmentation job the classes whose words no edit may touch."""
    masks = job.spec.get("masks")
    if masks is None:
        return tuple(job.classes)
    renamed = job.spec.get("label_map", {})
    protected = MaskSpec.model_validate(masks).protected
    return tuple(dict.fromkeys(name for one in protected for name in (one, renamed.get(one, one))))
