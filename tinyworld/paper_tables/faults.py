"""Where tests find faults: errors of each model by class, and by the value that was changed to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gateway.analysis.certainty import clustered_rate, wilson
from shared.schemas.jobs import CounterfactualView, ModelOpinion, PredictionView
from shared.schemas.results import Rate
from tinyworld.paper_tables.rows import Faults

Kind = Literal["class", "value"]
Asked = Callable[[ModelOpinion], PredictionView | None]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What one model says of one accepted counterfactual and the images beside it."""

    position: int
    said: ModelOpinion


def faults(views: Sequence[CounterfactualView]) -> list[Faults]:
    """Of each model: by the class of the source image, then by value, where exactly one thing was changed.

    Rejected counterfactuals and source images without ground truth are left out.
    """
    groups: defaultdict[tuple[str, Kind, str], list[_Asked]] = defaultdict(list)
    for view in views:
        if not view.verdict.accepted or view.source.ground_truth is None:
            continue
        for said in view.predictions:
            asked = _Asked(view.source.position, said)
            groups[said.model, "class", view.source.ground_truth].append(asked)
            if len(view.changes) == 1 and view.changes[0].to_value:
                groups[said.model, "value", view.changes[0].to_value].append(asked)
    return [_faults(*key, members) for key, members in sorted(groups.items())]


def _faults(model: str, of: Kind, name: str, members: Sequence[_Asked]) -> Faults:
    wrong = [one.said.counterfactual for one in members if _wrong(one.said.counterfactual)]
    called = Counter(said.predicted for said in wrong if said is not None)
    return Faults(
        model=model,
        of=of,
        name=name,
        originals=_of_sources(members),
        nulls=_rate(members, lambda said: said.null_arm),
        counterfactuals=_rate(members, lambda said: said.counterfactual),
        called=dict(called.most_common()),
    )


def _of_sources(members: Sequence[_Asked]) -> Rate:
    by_source = {one.position: one.said.original for one in members if one.said.original is not None}
    return wilson(sum(map(_wrong, by_source.values())), len(by_source))


def _rate(members: Sequence[_Asked], asked: Asked) -> Rate:
    there = [(one.position, said) for one in members if (said := asked(one.said)) is not None]
    hits = np.array([_wrong(said) for _, said in there], bool)
    return clustered_rate(hits, np.array([position for position, _ in there], np.int64))


def _wrong(said: PredictionView | None) -> bool:
    return said is not None and said.rank != 1
