"""The plan of a job as its owner reads it: before the job exists (a dry run) and after.

Which image checks cannot refuse anything in a job: those without a threshold that an image can miss.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.jobs.designs import design_of
from gateway.jobs.rounds import renderings_of_design
from gateway.jobs.sensitivity import GroupedTruth, accepted_share, planned, sensitivity_of
from gateway.jobs.sequences import (
    PlannedImage,
    folders_suffice,
    look_like_sequences,
    may_be_one_sequence,
)
from gateway.kinds import checks_elsewhere
from gateway.methods import METHODS, JobMethod
from gateway.methods.checks import LABEL, LIMITS, RECAPTION, RENDERED_CHECKS, effective_thresholds, factors_off
from gateway.methods.controlled import ControlledParameters
from gateway.methods.counterfactual import FACTORS, Thresholds
from gateway.methods.validity import CheckParameters
from shared.profiles.profile import CheckCalibration
from shared.schemas.base import Kind
from shared.schemas.designs import DesignKind, ValueSource
from shared.schemas.evaluation import AskedQuestion
from shared.schemas.jobs import ImageFailure
from shared.schemas.plans import JobPlan, PlannedQuestions, PlannedRenderings
from shared.schemas.validity import VALIDITY


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """What a job's plan says apart from counts of its images. `classes` may be empty: those of the images.

    `calibrations`: those of the profile's checks. `asked`: the questions of models that are asked one, by model.
    """

    task_description: str
    kind: Kind
    methods: Sequence[JobMethod]
    models: list[str]
    classes: list[str]
    profile: str
    seed: int
    design: DesignKind
    chosen_by: ValueSource | None
    budget: int | None
    test_set: list[str]
    outside_domain: str
    calibrations: Sequence[CheckCalibration]
    asked: Mapping[str, AskedQuestion] = field(default_factory=dict)


def describe_plan(
    job: PlannedJob, images: Sequence[PlannedImage], working_side: int, failures: list[ImageFailure] | None = None
) -> JobPlan:
    """The plan of a job with these images. `failures`: the first of the images that cannot be used."""
    classes = job.classes or sorted({label for image in images for label in image.truths})
    truths = [GroupedTruth(image.truths, image.group) for image in images]
    unchecked = unchecked_methods(job.methods, job.kind)
    share = None if unchecked else accepted_share(job.methods, job.calibrations, job.kind)
    sides = [image.side for image in images if image.side is not None]
    renderings = renderings_of_design(job.design, job.budget, job.methods, len(images))
    return JobPlan(
        task_description=job.task_description,
        kind=job.kind,
        methods=[method.choice() for method in job.methods],
        unchecked=unchecked,
        checks_off=checks_off(job.methods, job.kind),
        models=job.models,
        classes=classes,
        profile=job.profile,
        seed=job.seed,
        images=len(images),
        labelled=sum(image.labelled for image in images),
        missing=len(images) - len(sides),
        working_side=working_side,
        at_working_side=sum(side >= working_side for side in sides),
        groups=group_count(image.group for image in images),
        look_like_sequences=look_like_sequences(images, classes),
        may_be_one_sequence=may_be_one_sequence(images, classes),
        folders_suffice=folders_suffice(images),
        failures=failures or [],
        test_set=job.test_set,
        outside_domain=job.outside_domain,
        design=design_of(job.design, job.budget, job.methods, job.chosen_by),
        renderings=renderings,
        questions=[_questions(model, asked, renderings, images) for model, asked in job.asked.items()],
        sensitivity=sensitivity_of(truths, job.methods, job.kind, planned(job.design, share)),
    )


def _questions(
    model: str, asked: AskedQuestion, renderings: Sequence[PlannedRenderings], images: Sequence[PlannedImage]
) -> PlannedQuestions:
    """What a model is asked at most: of each original with and without its picture, and of each rendered image."""
    of_originals = sum(image.questions for image in images)
    rendered = sum(cost.edits + cost.null_arms + cost.sham_arms for cost in renderings)  # as many of each image
    count = 2 * of_originals + math.ceil(rendered * of_originals / max(1, len(images)))
    usage = asked.usage.for_questions(count) if asked.usage.questions else None
    return PlannedQuestions(model=model, question=asked.question, questions=count, usage=usage)


def group_count(names: Iterable[str | None]) -> int | None:
    """The number of groups; an image without a group counts as one. None if no image has a group."""
    counts = Counter(names)
    alone = counts.pop(None, 0)
    return alone + len(counts) if counts else None


def checks_off(methods: Sequence[JobMethod], kind: Kind) -> dict[str, list[str]]:
    """Method → its checks that score images and refuse none; methods without such are left out.

    They have no threshold, or only thresholds that are not above the lowest possible score (`factors_off`). The factors
    for which alone a check refuses nothing follow it in brackets. A method with the combined check `validity` is left
    out: that check weighs all scores. Some checks apply to some kinds (`TaskKind.checks`), `recaption` to jobs that ask
    for it.
    """
    elsewhere = checks_elsewhere(kind)
    off: dict[str, list[str]] = {}
    for method in methods:
        parameters = method.parameters
        if not isinstance(parameters, CheckParameters) or VALIDITY in effective_thresholds(method.thresholds):
            continue
        asked = [name for name in METHODS[method.name].checks if parameters.recaption or name != RECAPTION]
        applying = [name for name in asked if name not in elsewhere]
        if checks := _off(applying, {**LIMITS, **method.thresholds}):
            off[method.name] = checks
    return off


def _off(checks: Sequence[str], thresholds: Thresholds) -> list[str]:
    off = []
    for check in checks:
        passing = factors_off(check, thresholds[check]) if check in thresholds else FACTORS
        if passing:
            off.append(check if len(passing) == len(FACTORS) else f"{check} ({_words(passing)})")
    return off


def _words(factors: Sequence[str]) -> str:
    """Some factors, or all but the others if these are fewer."""
    others = [factor for factor in FACTORS if factor not in factors]
    return ", ".join(factors) if len(factors) <= len(others) else f"all but {', '.join(others)}"


def unchecked_methods(methods: Sequence[JobMethod], kind: Kind) -> list[str]:
    """The methods that render new images without any check that could reject one, even an image of noise."""
    elsewhere = checks_elsewhere(kind)
    deciding = {VALIDITY, *(name for name in (LABEL, *RENDERED_CHECKS) if name not in elsewhere)}
    return [
        method.name
        for method in methods
        if isinstance(parameters := method.parameters, ControlledParameters)
        and not parameters.recaption
        and not deciding & set(effective_thresholds(parameters.thresholds))
    ]
