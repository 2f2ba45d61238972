"""The task description of a job as methods see it, with the classes that edits may not name and those of pixels."""

from __future__ import annotations

from gateway.database.tables import Job
from gateway.methods.counterfactual import TaskDescription
from shared.schemas.masks import MaskSpec


def task_description_of(job: Job) -> TaskDescription:
    """The user's sentence, with the classes of the job."""
    if job.kind != "segmentation":
        return TaskDescription(job.task_description, protected_classes(job))
    masks = renamed_masks(job)
    things = dict.fromkeys(masks.things if masks else ())
    return TaskDescription(job.task_description, protected_classes(job), tuple(job.classes), tuple(things))


def protected_classes(job: Job) -> tuple[str, ...]:
    """The label set; in a segmentation job, the classes that edits may not name.

    A class that `label_map` renames is there by both names.
    """
    masks, renamed = _masks(job), renamed_masks(job)
    if masks is None or renamed is None:
        return tuple(job.classes)
    pairs = zip(masks.protected, renamed.protected, strict=True)
    return tuple(dict.fromkeys(name for pair in pairs for name in pair))


def renamed_masks(job: Job) -> MaskSpec | None:
    """The meaning of the job's masks, with classes renamed by `label_map`; None in a job without masks."""
    masks, renamed = _masks(job), job.spec.get("label_map")
    if masks is None or not isinstance(renamed, dict):
        return masks
    classes = [mask.model_copy(update={"name": renamed.get(mask.name, mask.name)}) for mask in masks.classes]
    return masks.model_copy(update={"classes": classes})


def _masks(job: Job) -> MaskSpec | None:
    masks = job.spec.get("masks")
    return None if masks is None else MaskSpec.model_validate(masks)
