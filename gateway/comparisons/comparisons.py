"""Compares two sides: the difference of their effects in every cell, and the images on which they differ most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from gateway.analysis.comparisons import (
    CellRows,
    DifferingEffect,
    cell_rows,
    compare_cells,
    list_disagreements,
    number_alike,
)
from gateway.analysis.releases import members_of
from gateway.comparisons.matching import Matching, match_jobs
from gateway.comparisons.sides import Side, Sides, choose_sides, load_sides, scores_of_side
from gateway.comparisons.wording import difference_sentence
from gateway.database.pagination import decode_cursor, encode_cursor
from gateway.database.tables import Counterfactual
from gateway.kinds import KINDS
from gateway.results.views import counterfactual_views
from shared.problems import InvalidInput
from shared.schemas.comparisons import ComparedSide, ComparisonChoice, Disagreement, JobComparison
from shared.schemas.effects import Cell
from shared.schemas.result_rows import CounterfactualView
from shared.schemas.results import Relation
from shared.seeds import derive_seed

_Views = dict[tuple[int, int], CounterfactualView]  # by the position of the source image and the ordinal


def compare(
    session: Session, owner: str, job_id: str, choice: ComparisonChoice, cursor: str | None, limit: int
) -> JobComparison:
    """Compare two sides, and a page of their disagreements in the chosen cell.

    Raises NotFound, Conflict while a job is running, and InvalidInput for what cannot be compared.
    """
    sides = choose_sides(session, owner, job_id, choice)
    matching = match_jobs(session, sides.this.job, sides.other.job)
    paired = _pair(session, sides, matching)
    start = 0 if cursor is None else max(0, int(decode_cursor(cursor, (int,))[0]))
    entries, count = list_disagreements(_rows_of_cell(paired, choice), start, limit)
    seed = derive_seed("comparison", *(part for side in sides for part in (side.job.id, side.model, side.method)))
    whole = paired.cells[None]
    sources = len(whole.images().image)
    return JobComparison(
        this=_compared_side(sides.this, sources, len(whole.rows)),
        other=_compared_side(sides.other, sources, len(whole.other_rows)),
        metric=KINDS[sides.this.job.kind].metric,
        relation=paired.relation,
        pairing=sides.pairing,
        sources=len(matching.position),
        only_this=matching.only_this,
        only_other=matching.only_other,
        relabelled=matching.relabelled,
        one_sided=paired.one_sided,
        cells=[
            row.model_copy(update={"sentence": difference_sentence(row)}) for row in compare_cells(paired.cells, seed)
        ],
        disagreeing=count,
        disagreements=_disagreements(session, sides, matching, entries),
        next=encode_cursor((start + limit,)) if count > start + limit else None,
    )


class _Paired(NamedTuple):
    """The cells that both sides have, and the number of those that one side has alone."""

    cells: Mapping[Cell | None, CellRows]
    one_sided: int
    relation: Relation


def _pair(session: Session, sides: Sides, matching: Matching) -> _Paired:
    rows, other_rows = load_sides(session, sides)
    this = number_alike(scores_of_side(rows, sides.this), matching.number, matching.group)
    other = number_alike(scores_of_side(other_rows, sides.other), matching.other_number, matching.other_group)
    cells = cell_rows(this, other, rows.relation, sides.pairing)
    all_cells = members_of(this, rows.relation).keys() | members_of(other, rows.relation).keys()
    return _Paired(cells, len(all_cells) - len(cells), rows.relation)


def _compared_side(side: Side, sources: int, counterfactuals: int) -> ComparedSide:
    return ComparedSide(
        job=side.job.id,
        model=side.model,
        method=side.method,
        revision=side.job.stored_spec.revision,
        sources=sources,
        counterfactuals=counterfactuals,
    )


def _rows_of_cell(paired: _Paired, choice: ComparisonChoice) -> CellRows:
    """The rows of the cell that a choice names. Raises InvalidInput if it names none that both sides have."""
    parts = (choice.label, choice.factor, choice.value, choice.from_value)
    if not any(parts):
        return paired.cells[None]
    if choice.cell is None or (choice.value is None) == (choice.from_value is None):
        raise InvalidInput("name a cell by its class, its factor, and either value or from")
    if paired.relation == "labelled" and choice.label is None:
        raise InvalidInput("name the cell's class, too")
    if choice.cell not in paired.cells:
        raise InvalidInput(f"both sides need the cell {' '.join(filter(None, parts))}; one of them lacks it")
    return paired.cells[choice.cell]


def _disagreements(
    session: Session, sides: Sides, matching: Matching, entries: Sequence[DifferingEffect]
) -> list[Disagreement]:
    keys = [(matching.position[entry.image], entry.ordinals) for entry in entries]
    other_keys = [(matching.other_position[entry.image], entry.other_ordinals) for entry in entries]
    views, other_views = _views(session, sides.this, keys), _views(session, sides.other, other_keys)
    disagreements = []
    for entry, (position, ordinals), (other_position, other_ordinals) in zip(entries, keys, other_keys, strict=True):
        counterfactuals = [views[position, ordinal] for ordinal in ordinals]
        disagreements.append(
            Disagreement(
                source=counterfactuals[0].source,
                effect=entry.effect,
                other_effect=entry.other_effect,
                counterfactuals=counterfactuals,
                other_counterfactuals=[other_views[other_position, ordinal] for ordinal in other_ordinals],
            )
        )
    return disagreements


def _views(session: Session, side: Side, keys: Sequence[tuple[int, Sequence[int]]]) -> _Views:
    """The counterfactuals of a side at these positions and ordinals, with the predictions of all models."""
    c = Counterfactual
    keys_of_edits = [(position, ordinal) for position, ordinals in keys for ordinal in ordinals]
    query = select(c).where(
        c.job_id == side.job.id,
        c.method == side.method,
        c.arm == "edit",
        tuple_(c.position, c.ordinal).in_(keys_of_edits),
    )
    views = counterfactual_views(session, session.scalars(query).all())
    return {(view.source.position, view.ordinal): view for view in views}
