"""The rows of a job as a stream of source images.

Reading needs the memory of one source image, for a job of any size: three server-side cursors (`yield_per`), all
ordered by position, are merged here. Captions and images are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Executable, func, select
from sqlalchemy.orm import Session

from gateway.database.tables import Counterfactual, Prediction, SourceImage
from gateway.kinds.rows import CounterfactualRow, PredictionRow, SourceNumbers
from gateway.methods.checks import DIRECTION, RECAPTION, SHAPES
from shared.schemas.designs import Factor
from shared.schemas.effects import Cell, Direction
from shared.schemas.results import Relation
from shared.schemas.validity import JUDGED

_FETCHED_AT_ONCE = 1_000


class SourceRow(NamedTuple):
    """The columns of a source image that the figures need."""

    position: int
    id: str
    state: str
    ground_truth: str | None
    mask_classes: list[str] | None = None
    group_name: str | None = None


@dataclass(frozen=True, slots=True)
class SourceRows:
    """One source image with its counterfactuals, by method and ordinal, and all predictions."""

    source: SourceRow
    counterfactuals: list[CounterfactualRow]
    predictions: list[PredictionRow]

    def predictions_of(self, model: str) -> dict[str, PredictionRow]:
        """The predictions of one model, by the id of the counterfactual, or of the source image."""
        return {row.counterfactual_id or row.source_image_id: row for row in self.predictions if row.model == model}


def cells_of(row: CounterfactualRow, label: str) -> list[Cell]:
    """The cells of a counterfactual: to each new value, and from each old value that the caption names."""
    directions: tuple[tuple[Direction, Literal["to_value", "from_value"]], ...] = (
        ("to", "to_value"),
        ("from", "from_value"),
    )
    return [
        _cell(label, change["factor"], change[key], direction)
        for change in row.changes
        for direction, key in directions
        if change[key]
    ]


@lru_cache(maxsize=100_000)  # a cell has many rows
def _cell(label: str, factor: Factor, value: str, direction: Direction) -> Cell:
    return Cell(label=label, factor=factor, value=value, direction=direction)


def relation_of(session: Session, job_id: str) -> Relation:
    """ "labelled" if any source image has ground truth; otherwise predictions are compared with those for originals."""
    for truth in (SourceImage.ground_truth, SourceImage.mask_classes):
        labelled = select(SourceImage.id).where(SourceImage.job_id == job_id, truth.is_not(None))
        if session.scalar(labelled.limit(1)) is not None:
            return "labelled"
    return "metamorphic"


def stream_sources(session: Session, job_id: str) -> Iterator[SourceRows]:
    """The source images of a job by position. The session must stay open while the stream is read."""
    merged = merge(
        (SourceRow(*row) for row in _cursor(session, _source_query(job_id))),
        (CounterfactualRow(*row) for row in _cursor(session, _counterfactual_query(job_id))),
        (PredictionRow(*row) for row in _cursor(session, _prediction_query(job_id))),
        key=itemgetter(0),
    )
    for _, rows in groupby(merged, key=itemgetter(0)):
        source, *members = rows  # `merge` is stable, so the source image comes first at its position
        assert isinstance(source, SourceRow)
        yield SourceRows(
            source,
            [row for row in members if isinstance(row, CounterfactualRow)],
            [row for row in members if isinstance(row, PredictionRow)],
        )


def _source_query(job_id: str) -> Executable:
    s = SourceImage
    return (
        select(s.position, s.id, s.state, s.ground_truth, s.mask_classes, s.group_name)
        .where(s.job_id == job_id)
        .order_by(s.position)
    )


def _counterfactual_query(job_id: str) -> Executable:
    c = Counterfactual
    return (
        select(
            c.position, c.id, c.source_image_id, c.method, c.ordinal, c.arm, c.null_ordinal, c.changes,
            c.image_digest.is_not(None), c.accepted, c.check, c.evaluations,
            c.scores[SHAPES].as_float(), c.scores[RECAPTION].as_float(),
            c.sham_ordinal, c.null_check, c.lost_to, c.scores["second_accepted"].as_float(),
            c.scores["validity"].as_float(), _score("structure") + _score(DIRECTION),
            c.lineage["judge"]["questions"].as_integer(), *(c.scores[name].as_float() for name in JUDGED),
        )
        .where(c.job_id == job_id)
        .order_by(c.position, c.method, c.ordinal)
    )  # fmt: skip


def _score(name: str) -> ColumnElement[float]:
    return func.coalesce(Counterfactual.scores[name].as_float(), 0.0)


def _prediction_query(job_id: str) -> Executable:
    p, s = Prediction, SourceImage
    return (
        select(
            s.position, p.source_image_id, p.counterfactual_id, p.model, p.predicted, p.probability, p.flipped,
            p.scores, p.detail,
        )
        .join(s, p.source_image_id == s.id)
        .where(p.job_id == job_id)
        .order_by(s.position)
    )  # fmt: skip


def number_sources(sources: Iterable[SourceRows]) -> Iterator[tuple[SourceNumbers, SourceRows]]:
    """Each source image with its numbers. A source image without a group is its own group."""
    groups: dict[tuple[bool, str], int] = {}
    for number, rows in enumerate(sources):
        name = rows.source.group_name
        key = (name is not None, rows.source.id if name is None else name)
        yield SourceNumbers(number, groups.setdefault(key, len(groups))), rows


def _cursor(session: Session, query: Executable) -> Iterator[Sequence[Any]]:
    return iter(session.execute(query, execution_options={"yield_per": _FETCHED_AT_ONCE}))
