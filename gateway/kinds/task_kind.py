"""The value that says what is particular to a kind of task, and what it makes of a reply."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from gateway.analysis.certainty import Level
from gateway.analysis.components import RenderingCost
from gateway.analysis.effects import Originals, Scores
from gateway.database.columns import StoredSpec
from gateway.kinds.originals import OriginalsJudge
from gateway.kinds.rows import NO_PHRASES, CompletePair, EditPhrases, PredictionRow, SourceNumbers
from gateway.methods.checks import ShapeService
from gateway.methods.counterfactual import MethodImage
from shared.schemas.base import ImagePayload, JsonObject, Kind
from shared.schemas.effects import CellEffect, Metric
from shared.schemas.jobs import JobSpec
from shared.schemas.results import ModelResults, Relation
from shared.service.endpoints import Endpoint, Services

TOP = 5  # classes that a prediction keeps

Answer = TypeVar("Answer")
Truth = TypeVar("Truth")
Fields = Mapping[str, object]  # of `ModelResults`


class Scored(NamedTuple):
    """A prediction for one image, and its scores by label of the truth, 0 … 1; without truth, none.

    `predicted` and `probability` are what is shown of it first. Kinds with several labels in an image have their mean
    under `ALL_CLASSES`. `detail` is the kind's own. `image`: a PNG of the prediction.
    """

    predicted: str
    probability: float
    scores: dict[str, float]
    detail: JsonObject
    image: bytes | None = None


class KindRows(NamedTuple):
    """The scores of one model under one method, of the kind's own class, and what else its figures need.

    `originals` has all source images with a truth and a prediction, `phrases` those of the `scores`. `classes` names
    the predicted classes by number.
    """

    scores: Scores
    originals: Originals = Originals(np.zeros(0, np.int64), np.zeros(0, np.int64))
    phrases: EditPhrases = NO_PHRASES
    classes: tuple[str, ...] = ()


class Detail(Protocol):
    """Collects what a kind keeps of the predictions beside their scores, one source image at a time."""

    def add(
        self,
        numbers: SourceNumbers,
        original: PredictionRow | None,
        pairs: Sequence[CompletePair],
        unscored: Sequence[CompletePair] = (),
    ) -> None:
        """Add a source image: the prediction for it, and its complete pairs, whose scores are added in this order.

        `unscored` pairs have no scores: there is no ground truth, or it has no label.
        """

    def rows(self, scores: Scores) -> KindRows:
        """All that was added, with the scores of all pairs."""


class ScoresAlone:
    """A `Detail` that keeps nothing beside the scores."""

    def add(
        self,
        numbers: SourceNumbers,
        original: PredictionRow | None,
        pairs: Sequence[CompletePair],
        unscored: Sequence[CompletePair] = (),
    ) -> None:
        """As in `Detail`."""

    def rows(self, scores: Scores) -> KindRows:
        """As in `Detail`."""
        return KindRows(scores)


class Measurement(NamedTuple):
    """What the figures of a kind depend on beside the rows: method, cost of a rendering, colours of classes, seed.

    `labelled`: there is a ground truth.
    """

    method: str
    cost: RenderingCost
    colours: Sequence[str]
    seed: int
    labelled: bool


@dataclass(frozen=True, slots=True)
class TaskKind(Generic[Answer, Truth]):
    """Everything about a kind that is not about all kinds.

    `models` and `does`: what its models are, and do; `truth` and `truths`: what its ground truth is. `announced`:
    whether a spec announces this ground truth. `localised`: truth and predictions lie at places of the image; else
    the image as a whole has them. `right_or_wrong`: scores are 0 or 1. `level`: a mean score with its interval.
    `checks`: those that only some kinds have. `no_repair`: why its models cannot be
    repaired; "" if they can. `most_classes` of a job (None: any number). `on_power`: what a plan adds
    on the drops that it can detect.

    `asks`: what a request to the `endpoint` has beside images. `answers`: of its reply, for each image, by the classes
    of the job. `truth_of` reads the ground truth of a source image. `as_truth` turns the answer for an original into
    the truth of a job without ground truth. `without`: the truth of an image in which the objects at these places are
    lost. `after`: the truth once an edit has set values, such as weather=night. `with_added`: the truth of an image,
    given the prediction for it and the source, that also has what a segmenter says that the editor added. `changed`:
    whether an edit changed the prediction, given that for the original; None if it is not known.

    `detail` and `originals` collect rows of predictions, given the classes of the job; the latter judges a model
    (relation, seed). `figures`: the fields of `ModelResults` that the kind alone has. `at_confidence`: the scores, and
    these fields, if predictions below a confidence (0 … 1) count as none, given the results without it; None where
    predictions have none.
    `nearby`: the scores at limits of confidence beside the job's, by their names; findings are repeated with them.
    `alike`: predictions for images that are compared, without what only some of the images have.
    `other_score`: the prediction with its one score by another aspect, whose cells are a family of their own, and
    `with_other_cells` the fields of the results with their effects.
    `configured`: the kind as a spec changes it for a model ("": any); None where it does not. `choose`: the limits of
    confidence by class that predictions for originals choose, if the job wants that. `baseline`: the
    prediction for an original with what else is asked about it, given the request and the reply, whose first image it
    is.
    """

    name: Kind
    models: str
    does: str
    truth: str
    truths: str
    announced: Callable[[JobSpec], bool]
    localised: bool
    checks: tuple[str, ...]
    metric: Metric
    right_or_wrong: bool
    level: Level
    endpoint: Endpoint[Any, Any]
    answers: Callable[[Any, Sequence[str]], Iterator[Answer]]
    truth_of: Callable[[MethodImage], Truth | None]
    as_truth: Callable[[Answer], Truth]
    judge: Callable[[Answer, Truth | None, Sequence[str]], Scored]
    changed: Callable[[Scored, Scored], bool | None]
    detail: Callable[[Sequence[str]], Detail]
    originals: Callable[[Sequence[str], Relation, int], OriginalsJudge]
    figures: Callable[[KindRows, Measurement], Fields]
    at_confidence: Callable[[KindRows, float, ModelResults], tuple[Scores, Fields]] | None = None
    nearby: Callable[[KindRows], Mapping[str, Scores]] | None = None
    no_repair: str = ""
    most_classes: int | None = None
    on_power: str = ""
    configured: Callable[[TaskKind[Answer, Truth], StoredSpec, str], TaskKind[Answer, Truth]] | None = None
    other_score: Callable[[PredictionRow], PredictionRow] | None = None
    with_other_cells: Callable[[ModelResults, Sequence[CellEffect]], Fields] = lambda results, effects: {}
    choose: Callable[[Sequence[PredictionRow], Sequence[str]], dict[str, float]] | None = None
    alike: Callable[[Sequence[PredictionRow | None]], Sequence[PredictionRow | None]] = lambda rows: rows
    baseline: Callable[[Scored, Any, Any, Services], Scored] = lambda original, *_: original
    asks: Callable[[MethodImage], Fields] = lambda source: {}
    after: Callable[[Truth, Collection[str]], Truth] = lambda truth, values: truth
    without: Callable[[Truth, frozenset[int]], Truth] = lambda truth, lost: truth
    with_added: Callable[[Truth, Scored, ImagePayload, ImagePayload, ShapeService], Truth] = lambda truth, *_: truth

    def of_job(self, spec: StoredSpec, model: str = "") -> TaskKind[Answer, Truth]:
        """The kind as it judges a model in a job of this spec."""
        return self if self.configured is None else self.configured(self, spec, model)

    @property
    def one_class(self) -> bool:
        """Whether the truth of an image is one class for all of it, so that its labels are classes of images."""
        return self.right_or_wrong and not self.localised

    @property
    def template(self) -> str:
        """The template with its parts of pages and reports."""
        return f"_{self.name}.html"
