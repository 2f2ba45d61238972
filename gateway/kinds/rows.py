"""The rows of a job that its figures need, edits paired with the predictions for their images, and phrases of edits."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from gateway.analysis.effects import Integers
from gateway.database.columns import StoredChange
from shared.profiles.judge_audit import CountingQuestions
from shared.schemas.base import JsonObject
from shared.schemas.evaluation import TokenUsage
from shared.schemas.scores import HELD, labels_of

PhrasePairs = tuple[tuple[str, str], ...]  # from and to, one pair for each change of an edit


class CounterfactualRow(NamedTuple):
    """An edit, null arm or sham arm, as far as the figures need it; `evaluations` are the editor's network evaluations.

    `shapes` and `recaption` are the scores of these checks, `second` whether the second scorer accepts the image (1 or
    0), and `validity` and the judge's answers those scores; None where they were not made. `asked`: the number of
    questions to the judge. `null_check` and
    `lost_to` of an edit are as in `tables.Counterfactual`. `clarity`: how well the image shows the edit, and that the
    rest is unchanged, for the choice of pictures; 0 without these scores.
    """

    position: int
    id: str
    source_image_id: str
    method: str
    ordinal: int
    arm: str
    null_ordinal: int | None
    changes: list[StoredChange]
    rendered: bool
    accepted: bool
    check: str
    evaluations: int | None
    shapes: float | None = None
    recaption: float | None = None
    sham_ordinal: int | None = None
    null_check: str | None = None
    lost_to: str = ""
    second: float | None = None
    validity: float | None = None
    clarity: float = 0.0
    asked: int | None = None
    judge_label: float | None = None
    judge_value: float | None = None
    judge_rest: float | None = None
    pairwise: float | None = None

    def judged(self, counting: CountingQuestions) -> float | None:
        """The least certain answer of a sound judge, 0 to 1; 1/2 if it gave none, and None if it was not asked.

        Prediction-powered inference corrects any such score, so an answer that is missing is no verdict.
        """
        if not self.asked or not counting.names:
            return None
        shown = [answer for name in counting.shown if (answer := getattr(self, name)) is not None][:1]
        others = [answer for name in counting.others if (answer := getattr(self, name)) is not None]
        return min([*shown, *others], default=0.5)

    @property
    def counted(self) -> bool:
        """As `tables.Counterfactual.counted`: whether the pair enters the main estimates."""
        return self.accepted and not self.lost_to

    @property
    def comparable(self) -> bool:
        """Whether the arm that the edit is measured against has an image."""
        return self.lost_to != "not finite"


class PredictionRow(NamedTuple):
    """The prediction of one model under test for one image, as in `tables.Prediction`."""

    position: int
    source_image_id: str
    counterfactual_id: str | None
    model: str
    predicted: str
    probability: float
    flipped: bool | None
    scores: dict[str, float]
    detail: JsonObject

    def holds(self, label: str) -> bool:
        """Whether the model is right, or detects the label."""
        return self.scores.get(label, 0.0) >= HELD

    def confidence(self, label: str) -> float | None:
        """Confidence in the truth, 0 to 1: its probability, or the score of the label where there is none."""
        return cast("float | None", self.detail.get("truth_probability", self.scores.get(label)))


def usage_in(detail: JsonObject) -> TokenUsage | None:
    """The tokens of the questions about an image, from the `detail` of its prediction; None if no server counted."""
    return TokenUsage.model_validate(detail["usage"]) if "usage" in detail else None


def labels(prediction: PredictionRow | None) -> list[str]:
    """The labels by which a model's predictions are scored, from that for the original; none without one."""
    return labels_of(prediction.scores) if prediction else []


class SourceNumbers(NamedTuple):
    """The numbers of a source image and of its group in the arrays of the analysis, both from 0."""

    source: int
    group: int


class CompletePair(NamedTuple):
    """An accepted edit, and the predictions for its images, none of which is missing.

    `reference` of an edit whose arm has no image is the null arm.
    """

    edit: CounterfactualRow
    original: PredictionRow
    null: PredictionRow
    counterfactual: PredictionRow
    reference: PredictionRow


@dataclass(frozen=True, slots=True)
class EditPhrases:
    """Class and phrases of n edits: `label` and `change` are indices in `labels` and `changes`."""

    labels: tuple[str, ...]
    changes: tuple[PhrasePairs, ...]
    label: Integers
    change: Integers

    def phrases(self) -> set[str]:
        """All phrases that are not empty."""
        return {phrase for pairs in self.changes for pair in pairs for phrase in pair if phrase}


NO_PHRASES = EditPhrases((), (), np.zeros(0, np.int64), np.zeros(0, np.int64))


class PhraseColumns:
    """Collects `EditPhrases`."""

    def __init__(self) -> None:
        self._labels: dict[str, int] = {}
        self._changes: dict[PhrasePairs, int] = {}
        self._label, self._change = array("q"), array("q")

    def add(self, label: str, changes: list[StoredChange]) -> PhrasePairs:
        """Add an edit; returns its phrases."""
        pairs = tuple((change["from_phrase"], change["to_phrase"]) for change in changes)
        self._label.append(self._labels.setdefault(label, len(self._labels)))
        self._change.append(self._changes.setdefault(pairs, len(self._changes)))
        return pairs

    def phrases(self) -> EditPhrases:
        """All edits, as arrays."""
        return EditPhrases(tuple(self._labels), tuple(self._changes), np.asarray(self._label), np.asarray(self._change))
