"""The design of a finished job: how many edits of each class and value were proposed, rendered and counted."""

from __future__ import annotations

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from gateway.database.tables import Counterfactual, Job, SourceImage
from gateway.jobs.designs import design_of
from shared.schemas.designs import CellSpending, DesignResults


def design_results(session: Session, job_id: str) -> DesignResults:
    """The design of a job and what it spent where, in the order of method, class, factor and value."""
    job, c = session.get_one(Job, job_id), Counterfactual
    design = design_of(job.stored_spec.design, job.stored_spec.budget, job.methods)
    rendered = session.scalar(select(func.count(c.image_digest)).where(c.job_id == job_id)) or 0
    results = DesignResults(**dict(design), rendered=rendered)
    if design.kind == "free":
        return results
    place = (c.method, SourceImage.ground_truth, c.factor, c.to_value)
    figures = (func.count(), func.count(c.image_digest), func.sum(case((c.counted, 1), else_=0)))
    rows = session.execute(
        select(*place, *figures)
        .join(SourceImage, c.source_image_id == SourceImage.id)
        .where(c.job_id == job_id, c.arm == "edit", c.factor.is_not(None))
        .group_by(*place)
        .order_by(*place)
    )
    return results.model_copy(
        update={
            "cells": [
                CellSpending(
                    method=method,
                    label=label,
                    factor=factor,
                    value=value,
                    proposed=proposed,
                    rendered=shown,
                    counted=counted,
                )
                for method, label, factor, value, proposed, shown, counted in rows
            ]
        }
    )
