"""The plan of a job: `POST /jobs?dry_run=true` and `GET /jobs/{id}/plan`.

Which drops the source images of a job can detect, in its plan and in its report.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.schemas.base import TASK_DESCRIPTION, Contract, Kind
from shared.schemas.designs import Design
from shared.schemas.evaluation import TokenUsage
from shared.schemas.jobs import ImageFailure, MethodChoice

Unit = Literal["image", "group"]


class DetectableDrop(Contract):
    """The smallest drop (0 to 1; None: none) that the images of one class detect with 80 % power.

    `sources`: its source images. `groups`: the groups that they form, which decide the drop; None where each image is
    its own.
    """

    label: str
    sources: int
    groups: int | None = None
    drop: float | None
    sentence: str


class ImagesNeeded(Contract):
    """How many source images (or groups) detect a drop (0 to 1) with 80 % power; None for more than 5,000."""

    drop: float
    sources: int | None


class Sensitivity(Contract):
    """What a job can detect: before it starts from the number of source images (or groups) of each class, and in its
    report from how many edits were accepted and how often the models were right on null arms.

    `unit`: what counts; groups, if any of them has several images. `family`: the assumed number of cells tested
    together. `classes` is empty without ground truth.
    """

    unit: Unit = "image"
    family: int
    classes: list[DetectableDrop]
    needed: list[ImagesNeeded]
    assumption: str


class PlannedRenderings(Contract):
    """The most images that one method renders in a job: attempts at edits, null arms and sham arms."""

    method: str
    edits: int
    null_arms: int
    sham_arms: int


class PlannedQuestions(Contract):
    """A model that is asked a `question` with its options, and at most how many `questions`, pictures with them or not.

    `usage`: what these take if they are as long as those that it answered since the evaluator started; None if it has
    answered none, or if its server does not count tokens.
    """

    model: str
    question: str
    questions: int
    usage: TokenUsage | None


class JobPlan(Contract):
    """What a job will do, and which drops in accuracy its source images can detect.

    `images` counts the usable images, `labelled` those of them with a ground truth, `missing` those that are not
    uploaded yet (a dry run assumes that they are usable); `failures` lists the first 20 unusable ones. `unchecked`
    names the methods whose images no check can refuse, noise included, because the profile has no thresholds for them.
    `checks_off`: method → its checks that refuse nothing, because the profile has no threshold that an image can miss;
    "caption (weather)" refuses nothing for that factor only.
    `design` has the values that every image gets in a balanced design. `renderings` is what each method costs at most.
    `groups` is None where each image is its own; then `look_like_sequences` says that file names suggest frames of
    sequences, and `folders_suffice` that `group_by` folder gives each class of 12 or more images at least 12 groups.
    `may_be_one_sequence`: at least 90 % of the images are numbered in one run, and their names do not say whether they
    are frames of one video.
    `test_set` says in a line each what is used of the files, what is left out and why, and where labels come from.
    `outside_domain` says that images are not of the kind that the profile's models know; empty if they are.
    `questions`: before the job exists, of the models that are asked one.
    """

    task_description: Annotated[str, Field(validation_alias=TASK_DESCRIPTION)]
    kind: Kind = "classification"
    methods: list[MethodChoice]
    unchecked: list[str] = Field(default_factory=list)
    checks_off: dict[str, list[str]] = Field(default_factory=dict)
    models: list[str]
    classes: list[str]
    profile: str
    seed: int
    images: int
    labelled: int
    missing: int
    working_side: int
    at_working_side: int
    groups: int | None = None
    look_like_sequences: bool = False
    may_be_one_sequence: bool = False
    folders_suffice: bool = False
    failures: list[ImageFailure]
    test_set: list[str] = Field(default_factory=list)
    outside_domain: str = ""
    design: Design = Field(default_factory=Design)
    renderings: list[PlannedRenderings] = Field(default_factory=list)
    questions: Annotated[list[PlannedQuestions], Field(exclude_if=lambda questions: not questions)] = Field(
        default_factory=list
    )
    sensitivity: Sensitivity
