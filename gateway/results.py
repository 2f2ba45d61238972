"""What a job found: rows in, figures and the report out. Loads, then computes without a session open, then stores."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import numpy as np
from sqlalchemy import select

from gateway.analysis.effects import differences
from gateway.analysis.findings import Checked, assess
from gateway.analysis.funnel import Fate, funnel
from gateway.analysis.metrics import paper_metrics
from gateway.database import Sessions, reading
from gateway.outcomes import JobRows, PredictionRow, load_rows, outcomes_of, screened_of
from gateway.plans import sensitivity_of
from gateway.report.page import report_page
from gateway.report.pictures import select_pictures
from gateway.tables import Counterfactual, Report
from gateway.views import counterfactual_views
from shared.schemas.results import Calibration, CheckErrors, Cost, HowMade, JobResults, ModelResults
from shared.schemas.service import ServiceInfo
from shared.seeds import derive_seed
from shared.storage import ObjectStore, image_key


def measure(rows: JobRows, services: Sequence[ServiceInfo] = (), calibration: Calibration | None = None) -> JobResults:
    """All figures of a job. The same rows give the same figures, bit for bit.

    `calibration`: errors of the checks on images like the job's; None where they are not known.
    """
    job = rows.job
    seed = derive_seed("analysis", job.seed)
    said: dict[str, dict[str, PredictionRow]] = defaultdict(dict)  # model → image → what it said
    for row in rows.predictions:
        said[row.model][row.counterfactual or row.source] = row
    methods = [str(method["name"]) for method in job.methods]
    return JobResults(
        sources=len(rows.sources),
        sources_failed=sum(source.state == "failed" for source in rows.sources),
        provisional=calibration is None,
        calibration=calibration,
        sensitivity=sensitivity_of((s.ground_truth for s in rows.sources if s.state != "failed"), job.methods),
        results=[
            _model_results(rows, model, method, said[model], derive_seed(seed, method, model), calibration)
            for model in job.models
            for method in methods
        ],
        funnels=[funnel(method, _fates(rows, method)) for method in methods],
        costs=[_cost(rows, method) for method in methods],
        made=HowMade(
            job=job.id,
            task=job.task,
            profile=job.profile,
            seed=job.seed,
            parameters={str(method["name"]): method.get("parameters", {}) for method in job.methods},
            services={info.service: info.model_dump(mode="json") for info in services},
            versions={
                "python": platform.python_version(),
                **{name: version(name) for name in ("contrafact", "numpy", "scipy")},
            },
            analysis_seed=seed,
        ),
    )


def _model_results(
    rows: JobRows,
    model: str,
    method: str,
    said: dict[str, PredictionRow],
    seed: int,
    calibration: Calibration | None,
) -> ModelResults:
    outcomes, left_out = outcomes_of(rows, method, said)
    cells = {cell: differences(outcomes, members) for cell, members in outcomes.cells.items()}
    checked = None if calibration is None else Checked(calibration.errors, screened_of(rows, method, said))
    return ModelResults(
        model=model,
        method=method,
        relation=rows.relation,
        sources=len(np.unique(outcomes.source)),
        counterfactuals=len(outcomes.source),
        left_out=left_out,
        cells=assess(cells, rows.relation, seed, checked),
        metrics=paper_metrics(outcomes),
    )


def _fates(rows: JobRows, method: str) -> list[Fate]:
    return [
        Fate(source=row.source, rendered=row.rendered, refused_by="" if row.accepted else row.check)
        for row in rows.counterfactuals
        if row.method == method and row.arm == "edit"
    ]


def _cost(rows: JobRows, method: str) -> Cost:
    mine = [row for row in rows.counterfactuals if row.method == method]
    evaluations = sum(row.evaluations or 0 for row in mine)
    rendered = sum(row.rendered for row in mine if row.arm == "edit")
    accepted = sum(row.accepted for row in mine if row.arm == "edit")
    return Cost(
        method=method,
        evaluations=evaluations,
        evaluations_per_rendered=evaluations / rendered if rendered else None,
        evaluations_per_accepted=evaluations / accepted if accepted else None,
    )


def build_report(
    sessions: Sessions,
    store: ObjectStore,
    job_id: str,
    services: Sequence[ServiceInfo] = (),
    calibrations: Mapping[str, Mapping[str, CheckErrors]] | None = None,
) -> JobResults:
    """Measure a finished job, write its report to the store and its row to the database; return the figures.

    `calibrations`: the checks' errors by data set and factor; those of the data set that the job's spec names are used.
    The page depends on the rows alone, so building it again replaces it by the same. No session is open while it
    computes. Raises sqlalchemy's NoResultFound for an unknown job.
    """
    with reading(sessions) as session:
        rows = load_rows(session, job_id)
    data = rows.job.spec.get("calibration")
    known = (calibrations or {}).get(data) if data else None
    results = measure(rows, services, None if known is None else Calibration(data=data, errors=dict(known)))
    selection = select_pictures(rows, results)
    with reading(sessions) as session:
        chosen = session.scalars(select(Counterfactual).where(Counterfactual.id.in_(selection.ids))).all()
        views = {view.id: view for view in counterfactual_views(session, chosen)}
    page = report_page(results, selection, views, lambda digest: store.get(image_key(digest)))
    key = f"reports/{job_id}.html"
    store.put(key, page.encode())
    with sessions.begin() as session:
        session.merge(Report(job_id=job_id, object_key=key, metrics=results.model_dump(mode="json")))
    return results
