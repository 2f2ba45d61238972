"""Which drops the source images of a job can detect, in its plan and in its report."""

from __future__ import annotations

from typing import Literal

from shared.schemas.base import Contract

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
