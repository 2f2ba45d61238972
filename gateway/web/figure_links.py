"""Links from the cells of confusion matrices to their images, and how many images the gallery shows there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from gateway.web.addresses import Value, class_filter, gallery
from shared.schemas.metrics import ClassConfusion, ConfusionPairs, SegmentationMetrics
from shared.schemas.results import ModelResults

Matrix = Literal["originals", "nulls", "counterfactuals", "difference"]
Arm = Literal["originals", "nulls", "counterfactuals"]
MatrixLink = Callable[[Matrix, int, int, float], "ImagesLink | None"]
_ON: dict[Arm, str] = {"originals": "original", "nulls": "null", "counterfactuals": "counterfactual"}
_PREDICTED: dict[Arm, str] = {
    "originals": "predicted_original", "nulls": "predicted_null", "counterfactuals": "predicted",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ImagesLink:
    """The address of images in the gallery. `number` of counterfactuals there; None in older results."""

    address: str
    number: int | None

    @property
    def words(self) -> str:
        """How many images the link leads to."""
        return "" if self.number is None else f"{self.number:,} counterfactual{'' if self.number == 1 else 's'}"


def matrix_link(job: str, figures: ModelResults, threshold: float) -> MatrixLink | None:
    """The images behind a cell of the confusion matrices, by matrix, row, column and value; None without matrices."""
    if figures.confusion is not None:
        return partial(_class_link, job, figures, figures.confusion, threshold)
    if figures.segmentation is not None:
        return partial(_pixels_link, job, figures, figures.segmentation)
    return None


def _class_link(
    job: str,
    figures: ModelResults,
    confusion: ClassConfusion,
    threshold: float,
    matrix: Matrix,
    row: int,
    column: int,
    value: float,
) -> ImagesLink:
    arm = _arm(matrix, value)
    names = confusion.columns[: -2 if threshold > 0 else -1]  # the last ones are "other" and "none"
    filters: dict[str, Value | None] = {"on": _ON[arm], **class_filter(figures, confusion.classes[row])}
    if column > len(names):
        filters["confidence_below"] = str(threshold)
    else:
        filters["confidence_from"] = str(threshold) if threshold > 0 else None
        filters |= {_PREDICTED[arm]: names[column]} if column < len(names) else {"other_than": names}
    if filters.get("other_than") is None and threshold <= 0:
        filters["on"] = None  # it is of no effect
    address = gallery(job, model=figures.model, method=figures.method, verdict="counted", **filters)
    return ImagesLink(address, _number(confusion.pairs, arm, row, column))


def _pixels_link(
    job: str,
    figures: ModelResults,
    metrics: SegmentationMetrics,
    matrix: Matrix,
    row: int,
    column: int,
    value: float,
) -> ImagesLink:
    arm = _arm(matrix, value)
    classes = metrics.classes
    pixels = [classes[row], *classes[column : column + 1]]  # the last column is of classes that the job does not have
    address = gallery(job, model=figures.model, method=figures.method, verdict="counted", on=_ON[arm], pixels=pixels)
    return ImagesLink(address, _number(metrics.pairs, arm, row, column))


def _arm(matrix: Matrix, value: float) -> Arm:
    """The arm behind a cell; behind a difference the one that is more often there."""
    if matrix != "difference":
        return matrix
    return "counterfactuals" if value > 0 else "nulls"


def _number(pairs: ConfusionPairs | None, arm: Arm, row: int, column: int) -> int | None:
    if pairs is None:
        return None
    by_arm = {"originals": pairs.originals, "nulls": pairs.nulls, "counterfactuals": pairs.counterfactuals}
    return by_arm[arm][row][column]
