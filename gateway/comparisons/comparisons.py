"""Compares two sides: the difference of their effects in every cell, and the images on which they differ most.

Matches the source images of two jobs by their pixels and ground truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sqlalchemy import Text, cast, select, tuple_
from sqlalchemy.orm import Session

from gateway.analysis.comparisons import (
    CellRows,
    DifferingEffect,
    cell_rows,
    compare_cells,
    list_disagreements,
    number_alike,
)
from gateway.analysis.effects import Integers
from gateway.analysis.releases import members_of
from gateway.comparisons.sides import Side, Sides, choose_sides, difference_sentence, load_sides, scores_of_side
from gateway.database.pagination import decode_cursor, encode_cursor
from gateway.database.tables import Counterfactual, Job, SourceImage
from gateway.kinds import KINDS
from gateway.kinds.originals import doubts_in_words
from gateway.results.recent import Recent
from gateway.results.views import counterfactual_views
from shared.problems import InvalidInput
from shared.schemas.comparisons import CellDifference, ComparedSide, ComparisonChoice, Disagreement, JobComparison
from shared.schemas.effects import Cell
from shared.schemas.results import CounterfactualView, Relation
from shared.seeds import derive_seed

MOST_COMPARISONS = 8  # that a process keeps


class MatchedSource(NamedTuple):
    """The columns of a source image that match it with another job's."""

    position: int
    digest: str | None
    ground_truth: str | None
    mask_digest: str | None
    group_name: str | None
    boxes: str | None = None
    questions: str | None = None


@dataclass(frozen=True, slots=True)
class Matching:
    """The common numbers of n source images that two jobs share.

    `number`, `other_number`: by the job's own number of a source image, its common number or −1. `group` and
    `other_group`: the same for the number of its group. `position`, `other_position`: of the n images, in each job.
    `only_this`, `only_other`: readable images of one job alone. `relabelled`: images of both jobs whose ground truth
    differs.
    """

    number: Integers
    other_number: Integers
    group: Integers
    other_group: Integers
    position: list[int]
    other_position: list[int]
    only_this: int
    only_other: int
    relabelled: int


def match_jobs(session: Session, job: Job, other_job: Job) -> Matching:
    """The source images of two jobs with equal pixels and equal ground truth.

    Raises InvalidInput if there are none, or if the jobs put an image into different groups.
    """
    sources = _sources(session, job.id)
    others = sources if other_job.id == job.id else _sources(session, other_job.id)
    matching = match_sources(sources, others)
    if not matching.position and matching.relabelled:
        raise InvalidInput(
            f"jobs {job.id} and {other_job.id} have the same images with different ground truth, so they test "
            "different tasks; compare jobs with the same labels"
        )
    if not matching.position:
        raise InvalidInput(
            f"jobs {job.id} and {other_job.id} have no source image in common; compare jobs over the same images"
        )
    return matching


def _sources(session: Session, job_id: str) -> list[MatchedSource]:
    """The source images by position, in the order in which the analysis numbers them."""
    s = SourceImage
    truths = (cast(s.boxes, Text), cast(s.questions, Text))
    columns = select(s.position, s.digest, s.ground_truth, s.mask_digest, s.group_name, *truths)
    return [MatchedSource(*row) for row in session.execute(columns.where(s.job_id == job_id).order_by(s.position))]


def match_sources(sources: Sequence[MatchedSource], others: Sequence[MatchedSource]) -> Matching:
    """Match source images: the first of several equal ones with the first equal one, the second with the second."""
    index_of = {key: index for index, key in enumerate(_with_occurrences(_keys(others)))}
    pairs = [
        (index, index_of[key])
        for index, key in enumerate(_with_occurrences(_keys(sources)))
        if key in index_of and sources[index].digest is not None
    ]
    pixels, other_pixels = (Counter(row.digest for row in rows if row.digest) for rows in (sources, others))
    both = (pixels & other_pixels).total()
    number, other_number, group, other_group = (
        np.full(len(rows), -1, np.int64) for rows in (sources, others, sources, others)
    )
    groups: dict[tuple[str | int, ...], int] = {}
    for common, (index, other_index) in enumerate(pairs):
        name = _group_name(sources[index], others[other_index])
        key: tuple[str | int, ...] = ("image", common) if name is None else ("group", name)
        number[index] = other_number[other_index] = common
        group[index] = other_group[other_index] = groups.setdefault(key, len(groups))
    return Matching(
        number=number,
        other_number=other_number,
        group=group,
        other_group=other_group,
        position=[sources[index].position for index, _ in pairs],
        other_position=[others[index].position for _, index in pairs],
        only_this=pixels.total() - both,
        only_other=other_pixels.total() - both,
        relabelled=both - len(pairs),
    )


_Key = tuple[str | None, str | None, str | None, str | None, str | None]


def _keys(sources: Sequence[MatchedSource]) -> list[_Key]:
    return [(row.digest, row.ground_truth, row.mask_digest, row.boxes, row.questions) for row in sources]


def _with_occurrences(keys: Sequence[_Key]) -> list[tuple[_Key, int]]:
    """Each key with the number of equal ones before it."""
    counts = Counter[_Key]()
    numbered = []
    for key in keys:
        numbered.append((key, counts[key]))
        counts[key] += 1
    return numbered


def _group_name(source: MatchedSource, other: MatchedSource) -> str | None:
    """The group of an image, which either job may name. Raises InvalidInput if they name different ones."""
    names = {name for name in (source.group_name, other.group_name) if name is not None}
    if len(names) > 1:
        raise InvalidInput(
            f"the jobs put source image {source.position} into the groups {source.group_name!r} and "
            f"{other.group_name!r}; compare jobs with the same groups"
        )
    return names.pop() if names else None


_Views = dict[tuple[int, int], CounterfactualView]  # by the position of the source image and the ordinal


class JobComparisons:
    """What was compared last. It is computed again after a change of either job."""

    def __init__(self) -> None:
        self._compared: Recent[_ComparedSides] = Recent(MOST_COMPARISONS)

    def compare(
        self, session: Session, owner: str, job_id: str, choice: ComparisonChoice, cursor: str | None, limit: int
    ) -> JobComparison:
        """Compare two sides, and a page of their disagreements in the chosen cell.

        Raises NotFound, Conflict while a job is running, and InvalidInput for what cannot be compared.
        """
        sides = choose_sides(session, owner, job_id, choice)
        key = tuple((side.job.id, side.job.events, side.model, side.method) for side in sides)
        matching, paired, cells = self._compared.find(key, lambda: _compared(session, sides))
        start = 0 if cursor is None else max(0, int(decode_cursor(cursor, (int,))[0]))
        entries, count = list_disagreements(_rows_of_cell(paired, choice), start, limit)
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
            cells=cells,
            disagreeing=count,
            disagreements=_disagreements(session, sides, matching, entries),
            next=encode_cursor((start + limit,)) if count > start + limit else None,
            reserve=paired.reserve,
        )


class _Paired(NamedTuple):
    """The cells that both sides have, the number of those that one side has alone, and what speaks against a side."""

    cells: Mapping[Cell | None, CellRows]
    one_sided: int
    relation: Relation
    reserve: str


class _ComparedSides(NamedTuple):
    """What does not depend on the page: the common images, their rows by cell, and the difference in each cell."""

    matching: Matching
    paired: _Paired
    cells: list[CellDifference]


def _compared(session: Session, sides: Sides) -> _ComparedSides:
    matching = match_jobs(session, sides.this.job, sides.other.job)
    paired = _pair(session, sides, matching)
    seed = derive_seed("comparison", *(part for side in sides for part in (side.job.id, side.model, side.method)))
    cells = compare_cells(paired.cells, seed)
    return _ComparedSides(
        matching, paired, [row.model_copy(update={"sentence": difference_sentence(row)}) for row in cells]
    )


def _pair(session: Session, sides: Sides, matching: Matching) -> _Paired:
    rows, other_rows = load_sides(session, sides)
    this = number_alike(scores_of_side(rows, sides.this), matching.number, matching.group)
    other = number_alike(scores_of_side(other_rows, sides.other), matching.other_number, matching.other_group)
    cells = cell_rows(this, other, rows.relation, sides.pairing)
    all_cells = members_of(this, rows.relation).keys() | members_of(other, rows.relation).keys()
    checks = [(side.model, of_job.checks[side.model]) for side, of_job in zip(sides, (rows, other_rows), strict=True)]
    return _Paired(cells, len(all_cells) - len(cells), rows.relation, doubts_in_words(checks))


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
