"""The papers' own metrics of a model under test, for each kind of model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.schemas.base import Contract
from shared.schemas.effects import CellEffect, Interval, MeanOverlap, ProbabilityChange, Rate
from shared.schemas.evaluation import Unanswered


class Accuracy(Contract):
    """acc@k: the truth is among the k most probable classes. Every original, null arm and counterfactual counts once.

    `originals` are those with accepted counterfactuals. `delta` is the mean over accepted counterfactuals of
    (correct@k − its original's correct@k), in −1 … 1; `delta_null` the same of their null arms. None without
    counterfactuals. `all_originals` are all of the job's, and `delta_all` is acc@k of counterfactuals minus theirs
    (LANCE, equation 3 and Table 2); None in results from before they were measured.
    """

    k: int
    originals: Rate
    nulls: Rate
    counterfactuals: Rate
    delta: float | None
    delta_null: float | None
    all_originals: Rate | None = None
    delta_all: float | None = None


OriginalsStanding = Literal["sound", "open", "unsound"]


class ExchangedClass(Contract):
    """A class that a model predicts where it means another one."""

    predicted: str
    meant: str


class BlindBaseline(Contract):
    """What a model that is asked a question answers without the pictures: each original's question once more.

    Of a model that answers questions about images it is of all of these, and `chance` is the share of the most
    frequent answers. Else it is of the originals whose label it knows and whose question it answered with the
    picture. `right`: how many answers without the picture are right (none is not), and `chance` the share (0 … 1) of
    a guess among the options. `of_right`: of the right answers with the picture, how many are right without it, too.
    `unanswered`: how many have no answer without the picture. `same`: of the others, how many have the same answer;
    `same_by_chance`: the share if the answers with and without it had nothing to do with each other. `looks`: it is
    surely right more often with the pictures than without (one-sided, 2.5 %). Without ground truth the answer with
    the picture counts as right.
    """

    right: Rate
    chance: float
    of_right: Rate
    unanswered: int = 0
    same: Rate
    same_by_chance: float
    looks: bool


class AnswerFigures(Contract):
    """The answers to the questions of one label ("": of all) on some images, as counts of questions.

    `right`: of those that were answered. `unanswered`: of the others, how many for each reason; they are neither right
    nor wrong.
    """

    label: str
    right: Rate
    unanswered: dict[Unanswered, int] = Field(default_factory=dict)


class AnswerMetrics(Contract):
    """What a model answers under one method, in total and by label, in the same order in each list.

    `all_originals` are all source images, `blind` the same questions without the pictures (empty if they were not
    asked). The other three have the questions of the pairs that count which were answered on each of their images; of
    these, `lost` are right on the original and wrong on the counterfactual, `lost_null` on the null arm.
    `delta`: the mean over sources of the share of right answers on counterfactuals less that on the arm that they are
    measured against, -1 to 1, with its 95 % `interval`; None without pairs.
    `steady` (is not fooled): of the answers that are right on the null arm, and must not change, how many are right on
    the counterfactual. `follows` (looks at the picture): of those that must change, how many become the new answer, and
    `stays` how many stay the old one; None without edits that must change an answer.
    """

    all_originals: list[AnswerFigures]
    blind: list[AnswerFigures]
    originals: list[AnswerFigures]
    nulls: list[AnswerFigures]
    counterfactuals: list[AnswerFigures]
    lost: Rate
    lost_null: Rate
    delta: float | None = None
    interval: Interval | None = None
    steady: Rate
    follows: Annotated[Rate | None, Field(exclude_if=lambda rate: rate is None)] = None
    stays: Annotated[Rate | None, Field(exclude_if=lambda rate: rate is None)] = None


class OriginalsCheck(Contract):
    """A model on all originals with a ground truth that it knows: without being right there, it gets no verdict.

    `right` counts the right predictions; `chance` is the share (0 … 1) expected if predictions had nothing to do with
    labels. `sound`: it agrees with its labels more often than with shuffled ones, and is surely right more often
    than a model that always says the largest class. `unsound`: it does not agree, since `order` exchanges classes
    so that it is right, or `only` one class is predicted for everything, or the upper limit is near or below
    chance. `open`: neither is shown; then the model is tested, but is not said to have no weakness. A sound model
    may have an `order`, too, if some of its classes are exchanged. `right_in_order`: how often it is right with the
    exchange, on the half of the images that did not choose it. `sentence`: what is wrong or doubtful, "" if nothing
    is. Without ground truth `right` and `chance` are None, and a model that says `only` one class is `open`. Of a
    segmenter `right` is its mean IoU, and `chance` that of a mask of one class, or of pixels drawn by the shares of
    its classes. Of a detector they are its mean recall, and that of its boxes on other images. `never`: classes of 12
    originals or more on which a sound model scores 10 % at most; hardly anything can be lost there. `blind`: of a model
    that is asked a question; one that does not look at the pictures is `unsound`.
    """

    right: Rate | MeanOverlap | None = None
    chance: float | None = None
    standing: OriginalsStanding
    only: str = ""
    order: list[ExchangedClass] = Field(default_factory=list)
    right_in_order: Rate | None = None
    never: Annotated[list[str], Field(exclude_if=lambda never: not never)] = Field(default_factory=list)
    blind: Annotated[BlindBaseline | None, Field(exclude_if=lambda blind: blind is None)] = None
    sentence: str = ""

    @property
    def lets_pass(self) -> bool:
        """Whether nothing found means that there is nothing: the model is right, and no classes are exchanged."""
        return self.standing == "sound" and not self.order


class AllOrNone(Contract):
    """DILLEMA's shares of correctly predicted source images whose first `k` counterfactuals all fail, or none of them.

    Only source images with at least `k` accepted counterfactuals are counted.
    """

    k: int
    all_fail: Rate
    none_fail: Rate


class PaperMetrics(Contract):
    """The two papers' own figures, for one method and model under test.

    Probabilities are those of the ground truth, or without one, of the class predicted on the original. `flips`
    compares the prediction with the original's and needs no ground truth; `flips_null` is the same for the null arms.
    `probability_changes` are sorted by factor.
    """

    accuracy: list[Accuracy]
    error_rate: Rate
    error_rate_null: Rate
    delta_probability: float | None
    mean_absolute_delta_probability: float | None
    mean_absolute_delta_probability_null: float | None
    flips: Rate
    flips_null: Rate
    all_or_none: AllOrNone | None
    probability_changes: list[ProbabilityChange] = Field(default_factory=list)


ConfusionMatrix = list[list[float]]


class ConfusionPairs(Contract):
    """How many counterfactuals are behind each cell of confusion matrices, by the arm whose prediction is in the cell.

    A counterfactual is behind a cell of `originals` by the prediction on its source image, of `nulls` by that on its
    null arm. A segmenter has pixels of one image in several cells.
    """

    originals: list[list[int]]
    nulls: list[list[int]]
    counterfactuals: list[list[int]]


class ClassConfusion(Contract):
    """A classifier's confusion on the pairs that count: predicted classes by class of the reference.

    `classes`: at most 40 classes of the reference, those with the most counterfactuals; `more` counts the others, which
    have no row. `columns`: the same classes, then the most predicted other classes (40 columns at most), then "other",
    and "none" with a threshold of confidence. A matrix has a row for each of `classes`, normalised to 1. Each original
    and null arm counts once; `images` are the counterfactuals of each row. `difference`: counterfactuals less null
    arms, −1 … 1.
    """

    classes: list[str]
    columns: list[str]
    more: int
    images: list[int]
    originals: ConfusionMatrix
    nulls: ConfusionMatrix
    counterfactuals: ConfusionMatrix
    difference: ConfusionMatrix
    pairs: Annotated[ConfusionPairs | None, Field(description="missing in older results")] = None


class SegmentationScores(Contract):
    """A segmenter on some images, their pixels pooled; void pixels are left out. Lists are in the order of `classes`.

    `iou` (of classes that the reference or the prediction has), `mean_iou` (over those of the reference), `accuracy`
    (share of pixels that are right) and `class_accuracy` (by class of the reference; `mean_accuracy` is their mean) are
    in 0 … 1, None where there is nothing to judge. `confusion` has a row for each class of the reference, normalised to
    1, a column for each class predicted, and one more for classes that the job does not have.
    """

    images: int
    pixels: int
    mean_iou: float | None
    accuracy: float | None
    mean_accuracy: float | None
    iou: list[float | None]
    class_accuracy: list[float | None]
    class_pixels: list[int]
    confusion: ConfusionMatrix


class SegmentationMetrics(Contract):
    """A segmenter's figures under one method. Without masks, the original's map is the reference.

    `originals`, `nulls`, `counterfactuals` and `difference` pool the pixels of pairs in which both arms are accepted.
    Originals and null arms count once for each of their pairs: `images` counts distinct images, `pixels` the pixels of
    all pairs. Under methods without null arms `nulls` are the originals. `difference` is the counterfactuals' confusion
    less the null arms'. `delta_iou`: per source image the mean over its pairs of the counterfactual's mIoU less that of
    the arm that it is compared with (sham arm, or else null arm), sources weighted equally, −1 … 1, with its interval
    (None below two sources). `delta_pooled_iou` is the mIoU of the pooled pixels (DILLEMA's figure) of the
    counterfactuals less that of these arms, over the classes of the reference, with a jackknife interval over groups of
    source images; `no_pooled_interval` says why there is none. `lost`: accepted counterfactuals on which a class is not
    found (IoU below 0.5) that was found on the original; `lost_null` the same of null arms. `all_originals`: every
    source image once, with or without an accepted pair, as segmentation benchmarks and the papers count (None in older
    results).
    """

    classes: list[str]
    colours: Annotated[list[str], Field(description="colours of the classes in overlays: #804080")]
    all_originals: SegmentationScores | None = None
    originals: SegmentationScores
    nulls: SegmentationScores
    counterfactuals: SegmentationScores
    difference: ConfusionMatrix
    delta_iou: float | None
    interval: Interval | None
    delta_pooled_iou: float | None = None
    pooled_interval: Interval | None = None
    no_pooled_interval: str = ""
    lost: Rate
    lost_null: Rate
    pairs: Annotated[ConfusionPairs | None, Field(description="missing in older results")] = None


class AveragePrecision(Contract):
    """COCO's average precision by pycocotools, 0 … 1: over IoU 0.5 to 0.95, at 0.5, at 0.75, and by size of objects.

    None where there is no object. Up to 100 boxes of a class and image count, whatever their score.
    """

    ap: float | None
    ap50: float | None
    ap75: float | None
    small: float | None
    medium: float | None
    large: float | None


PrecisionFigure = Literal["ap", "ap50", "ap75", "small", "medium", "large"]


class PrecisionDifference(Contract):
    """A figure of `AveragePrecision` on counterfactuals less that on the arms that they are compared with, −1 … 1.

    The interval is a bootstrap over source images (or groups); None below 12.
    """

    difference: float
    interval: Interval | None


ObjectSize = Literal["small", "medium", "large"]


class FoundObjects(Contract):
    """How many objects of one class, or of one size, there are, and how many of them are found."""

    objects: int
    found: int


class DetectionScores(Contract):
    """A detector on some images, at the job's threshold of scores and of IoU; ignored objects are left out.

    `found`, `mislocated`, `misclassified` and `missed` count `objects`; `hallucinations` and `duplicates` count the
    boxes beside them. `hallucinating`: images with a hallucination. `classes` are in the job's order, sizes COCO's: an
    area under 32² pixels is small, one under 96² medium.
    """

    images: int
    objects: int
    found: int
    mislocated: int
    misclassified: int
    missed: int
    hallucinations: int
    duplicates: int
    hallucinating: Rate
    classes: list[FoundObjects]
    sizes: dict[ObjectSize, FoundObjects]
    precision: AveragePrecision


class DetectionMetrics(Contract):
    """A detector's figures under one method. Without boxes, those that it finds on the original are the reference.

    `all_originals` counts every source image once. `originals`, `nulls` and `counterfactuals` are those of pairs in
    which both arms are accepted, once for each pair, and images without an object are among them. `delta_recall`: per
    source image the mean over its pairs of the counterfactual's recall less that of the arm that it is compared with,
    −1 … 1, with its interval (None below two sources). `delta_ap` is COCO's AP of the counterfactuals less that of
    these arms, with a bootstrap interval over source images (or groups; None below 12); `precision_differences` has
    it with AP50, AP75 and AP by size. `lost`: accepted
    counterfactuals on which an object is not found that was found on the original; `lost_null` the same of null arms.
    `delta_hallucinating`: per source image the share of its counterfactuals with a hallucination less that of the arms.
    `scores` are those of single classes in place of `score`; `chosen`: the originals chose them for this model.
    `best_scores`: by class the least score, in steps of 0.05, with the highest F1 on the originals (at most 512), of
    equally good ones the middle; empty without ground truth. `hallucination_cells`: a family of cells of all images,
    with objects or without; the score of an image is 1 without a hallucination and 0 with one, so that a weakness is a
    value under which the detector hallucinates more.
    """

    classes: list[str]
    iou: float
    score: float
    scores: Annotated[dict[str, float], Field(exclude_if=lambda scores: not scores)] = Field(default_factory=dict)
    chosen: Annotated[bool, Field(exclude_if=lambda chosen: not chosen)] = False
    best_scores: Annotated[dict[str, float], Field(exclude_if=lambda best: not best)] = Field(default_factory=dict)
    all_originals: DetectionScores
    originals: DetectionScores
    nulls: DetectionScores
    counterfactuals: DetectionScores
    delta_recall: float | None
    interval: Interval | None
    delta_ap: float | None
    ap_interval: Interval | None
    precision_differences: dict[PrecisionFigure, PrecisionDifference] = Field(default_factory=dict)
    delta_hallucinating: float | None
    hallucinating_interval: Interval | None
    lost: Rate
    lost_null: Rate
    hallucination_cells: Annotated[list[CellEffect], Field(exclude_if=lambda cells: not cells)] = Field(
        default_factory=list
    )

    @property
    def more_hallucinations(self) -> list[CellEffect]:
        """The cells in which the detector hallucinates more, the strongest first."""
        return [cell for cell in self.hallucination_cells if cell.standing == "weakness" and cell.part_of is None]
