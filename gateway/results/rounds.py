"""Rounds of adaptive jobs, planned from their recorded rows, and their cells in the order of their images.

A round is planned when every image of the one before it is finished, under the lease of the job's analysis. The plan is
a function of the rows and the job's seed. It does not depend on the order in which images finished, nor on workers that
were killed.

The design of a finished job: how many edits of each class and value were proposed, rendered and counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from gateway.analysis.allocation import LATER_ROUNDS, Suspicion, allocate
from gateway.analysis.betting import expected_left
from gateway.analysis.effects import Differences, differences
from gateway.analysis.findings import hypothesis_tests
from gateway.database.tables import Counterfactual, Job, JobRound, SourceImage
from gateway.jobs.designs import design_of, values_of
from gateway.jobs.rounds import budget_of_round, cost_of_image, other_images, places_of, rendered_by, seeded_order
from gateway.results.estimands import counted_cells
from gateway.results.job_rows import JobRows, load_rows
from shared.schemas.designs import CellSpending, ChosenValue, DesignResults, DroppedValue, PlaceShare, RoundPlan
from shared.schemas.effects import Cell


def rounds_of(session: Session, job_id: str) -> list[RoundPlan]:
    """The rounds of an adaptive job so far; empty for others."""
    return _rounds(session, job_id) if _is_adaptive(session.get_one(Job, job_id)) else []


def _is_adaptive(job: Job) -> bool:
    return job.stored_spec.design == "adaptive"


def _rounds(session: Session, job_id: str) -> list[RoundPlan]:
    return list(session.scalars(select(JobRound.plan).where(JobRound.job_id == job_id).order_by(JobRound.number)))


def next_round(session: Session, job_id: str) -> RoundPlan | None:
    """The next round of a job whose images are finished. Without places if all is decided; None if none is due."""
    rounds = _rounds(session, job_id)
    job = session.get_one(Job, job_id)
    if not _is_adaptive(job):
        return _other_images(session, job, rounds)
    if not rounds or not rounds[-1].places or job.state != "running" or len(rounds) > LATER_ROUNDS:
        return None
    rows = load_rows(session, job_id)
    done = select(SourceImage.position, SourceImage.ground_truth).where(
        SourceImage.job_id == job_id, SourceImage.state == "done"
    )
    by_label: dict[str, list[int]] = {}
    for position, label in session.execute(done.order_by(SourceImage.position)):
        by_label.setdefault(label or "", []).append(position)
    return _plan(rows, rounds, by_label)


def _other_images(session: Session, job: Job, rounds: Sequence[RoundPlan]) -> RoundPlan | None:
    """The second round of a balanced job. It looks at the checks of edits, and at no prediction."""
    if len(rounds) != 1 or job.state != "running":
        return None
    by_label: dict[str, list[int]] = {}
    sources = select(SourceImage.position, SourceImage.ground_truth).where(
        SourceImage.job_id == job.id, SourceImage.digest.is_not(None)
    )
    for position, label in session.execute(sources.order_by(SourceImage.position)):
        by_label.setdefault(label or "", []).append(position)
    return other_images(rounds[0], _accepted(session, job, rounds[0].positions()), by_label)


def _accepted(session: Session, job: Job, positions: Sequence[int]) -> dict[str, dict[ChosenValue, int]]:
    """How many edits of these source images the checks accepted, by class and value, of the method with the values."""
    c, counts = Counterfactual, defaultdict[str, dict[ChosenValue, int]](dict)
    methods = [method.name for method in job.methods if values_of(method)]
    chosen = (c.job_id == job.id, c.method.in_(methods), c.arm == "edit", c.position.in_(positions))
    rows = session.execute(
        select(SourceImage.ground_truth, c.factor, c.to_value, func.count())
        .join(SourceImage, c.source_image_id == SourceImage.id)
        .where(*chosen, c.accepted, c.factor.is_not(None))
        .group_by(SourceImage.ground_truth, c.factor, c.to_value)
    )
    for label, factor, value, count in rows:
        counts[label or ""][ChosenValue(factor=factor, value=value)] = count
    return counts


def _dropped(session: Session, job: Job) -> list[DroppedValue]:
    """The values that the other images of a class did not get, in a balanced job."""
    rounds = _rounds(session, job.id)
    if _is_adaptive(job) or len(rounds) < 2 or not rounds[1].places:
        return []
    accepted = _accepted(session, job, rounds[0].positions())
    later = {(place.label, place.chosen) for place in rounds[1].places}
    labels = {place.label for place in rounds[1].places}
    return [
        DroppedValue(
            label=place.label or None,
            chosen=place.chosen,
            images=len(place.images),
            accepted=accepted.get(place.label, {}).get(place.chosen, 0),
        )
        for place in rounds[0].places
        if place.label in labels and (place.label, place.chosen) not in later
    ]


def _plan(rows: JobRows, rounds: Sequence[RoundPlan], by_label: Mapping[str, Sequence[int]]) -> RoundPlan:
    (method,), number = rows.job.methods, len(rounds)
    rendered = rows.methods[method.name]
    spent = rendered_by(method, sum(edit.rendered for edit in rendered.edits), rendered.arms)
    rounds_left = LATER_ROUNDS + 1 - number
    budget = budget_of_round(method, max(0, (rows.job.stored_spec.budget or 0) - spent), rounds_left)
    shares, evidence = places_of(rounds), _evidence(rows, rounds)
    orders = {label: seeded_order(positions, rows.job.seed, label) for label, positions in by_label.items()}
    places = {
        _name(key): _suspicion(place, evidence[key], orders.get(place.label, ())) for key, place in shares.items()
    }
    images_of = allocate(places, budget, rounds_left, partial(cost_of_image, method))
    names = {_name(key): key for key in shares}
    return RoundPlan(
        number=number,
        places=[
            PlaceShare(label=names[name][0], chosen=names[name][1], images=images) for name, images in images_of.items()
        ],
    )


def _name(key: tuple[str, ChosenValue]) -> str:
    label, chosen = key
    return f"{label}/{chosen.factor}/{chosen.value}"


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What the models show in a place: of each its drop (−1 … 1), and whether its test rejects now.

    `images`: the images that count, of the model with the most.
    """

    drops: tuple[float, ...]
    images: int
    rejected: tuple[bool, ...]


def _evidence(rows: JobRows, rounds: Sequence[RoundPlan]) -> dict[tuple[str, ChosenValue], _Evidence]:
    models = []
    for (model, _), pair_rows in rows.models.items():
        if model in rows.job.stored_spec.reference_models:
            continue
        cells = counted_cells(pair_rows.scores.cells, partial(differences, pair_rows.scores))
        ordered = cells_of_rounds(cells, rounds)
        models.append((ordered, hypothesis_tests(ordered, rows.job.seed)))
    evidence = {}
    for key in places_of(rounds):
        cell = _cell(key)
        drops = tuple(-float(cells[cell].correct.mean()) if cell in cells else 0.0 for cells, _ in models)
        counts = [len(cells[cell].correct) for cells, _ in models if cell in cells]
        rejected = tuple(cell in tests and tests[cell].rejected for _, tests in models)
        evidence[key] = _Evidence(drops, max(counts, default=0), rejected)
    return evidence


def _cell(key: tuple[str, ChosenValue]) -> Cell:
    label, chosen = key
    return Cell(label=label, factor=chosen.factor, value=chosen.value, direction="to")


def _suspicion(place: PlaceShare, evidence: _Evidence, order: Sequence[int]) -> Suspicion:
    """The suspicion of the model with the largest drop whose hypothesis is not rejected yet."""
    drops = [drop for drop, rejected in zip(evidence.drops, evidence.rejected, strict=True) if not rejected]
    rendered = set(place.images)
    free = [position for position in order if position not in rendered]
    return Suspicion(
        drop=max(drops, default=0.0),
        images=evidence.images,
        free=free[: max(0, place.planned - len(place.images))],
        decided=not drops,
    )


def cells_of_rounds(cells: Mapping[Cell, Differences], rounds: Sequence[RoundPlan]) -> dict[Cell, Differences]:
    """The cells of an adaptive job as its tests take them; without rounds, the cells as they are.

    A place has the differences of all its images, in the order that was fixed before the first round. Other cells
    (*from* values) are left out: they mix values that got unequally many images, so no test of them would be valid.
    """
    if not rounds:
        return dict(cells)
    places = {_cell(key): place for key, place in places_of(rounds).items()}
    return {cell: _put_in_order(pairs, places[cell]) for cell, pairs in cells.items() if cell in places}


def _put_in_order(pairs: Differences, place: PlaceShare) -> Differences:
    index_of = {int(position): index for index, position in enumerate(pairs.group)}
    ranks = [rank for rank, position in enumerate(place.images) if position in index_of]
    order = np.array([index_of[place.images[rank]] for rank in ranks], dtype=np.int64)
    return replace(
        pairs,
        group=pairs.group[order],
        correct=pairs.correct[order],
        p_truth=pairs.p_truth[order],
        sizes=None if pairs.sizes is None else pairs.sizes[order],
        left=expected_left(np.array(ranks, dtype=np.int64), place.planned),
    )


def design_results(session: Session, job_id: str, rounds: Sequence[RoundPlan] = ()) -> DesignResults:
    """The design of a job and what it spent where, in the order of method, class, factor and value."""
    job, c = session.get_one(Job, job_id), Counterfactual
    spec = job.stored_spec
    design = design_of(spec.design, spec.budget, job.methods, spec.chosen_by)
    rendered = session.scalar(select(func.count(c.image_digest)).where(c.job_id == job_id)) or 0
    results = DesignResults(**dict(design), rendered=rendered, dropped=_dropped(session, job))
    if design.kind == "free":
        return results
    group = (c.method, SourceImage.ground_truth, c.factor, c.to_value)
    figures = (func.count(), func.count(c.image_digest), func.sum(case((c.counted, 1), else_=0)))
    rows = session.execute(
        select(*group, *figures)
        .join(SourceImage, c.source_image_id == SourceImage.id)
        .where(c.job_id == job_id, c.arm == "edit", c.factor.is_not(None))
        .group_by(*group)
        .order_by(*group)
    )
    shares = {(label, chosen.factor, chosen.value): place for (label, chosen), place in places_of(rounds).items()}
    screened = {key: len(place.images) for key, place in places_of(rounds[:1]).items()}
    cells = []
    for method, label, factor, value, proposed, shown, counted in rows:
        cell = CellSpending(
            method=method, label=label, factor=factor, value=value, proposed=proposed, rendered=shown, counted=counted
        )
        if place := shares.get((label, factor, value)):
            screening = screened[label, place.chosen]
            images = {"screening": screening, "confirming": len(place.images) - screening}
            cell = cell.model_copy(update=images)
        cells.append(cell)
    edits = [sum(len(place.images) for place in plan.places) for plan in rounds]
    return results.model_copy(update={"cells": cells, "rounds": edits})
