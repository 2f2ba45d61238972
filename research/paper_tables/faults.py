"""Errors of each model by class, and by the new value of the change."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gateway.analysis.certainty import clustered_rate
from research.paper_tables.rows import Faults
from research.statistics.rates import wilson
from shared.schemas.effects import Rate
from shared.schemas.results import CounterfactualView, ModelOpinion, PredictionView

Kind = Literal["class", "value"]
ImageOf = Callable[[ModelOpinion], PredictionView | None]


@dataclass(frozen=True, slots=True)
class _SourceOpinion:
    """One model's predictions on one accepted counterfactual, its null arm and its original."""

    position: int
    opinion: ModelOpinion


def faults(views: Sequence[CounterfactualView]) -> list[Faults]:
    """Errors of each model by the class of the source image, then by the new value if there is exactly one change.

    Rejected counterfactuals and source images without ground truth are left out.
    """
    groups: defaultdict[tuple[str, Kind, str], list[_SourceOpinion]] = defaultdict(list)
    for view in views:
        if not view.verdict.accepted or view.source.ground_truth is None:
            continue
        for opinion in view.predictions:
            entry = _SourceOpinion(view.source.position, opinion)
            groups[opinion.model, "class", view.source.ground_truth].append(entry)
            if len(view.changes) == 1 and view.changes[0].to_value:
                groups[opinion.model, "value", view.changes[0].to_value].append(entry)
    return [_faults(*key, members) for key, members in sorted(groups.items())]


def _faults(model: str, of: Kind, name: str, members: Sequence[_SourceOpinion]) -> Faults:
    wrong = [member.opinion.counterfactual for member in members if _wrong(member.opinion.counterfactual)]
    called = Counter(prediction.predicted for prediction in wrong if prediction is not None)
    return Faults(
        model=model,
        of=of,
        name=name,
        originals=_of_sources(members),
        nulls=_rate(members, lambda prediction: prediction.null_arm),
        counterfactuals=_rate(members, lambda prediction: prediction.counterfactual),
        called=dict(called.most_common()),
    )


def _of_sources(members: Sequence[_SourceOpinion]) -> Rate:
    by_source = {member.position: member.opinion.original for member in members if member.opinion.original is not None}
    return wilson(sum(map(_wrong, by_source.values())), len(by_source))


def _rate(members: Sequence[_SourceOpinion], image_of: ImageOf) -> Rate:
    predictions = [
        (member.position, prediction) for member in members if (prediction := image_of(member.opinion)) is not None
    ]
    hits = np.array([_wrong(prediction) for _, prediction in predictions], bool)
    return clustered_rate(hits, np.array([position for position, _ in predictions], np.int64))


def _wrong(prediction: PredictionView | None) -> bool:
    return prediction is not None and prediction.rank != 1
