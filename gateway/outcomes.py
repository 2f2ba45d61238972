"""Rows of a job as typed arrays: what the analysis computes on."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from sqlalchemy import null, select
from sqlalchemy.orm import Session

from gateway.analysis.effects import Outcomes, Predictions
from gateway.analysis.validity import Screened
from gateway.tables import Counterfactual, Job, Prediction, SourceImage
from shared.schemas.results import Cell, Direction, Relation


class SourceRow(NamedTuple):
    """A source image, as far as the figures need it."""

    id: str
    state: str
    ground_truth: str | None


class CounterfactualRow(NamedTuple):
    """An edit or null arm, as far as the figures need it; `evaluations` are the editor's network evaluations."""

    id: str
    source: str
    method: str
    ordinal: int
    arm: str
    null_ordinal: int | None
    changes: list[dict[str, Any]]
    rendered: bool
    accepted: bool
    check: str
    evaluations: int | None


class PredictionRow(NamedTuple):
    """What one model under test said of one image; `top` only where there is no ground truth to look up."""

    source: str
    counterfactual: str | None
    model: str
    predicted: str
    p_truth: float | None
    rank: int | None
    top: list[dict[str, Any]] | None


@dataclass(frozen=True, slots=True)
class JobRows:
    """Everything that the figures of a job are computed from, in a fixed order."""

    job: Job
    sources: list[SourceRow]
    counterfactuals: list[CounterfactualRow]
    predictions: list[PredictionRow]

    @property
    def relation(self) -> Relation:
        """Whether predictions are held against ground truth or, where no image has one, against themselves."""
        return "labelled" if any(s.ground_truth is not None for s in self.sources) else "metamorphic"


def load_rows(session: Session, job_id: str) -> JobRows:
    """All rows of a job in four queries, without captions, images and lineage."""
    c, p, s = Counterfactual, Prediction, SourceImage
    found = session.execute(select(s.id, s.state, s.ground_truth).where(s.job_id == job_id).order_by(s.position))
    sources = [SourceRow(*row) for row in found]
    top = null() if any(source.ground_truth is not None for source in sources) else p.top
    counterfactuals = session.execute(
        select(
            c.id, c.source_image_id, c.method, c.ordinal, c.arm, c.null_ordinal, c.changes,
            c.image_digest.is_not(None), c.accepted, c.check, c.lineage["evaluations"].as_integer(),
        )
        .where(c.job_id == job_id)
        .order_by(c.position, c.method, c.ordinal)
    )  # fmt: skip
    predictions = session.execute(
        select(
            p.source_image_id, p.counterfactual_id, p.model, p.predicted, p.ground_truth_probability, p.rank, top
        ).where(p.job_id == job_id)
    )
    return JobRows(
        job=session.get_one(Job, job_id),
        sources=sources,
        counterfactuals=[CounterfactualRow(*row) for row in counterfactuals],
        predictions=[PredictionRow(*row) for row in predictions],
    )


class _Seen(NamedTuple):
    """One image as a model under test saw it."""

    p_truth: float
    rank: int
    predicted: str


def outcomes_of(rows: JobRows, method: str, said: dict[str, PredictionRow]) -> tuple[Outcomes, int]:
    """The accepted counterfactuals of a method with their null arms and originals, and how many had to be left out.

    Left out: no ground truth (in a job that has some), a class that the model does not know, or a prediction missing.
    """
    truth = {source.id: source.ground_truth for source in rows.sources}
    number = {source.id: place for place, source in enumerate(rows.sources)}
    ids = {(row.source, row.ordinal): row.id for row in rows.counterfactuals if row.method == method}
    kept: list[tuple[CounterfactualRow, _Seen, _Seen, _Seen]] = []
    members: dict[Cell, list[int]] = defaultdict(list)
    accepted = [r for r in rows.counterfactuals if r.method == method and r.arm == "edit" and r.accepted]
    for row in accepted:
        null_id = row.source if row.null_ordinal is None else ids.get((row.source, row.null_ordinal), "")
        original = said.get(row.source)
        label = original.predicted if original and rows.relation == "metamorphic" else truth[row.source]
        if label is None or original is None:
            continue
        seen = [_seen(said.get(image), label, rows.relation) for image in (row.source, null_id, row.id)]
        if seen[0] is None or seen[1] is None or seen[2] is None:
            continue
        for cell in cells_of(row, label):
            members[cell].append(len(kept))
        kept.append((row, seen[0], seen[1], seen[2]))
    names = sorted({s.predicted for _, *seens in kept for s in seens})
    code = {name: place for place, name in enumerate(names)}
    null_arms = [(number[row.source], -1 if row.null_ordinal is None else row.null_ordinal) for row, *_ in kept]
    null_code = {arm: place for place, arm in enumerate(sorted(set(null_arms)))}
    return Outcomes(
        source=np.array([number[row.source] for row, *_ in kept], np.int64),
        ordinal=np.array([row.ordinal for row, *_ in kept], np.int64),
        null_arm=np.array([null_code[arm] for arm in null_arms], np.int64),
        original=_arrays([original for _, original, _, _ in kept], code),
        null=_arrays([null for _, _, null, _ in kept], code),
        counterfactual=_arrays([counterfactual for _, _, _, counterfactual in kept], code),
        cells={cell: np.array(sorted(set(places)), np.int64) for cell, places in members.items()},
    ), len(accepted) - len(kept)


def screened_of(rows: JobRows, method: str, said: dict[str, PredictionRow]) -> dict[Cell, Screened]:
    """The rendered edits of each cell of a method, accepted or not; labels as in `outcomes_of`."""
    truth = {source.id: source.ground_truth for source in rows.sources}
    number = {source.id: place for place, source in enumerate(rows.sources)}
    members: dict[Cell, list[tuple[int, bool]]] = defaultdict(list)
    for row in rows.counterfactuals:
        if row.method != method or row.arm != "edit" or not row.rendered:
            continue
        original = said.get(row.source)
        label = (original.predicted if original else None) if rows.relation == "metamorphic" else truth[row.source]
        for cell in cells_of(row, label) if label is not None else ():
            members[cell].append((number[row.source], row.accepted))
    return {
        cell: Screened(np.array([s for s, _ in seen], np.int64), np.array([a for _, a in seen], bool))
        for cell, seen in members.items()
    }


def _seen(row: PredictionRow | None, label: str, relation: Relation) -> _Seen | None:
    if row is None:
        return None
    if relation == "labelled":
        return None if row.rank is None or row.p_truth is None else _Seen(row.p_truth, row.rank, row.predicted)
    for place, entry in enumerate(row.top or [], start=1):
        if entry["class"] == label:
            return _Seen(float(entry["probability"]), place, row.predicted)
    return _Seen(float("nan"), len(row.top or []) + 1, row.predicted)  # outside what was kept: unknown, not 0


def cells_of(row: CounterfactualRow, label: str) -> list[Cell]:
    """The cells of a counterfactual: to its new values, and from the old ones where the caption said them."""
    directions: tuple[tuple[Direction, Literal["to_value", "from_value"]], ...] = (
        ("to", "to_value"),
        ("from", "from_value"),
    )
    return [
        Cell(label=label, factor=change["factor"], value=change[key], direction=direction)
        for change in row.changes
        for direction, key in directions
        if change[key]
    ]


def _arrays(seen: list[_Seen], code: dict[str, int]) -> Predictions:
    return Predictions(
        np.array([s.p_truth for s in seen], np.float64),
        np.array([s.rank for s in seen], np.int64),
        np.array([code[s.predicted] for s in seen], np.int64),
    )
