"""The plan of a job as its owner reads it: before the job exists (a dry run) and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.jobs.checks_off import checks_off, unchecked_methods
from gateway.jobs.designs import design_of
from gateway.jobs.rounds import renderings_of_design
from gateway.jobs.sensitivity import GroupedTruth, sensitivity_of
from gateway.jobs.sequences import (
    PlannedImage,
    folders_suffice,
    look_like_sequences,
    may_be_one_sequence,
    repeated_images,
)
from gateway.methods import JobMethod
from shared.schemas.base import Kind
from shared.schemas.designs import DesignKind
from shared.schemas.jobs import ImageFailure
from shared.schemas.plans import JobPlan


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """What a job's plan says apart from counts of its images. `classes` may be empty: those of the images."""

    task_description: str
    kind: Kind
    methods: Sequence[JobMethod]
    models: list[str]
    classes: list[str]
    profile: str
    seed: int
    design: DesignKind
    budget: int | None
    test_set: list[str]
    outside_domain: str


def describe_plan(
    job: PlannedJob, images: Sequence[PlannedImage], working_side: int, failures: list[ImageFailure] | None = None
) -> JobPlan:
    """The plan of a job with these images. `failures`: the first of the images that cannot be used."""
    classes = job.classes or sorted({label for image in images for label in image.truths})
    truths = [GroupedTruth(image.truths, image.group) for image in images]
    sides = [image.side for image in images if image.side is not None]
    return JobPlan(
        task_description=job.task_description,
        kind=job.kind,
        methods=[method.choice() for method in job.methods],
        unchecked=unchecked_methods(job.methods, job.kind),
        checks_off=checks_off(job.methods, job.kind),
        models=job.models,
        classes=classes,
        profile=job.profile,
        seed=job.seed,
        images=len(images),
        labelled=sum(bool(image.truths) for image in images),
        missing=len(images) - len(sides),
        working_side=working_side,
        at_working_side=sum(side >= working_side for side in sides),
        groups=group_count(image.group for image in images),
        repeated=repeated_images(images),
        look_like_sequences=look_like_sequences(images, classes),
        may_be_one_sequence=may_be_one_sequence(images, classes),
        folders_suffice=folders_suffice(images),
        failures=failures or [],
        test_set=job.test_set,
        outside_domain=job.outside_domain,
        design=design_of(job.design, job.budget, job.methods),
        renderings=renderings_of_design(job.design, job.budget, job.methods, len(images)),
        sensitivity=sensitivity_of(truths, job.methods, job.kind),
    )


def group_count(names: Iterable[str | None]) -> int | None:
    """The number of groups; an image without a group counts as one. None if no image has a group."""
    counts = Counter(names)
    alone = counts.pop(None, 0)
    return alone + len(counts) if counts else None
