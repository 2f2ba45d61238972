"""The task description of a job as methods see it, with the classes that edits may not name and those of pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.database.columns import StoredSpec
from gateway.database.tables import Job
from gateway.kinds import KINDS
from gateway.methods.checks import SHAPES
from gateway.methods.counterfactual import TaskDescription
from shared.schemas.jobs import JobSpec
from shared.schemas.masks import MaskSpec


def task_description_of(job: Job) -> TaskDescription:
    """The user's sentence, with the classes of the job."""
    people, masks = job.stored_spec.protected_characteristics, rename_masks(job)
    kind = KINDS[job.kind]
    of_pixels = tuple(job.classes) if SHAPES in kind.checks else ()
    things = dict.fromkeys(masks.things if masks and of_pixels else ())
    classes = protected_classes(job.stored_spec, job.classes)
    return TaskDescription(job.task_description, classes, of_pixels, tuple(things), people, localised=kind.localised)


def protected_classes(spec: StoredSpec | JobSpec, classes: Sequence[str]) -> tuple[str, ...]:
    """The label set; in a segmentation job, the classes that edits may not name.

    A class that `label_map` renames is listed under both names. In a job of questions there are none: what the answers
    name differs between images.
    """
    if spec.questions is not None:
        return ()
    if spec.masks is None:
        return tuple(classes)
    masks, renamed = spec.masks, _rename(spec.masks, spec.label_map)
    pairs = zip(masks.protected, renamed.protected, strict=True)
    return tuple(dict.fromkeys(name for pair in pairs for name in pair))


def rename_masks(job: Job) -> MaskSpec | None:
    """The meaning of the job's masks, with classes renamed by `label_map`; None in a job without masks."""
    spec = job.stored_spec
    return None if spec.masks is None else _rename(spec.masks, spec.label_map)


def _rename(masks: MaskSpec, label_map: Mapping[str, str]) -> MaskSpec:
    classes = [mask.model_copy(update={"name": label_map.get(mask.name, mask.name)}) for mask in masks.classes]
    return masks.model_copy(update={"classes": classes})
