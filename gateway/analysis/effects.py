"""Effects in cells: per source image, a model's scores on counterfactuals minus those on their null or sham arms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shared.schemas.effects import Cell

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Arm = TypeVar("Arm")


# pairs: both the edit and the arm that it is compared with (its sham arm, or else its null arm) are accepted.
# edits: the edit is, whatever became of that arm. null: the edit and its null arm are, where there are sham arms.
Estimand = Literal["pairs", "edits", "null"]


@dataclass(frozen=True, slots=True)
class Counting:
    """Which of m accepted edits each estimand takes; `null` is None where there are no sham arms.

    `edits` leaves out those without a reference arm to compare with.
    """

    pairs: NDArray[np.bool_]
    edits: NDArray[np.bool_]
    null: NDArray[np.bool_] | None = None

    def of(self, estimand: Estimand) -> NDArray[np.bool_]:
        """The mask of an estimand; none of the edits where it does not exist."""
        masks = {"pairs": self.pairs, "edits": self.edits, "null": self.null}
        mask = masks[estimand]
        return np.zeros(len(self.pairs), bool) if mask is None else mask


class Grouped:
    """Rows by source image (`source`) and by the group that it belongs to (`group`; None: each is its own)."""

    __slots__ = ()
    source: Integers
    group: Integers | None

    @property
    def cluster(self) -> Integers:
        """The independent unit of each row: its group, or its source image."""
        return self.source if self.group is None else self.group


class Arms(Generic[Arm]):
    """What a model gives for null arms and for sham arms (None: there are none)."""

    __slots__ = ()
    null: Arm
    sham: Arm | None

    def reference(self, estimand: Estimand = "pairs") -> Arm:
        """What counterfactuals are compared with."""
        return self.null if self.sham is None or estimand == "null" else self.sham


@dataclass(frozen=True, slots=True)
class Predictions:
    """One model's predictions for n images, as arrays of length n.

    `p_truth`: probability of the true class, in 0 … 1; NaN if unknown. `rank`: rank of the true class, 1 = correct.
    `predicted`: the number of the most probable class. All arrays of a job number classes alike. `confidence`: its
    probability, 0 … 1 (None: not loaded).
    """

    p_truth: Floats
    rank: Integers
    predicted: Integers
    confidence: Floats | None = None

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the true class has rank 1."""
        return np.asarray(self.rank == 1)


class Originals(NamedTuple):
    """One model's ranks of the true class (1 = correct) for all n source images that it predicts on, and their groups.

    Source images without an accepted counterfactual are among them. `truth` and `predicted` number classes, by the
    names in `classes`. Without ground truth a prediction is its own label.
    """

    rank: Integers
    group: Integers
    truth: Integers = np.zeros(0, np.int64)
    predicted: Integers = np.zeros(0, np.int64)
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scores(Grouped, Arms[Floats]):
    """A model's scores on the accepted counterfactuals of one method, in 0 … 1, whatever the kind of task.

    `source`, `group`, `ordinal` and `original` describe m counterfactuals: source image, numbered from 0, its group
    (None: each image is its own), such as the frames of a sequence, order within the source image, and score of the
    source image. The n rows (`null`, `counterfactual`) score a label of a counterfactual: `image` is its place among
    the m. A score is 1 where a classifier is right and 0 elsewhere, an IoU, or a recall. Kinds with several labels in
    an image have a row for each label of the reference and one for their mean. `null` is the counterfactual's own null
    arm, or its original where the method has none. `whole` names the rows of whole images, `cells` those of each cell;
    a counterfactual with several changes is in several cells. Without ground truth the reference is the prediction for
    the original. `sham` (of the n rows) are the scores of sham arms (None: none), and `counting` (of the m) says which
    counterfactuals each estimand takes (None: all).
    """

    source: Integers
    ordinal: Integers
    original: Floats
    image: Integers
    null: Floats
    counterfactual: Floats
    whole: Integers
    cells: Mapping[Cell, Integers]
    group: Integers | None = None
    sham: Floats | None = None
    counting: Counting | None = None

    def rows_in(self, rows: Integers, estimand: Estimand = "pairs") -> Integers:
        """Those of the rows that an estimand takes."""
        return rows if self.counting is None else rows[self.counting.of(estimand)[self.image[rows]]]

    def p_truth_differences(self, rows: Integers, estimand: Estimand) -> Floats:
        """By row the probability of the truth less that on the reference arm, −1 … 1; NaN where there is none."""
        return np.full(len(rows), np.nan)

    def losses(self, rows: Integers) -> Floats:
        """What each of the rows loses against its reference arm, −1 … 1; 0 of the others, in an array of all rows."""
        losses, counted = np.zeros(len(self.null)), self.rows_in(rows)
        losses[counted] = self.reference()[counted] - self.counterfactual[counted]
        return losses

    def said_instead(self, rows: Integers) -> Integers:
        """The numbers of the classes that the model names where it loses; none of scores without classes."""
        return np.zeros(0, np.int64)

    def accuracy(self, scores: Floats) -> float | None:
        """How often the model is right, 0 … 1, by some of these scores; None if scores are not right or wrong."""
        return None


@dataclass(frozen=True, slots=True)
class Ranks(Arms[Predictions]):
    """A classifier's predictions for the images of m counterfactuals, and for their arms."""

    original: Predictions
    null: Predictions
    counterfactual: Predictions
    sham: Predictions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes(Scores):
    """A classifier's scores, one for each of m counterfactuals, with the predictions behind them (`ranks`).

    `null_arm` numbers null arms, since siblings may share one. `edit` numbers edits: seeds of one edit share a number
    (None: each counterfactual is an edit).
    """

    ranks: Ranks
    null_arm: Integers
    edit: Integers | None = None

    @classmethod
    def of(
        cls,
        ranks: Ranks,
        *,
        source: Integers,
        ordinal: Integers,
        null_arm: Integers,
        cells: Mapping[Cell, Integers],
        group: Integers | None = None,
        counting: Counting | None = None,
        edit: Integers | None = None,
    ) -> Outcomes:
        """The scores of predictions: 1 where the true class has rank 1."""
        every = np.arange(len(source))
        return cls(
            source=source,
            ordinal=ordinal,
            original=ranks.original.correct.astype(float),
            image=every,
            null=ranks.null.correct.astype(float),
            counterfactual=ranks.counterfactual.correct.astype(float),
            whole=every,
            cells=cells,
            group=group,
            sham=None if ranks.sham is None else ranks.sham.correct.astype(float),
            counting=counting,
            ranks=ranks,
            null_arm=null_arm,
            edit=edit,
        )

    def p_truth_differences(self, rows: Integers, estimand: Estimand) -> Floats:
        """As in `Scores`."""
        return self.ranks.counterfactual.p_truth[rows] - self.ranks.reference(estimand).p_truth[rows]

    def said_instead(self, rows: Integers) -> Integers:
        """As in `Scores`."""
        return self.ranks.counterfactual.predicted[self.losses(rows) > 0]

    def accuracy(self, scores: Floats) -> float | None:
        """As in `Scores`; None without scores."""
        return float(scores.mean()) if len(scores) else None


@dataclass(frozen=True, slots=True)
class Differences:
    """Per group of source images of a cell, the mean of counterfactual − reference arm, in −1 … 1.

    Means are over the counterfactuals of a source image, then over the source images of a group; most often a group is
    one source image. Arrays of one length m, in the order of `group` (ascending); `sources`
    (None: one in each group) and `counterfactuals` are how many went into them. `null_accuracy`: how often the model is
    right on their reference arms (0 … 1), None of segmenters. `sizes`: the counterfactuals of each group (None: alike).

    `left`: their number was not fixed beforehand, but their order was, and they are in it; how many differences were
    expected from each on, itself included. None: their number was fixed.
    """

    group: Integers
    correct: Floats
    p_truth: Floats
    counterfactuals: int
    sources: int | None = None
    null_accuracy: float | None = None
    sizes: Integers | None = None
    left: Floats | None = None

    @property
    def paired(self) -> bool:
        """Whether each is one edit of one image, right or wrong, beside its arm, and their number was fixed."""
        alone = self.counterfactuals == len(self.correct) == (self.sources or self.counterfactuals)
        return self.left is None and alone and self.null_accuracy is not None


class Units(NamedTuple):
    """n rows by source image and group: averages over the rows of a source image, then over those of a group.

    `group`: the distinct groups, ascending. `source_of_row` and `group_of_source` are indices from 0.
    """

    group: Integers
    sources: int
    source_of_row: Integers
    rows_of_source: Integers
    group_of_source: Integers

    @classmethod
    def of(cls, source: Integers, group: Integers) -> Units:
        """The units of n rows, given the source image and the group of each."""
        _, first, index, counts = np.unique(source, return_index=True, return_inverse=True, return_counts=True)
        groups, group_index = np.unique(group[first], return_inverse=True)
        return cls(groups, len(counts), index, counts, group_index)

    def means(self, values: Floats) -> Floats:
        """The mean of n values in each group, in the order of `group`."""
        source_means = np.bincount(self.source_of_row, values, self.sources) / self.rows_of_source
        group_sums = np.bincount(self.group_of_source, source_means, len(self.group))
        return np.asarray(group_sums / np.bincount(self.group_of_source, minlength=len(self.group)))

    @property
    def rows_of_group(self) -> Integers:
        """The number of rows of each group, in the order of `group`."""
        return np.bincount(self.group_of_source, self.rows_of_source, len(self.group)).astype(np.int64)


def differences(scores: Scores, rows: Integers, estimand: Estimand = "pairs") -> Differences:
    """Per-group differences of those of `rows` that the estimand takes."""
    rows = scores.rows_in(rows, estimand)
    image, reference = scores.image[rows], scores.reference(estimand)[rows]
    units = Units.of(scores.source[image], scores.cluster[image])
    return Differences(
        units.group,
        units.means(scores.counterfactual[rows] - reference),
        units.means(scores.p_truth_differences(rows, estimand)),
        len(rows),
        units.sources,
        scores.accuracy(reference),
        units.rows_of_group,
    )
