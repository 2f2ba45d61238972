"""Rounds of an adaptive job, planned from its recorded rows, and the cells that its test may use.

A round is planned when every image of the one before it is finished, under the lease of the job's analysis. The plan is
a function of the rows and the job's seed. It does not depend on the order in which images finished, nor on workers that
were killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.analysis.allocation import Suspicion, allocate, is_cleared
from gateway.analysis.effects import Differences, differences
from gateway.analysis.findings import hypothesis_tests
from gateway.database.tables import Job, JobRound, SourceImage
from gateway.jobs.rounds import edits_of_rounds, positions_given, seeded_order
from gateway.results.classification import JobRows, load_rows
from gateway.results.estimands import counted_cells
from shared.schemas.designs import ChosenValue, PlaceShare, RoundPlan
from shared.schemas.results import Cell


def rounds_of(session: Session, job_id: str) -> list[RoundPlan]:
    """The rounds of a job so far; empty unless it is adaptive."""
    return list(session.scalars(select(JobRound.plan).where(JobRound.job_id == job_id).order_by(JobRound.number)))


def next_round(session: Session, job_id: str) -> RoundPlan | None:
    """The next round of a job whose images are finished. Without places if all is decided; None if none is due."""
    rounds = rounds_of(session, job_id)
    job = session.get_one(Job, job_id)
    if not rounds or not rounds[-1].places or job.state != "running":
        return None
    (method,) = job.methods
    budgets = edits_of_rounds(method, job.stored_spec.budget or 0)
    number = len(rounds)
    if number >= len(budgets):
        return None
    rows = load_rows(session, job_id)
    done = select(SourceImage.position, SourceImage.ground_truth).where(
        SourceImage.job_id == job_id, SourceImage.state == "done"
    )
    by_label: dict[str, list[int]] = {}
    for position, label in session.execute(done.order_by(SourceImage.position)):
        by_label.setdefault(label or "", []).append(position)
    spent = sum(edit.rendered for edit in rows.methods[method.name].edits)
    edits = max(0, sum(budgets[: number + 1]) - spent)
    return _plan(rows, rounds, by_label, edits, len(budgets) - number)


def _plan(
    rows: JobRows, rounds: Sequence[RoundPlan], by_label: Mapping[str, Sequence[int]], edits: int, rounds_left: int
) -> RoundPlan:
    given, evidence = positions_given(rounds), _evidence(rows, rounds)
    free = {
        key: [p for p in by_label.get(key[0], ()) if p not in {*place.screening, *place.confirming}]
        for key, place in given.items()
    }
    names = {_name(key): key for key in given}
    suspicions = {name: _suspicion(given[key], evidence[key], len(free[key])) for name, key in names.items()}
    places = []
    for name, share in allocate(suspicions, edits, rounds_left).items():
        label, chosen = names[name]
        order = seeded_order(free[label, chosen], rows.job.seed, name)
        fresh = order[: share.confirming + share.screening]
        if fresh:
            confirming, screening = fresh[: share.confirming], sorted(fresh[share.confirming :])
            places.append(
                PlaceShare(
                    label=label, chosen=chosen, screening=screening, confirming=confirming, horizon=share.horizon
                )
            )
    return RoundPlan(number=len(rounds), places=places)


def _name(key: tuple[str, ChosenValue]) -> str:
    label, chosen = key
    return f"{label}/{chosen.factor}/{chosen.value}"


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What is known of a place: for each model its drop on all pairs (0 … 1), and whether its test rejects now.

    `images` and `confirmed`: the images of these pairs, and of those that are tested, of the model with the most.
    """

    drops: tuple[float, ...]
    images: int
    confirmed: int
    rejected: tuple[bool, ...]


def _evidence(rows: JobRows, rounds: Sequence[RoundPlan]) -> dict[tuple[str, ChosenValue], _Evidence]:
    models = []
    for pair_rows in rows.models.values():
        outcomes = pair_rows.outcomes
        cells = counted_cells(outcomes.cells, lambda members, estimand="pairs", o=outcomes: differences(o, members))
        confirmed = confirmed_cells(cells, rounds)
        models.append((cells, confirmed, hypothesis_tests(confirmed, rows.job.seed)))
    evidence = {}
    for key in positions_given(rounds):
        cell = _cell(key)
        drops = tuple(-float(cells[cell].correct.mean()) if cell in cells else 0.0 for cells, _, _ in models)
        counts = [len(cells[cell].correct) for cells, _, _ in models if cell in cells]
        confirming = [len(confirmed[cell].correct) for _, confirmed, _ in models if _is_tested(confirmed, cell)]
        rejected = tuple(cell in tests and tests[cell].rejected for _, _, tests in models)
        evidence[key] = _Evidence(drops, max(counts, default=0), max(confirming, default=0), rejected)
    return evidence


def _cell(key: tuple[str, ChosenValue]) -> Cell:
    label, chosen = key
    return Cell(label=label, factor=chosen.factor, value=chosen.value, direction="to")


def _is_tested(cells: Mapping[Cell, Differences], cell: Cell) -> bool:
    return cell in cells and cells[cell].tested


def _suspicion(place: PlaceShare, evidence: _Evidence, free: int) -> Suspicion:
    """The suspicion of the model with the largest drop whose hypothesis is not rejected yet."""
    drops = [drop for drop, rejected in zip(evidence.drops, evidence.rejected, strict=True) if not rejected]
    images = len(place.screening) + len(place.confirming)
    suspicion = Suspicion(
        drop=max(drops, default=0.0),
        images=evidence.images,
        free=free,
        yield_=evidence.images / images if images else 1.0,
        horizon=place.horizon,
        given=len(place.confirming),
    )
    return replace(suspicion, decided=not drops or is_cleared(suspicion, evidence.confirmed))


def confirmed_cells(cells: Mapping[Cell, Differences], rounds: Sequence[RoundPlan]) -> dict[Cell, Differences]:
    """The cells of an adaptive job as its test takes them; without rounds, the cells as they are.

    A suspect has the differences of its confirming images, in the order of the rounds. All other cells are not tested:
    they selected the suspects, or mix values that got unequally many images.
    """
    if not rounds:
        return dict(cells)
    places = {_cell(key): place for key, place in positions_given(rounds).items()}
    return {
        cell: _confirmed(own, places[cell]) if cell in places else replace(own, tested=False)
        for cell, own in cells.items()
    }


def _confirmed(own: Differences, place: PlaceShare) -> Differences:
    index_of = {int(position): index for index, position in enumerate(own.group)}
    order = np.array([index_of[position] for position in place.confirming if position in index_of], dtype=np.int64)
    if not place.horizon or not len(order):
        return replace(own, tested=False)
    return replace(
        own,
        group=own.group[order],
        correct=own.correct[order],
        p_truth=own.p_truth[order],
        counterfactuals=len(order),
        sources=None,
        horizon=place.horizon,
    )
