"""The design of a finished job: how many edits of each class and value were proposed, rendered and counted."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from gateway.database.tables import Counterfactual, Job, SourceImage
from gateway.jobs.designs import design_of
from gateway.jobs.rounds import places_of
from shared.schemas.designs import CellSpending, DesignResults, RoundPlan


def design_results(session: Session, job_id: str, rounds: Sequence[RoundPlan] = ()) -> DesignResults:
    """The design of a job and what it spent where, in the order of method, class, factor and value."""
    job, c = session.get_one(Job, job_id), Counterfactual
    design = design_of(job.stored_spec.design, job.stored_spec.budget, job.methods)
    rendered = session.scalar(select(func.count(c.image_digest)).where(c.job_id == job_id)) or 0
    results = DesignResults(**dict(design), rendered=rendered)
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
