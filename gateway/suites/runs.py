"""Runs of suites: a model under test with its current weights against a suite, and the results."""

from __future__ import annotations

from sqlalchemy.orm import Session

from gateway.analysis.effects import Scores
from gateway.analysis.releases import against_baseline, against_null_arms, judge
from gateway.context import Context
from gateway.database.sessions import reading
from gateway.database.tables import Job
from gateway.jobs.model_choice import models_by_name
from gateway.kinds import KINDS
from gateway.kinds.originals import doubts_in_words
from gateway.models_under_test.models import all_models
from gateway.results.job_rows import JobRows, load_rows
from gateway.suites import suites
from gateway.suites.suites import comparison_sentence
from shared.problems import Conflict
from shared.schemas.suites import RunResults, RunView
from shared.seeds import derive_seed
from shared.words.verdicts import silence_in_words


def start(context: Context, owner: str, suite: str, name: str) -> RunView:
    """Test a model under test against a suite, or return the existing run of the same weights.

    Raises NotFound, InvalidInput for a model or classes that do not fit, NotReady while the evaluator is not ready.
    """
    (model,) = models_by_name([name], all_models(context, owner))
    with context.sessions.begin() as session:
        run_id = suites.start_run(session, owner, suite, model)
    context.wake()
    with reading(context.sessions) as session:
        return suites.run_view(session, session.get_one(Job, run_id))


def results(
    session: Session, owner: str, suite: str, run_id: str, baseline_id: str | None, max_drop: float
) -> RunResults:
    """A finished run's figures, compared with another run of the suite, or by default with its own null arms.

    `max_drop` is in points. Raises NotFound, and Conflict for a run that is not done.
    """
    run = _done(suites.find_run(session, owner, suite, run_id))
    rows = load_rows(session, run.id)
    release, left_out = _scores(rows)
    checks = [*rows.checks.items()]
    baseline = None
    if baseline_id is None:
        places = against_null_arms(release, rows.relation)
    else:
        baseline = _done(suites.find_run(session, owner, suite, baseline_id))
        baseline_rows = load_rows(session, baseline.id)
        baseline_scores, also_left_out = _scores(baseline_rows)
        checks += baseline_rows.checks.items()
        left_out = max(left_out, also_left_out)
        places = against_baseline(release, baseline_scores, rows.relation)
    kind = KINDS[run.kind]
    comparisons = judge(places, max_drop / 100, derive_seed("suite", run.suite_id or ""), kind.level)
    cells = [cell.model_copy(update={"sentence": comparison_sentence(cell, kind.metric)}) for cell in comparisons]
    return RunResults(
        suite=run.suite_id or "",
        run=run.id,
        model=run.models[0],
        revision=run.stored_spec.revision,
        baseline=baseline.id if baseline else None,
        baseline_model=baseline.models[0] if baseline else None,
        baseline_revision=baseline.stored_spec.revision if baseline else None,
        metric=kind.metric,
        relation=rows.relation,
        max_drop=max_drop,
        left_out=left_out,
        cells=cells,
        breaches=[cell.sentence for cell in cells if cell.judgement == "drop"],
        untestable=doubts_in_words(checks),
        doubtful=" ".join(filter(None, [run.stored_spec.reserve, _silence(rows)])),
    )


def _scores(rows: JobRows) -> tuple[dict[str, Scores], int]:
    """The scores of a run's model by method, and the number of counterfactuals left out."""
    scores = {method: pair_rows.scores for (_, method), pair_rows in rows.models.items()}
    return scores, sum(pair_rows.left_out for pair_rows in rows.models.values())


def _silence(rows: JobRows) -> str:
    """What to say of a release that gave no answer to many counterfactuals; "" of others."""
    answered = sum(len(pair_rows.scores.source) for pair_rows in rows.models.values())
    unanswered = sum(pair_rows.unanswered.get("counterfactual", 0) for pair_rows in rows.models.values())
    return silence_in_words(unanswered, answered)


def _done(run: Job) -> Job:
    if run.state != "done":
        raise Conflict(f"the run is {run.state}; its results are available when it is done")
    return run
