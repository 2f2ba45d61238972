"""Figures of a model in cells, for tests of heat maps and of sentences."""

from __future__ import annotations

from shared.schemas.effects import Cell, CellEffect, Direction, Interval, Rate
from shared.schemas.results import Funnel, HowMade, JobResults, ModelResults

INTERVAL = Interval(low=-0.9, high=-0.3, level=0.95, kind="betting")


def effect(value: str, points: int, label: str = "bus", direction: Direction = "to", sources: int = 20) -> CellEffect:
    """The effect of a cell; tested from 12 source images on."""
    tested = sources >= 12
    return CellEffect(
        cell=Cell(label=label, factor="weather", value=value, direction=direction),
        sources=sources,
        counterfactuals=sources,
        delta_accuracy=points / 100,
        delta_probability=None,
        interval=INTERVAL if tested else None,
        standing="nothing found" if tested else "too few images",
        images_needed=10 * sources,
    )


def results(method: str, *cells: CellEffect) -> ModelResults:
    """A classifier's figures under a method, with these cells."""
    return ModelResults(
        model="m", method=method, relation="labelled", sources=20, counterfactuals=40, left_out=0, cells=list(cells)
    )


def job_results(*of: ModelResults, accepted: int = 9) -> JobResults:
    """A job's results with these figures of models, and one funnel of the method dillema."""
    share = Rate(value=None, count=accepted, n=9, low=0, high=1)
    funnel = Funnel(method="dillema", proposed=9, refused_by_text=[], rendered=9, refused_by_image=[], accepted=share)
    made = HowMade(
        job="job",
        task_description="t",
        profile="tiny",
        seed=0,
        parameters={},
        services={},
        versions={},
        analysis_seed=0,
    )
    return JobResults(
        sources=9, sources_failed=0, provisional=True, results=list(of), funnels=[funnel], costs=[], made=made
    )
