"""The analysis of a job whose images are finished: its report, written under the lease.

The page has a key of its lease. One transaction, guarded by the lease, ends the job and stores that key. An analysis
whose lease expired, or whose job was retried, does not change the newer report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from sqlalchemy.orm import Session

from gateway.database.events import add_event
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Job, JobRound
from gateway.model_services.clients import ModelServices
from gateway.model_services.waiting import shared_waiting
from gateway.queue import job_states, leases
from gateway.queue.leases import Lease
from gateway.report.build import report_key, store_report, write_report
from gateway.results.job_rows import JobRows
from gateway.results.rounds import next_round
from gateway.worker.clusters_step import cluster
from gateway.worker.corroboration_step import corroborate
from gateway.worker.held_leases import LeaseLost
from gateway.worker.realism_step import with_realism
from shared.profiles import CheckCalibration
from shared.schemas.designs import RoundPlan
from shared.schemas.results import JobResults
from shared.storage import ObjectStore
from shared.wording import nothing_compared

UNANSWERED = {"invalid reply", "editor"}  # checks that refuse an edit to which a model gave no usable reply


def analyse(
    sessions: Sessions,
    store: ObjectStore,
    services: ModelServices,
    lease: Lease,
    calibrations: Mapping[str, CheckCalibration],
    check: Callable[[], None],
) -> None:
    """Write the report of the leased job and end the job, or start the next round of an adaptive one.

    Raises LeaseLost, and what `write_report` raises.
    """
    with reading(sessions) as session:
        plan = next_round(session, lease.job_id)
    check()
    if plan is not None and plan.places:
        start_round(sessions, lease, plan)
        return
    key = report_key(lease.job_id, lease.token)
    complete = partial(with_service_figures, sessions, store, services, check=check)
    results = write_report(
        sessions, store, lease.job_id, key, calibrations=calibrations, check=check, complete=complete
    )
    with sessions.begin() as session:
        finished = _apply(session, lease, key, results, plan)
    if not finished:
        store.delete(key)
        raise LeaseLost(lease.id)


def _apply(session: Session, lease: Lease, key: str, results: JobResults, plan: RoundPlan | None) -> bool:
    """End the job with its report; False if the lease is lost."""
    failure = failure_of(results)
    if not leases.finish(session, lease, failure):
        return False
    store_report(session, lease.job_id, key, results)
    if plan is not None and not failure:  # without places: what is added to the job later starts no round
        session.add(JobRound(job_id=lease.job_id, number=plan.number, plan=plan))
    state = session.get_one(Job, lease.job_id).state
    if state == "done":
        add_event(session, lease.job_id, "job", {"state": "done"})
    elif state == "failed":
        add_event(session, lease.job_id, "job", {"state": "failed", "failure": failure})
    return True


def with_service_figures(
    sessions: Sessions,
    store: ObjectStore,
    services: ModelServices,
    rows: JobRows,
    results: JobResults,
    check: Callable[[], None] = lambda: None,
) -> JobResults:
    """The results with the figures that need the services: the job's own images, clusters of edits, realism.

    Services that cannot be called cost these figures alone, and all of them together at most the wait for one call.
    `check` is called before each call and raises to end the work.
    """
    with shared_waiting(services.wait):
        results = corroborate(sessions, store, services, results, check)
        results = cluster(sessions, store, services, rows, results, check)
        return with_realism(sessions, store, services, results, check)


def start_round(sessions: Sessions, lease: Lease, plan: RoundPlan) -> None:
    """Make the images of a round pending and end the lease. Raises LeaseLost, and then nothing has changed.

    Locks images before the job, as every other transaction does.
    """
    with sessions.begin() as session:
        images = job_states.reopen_for_round(session, lease.job_id, plan.positions())
        if not leases.continue_job(session, lease):
            raise LeaseLost(lease.job_id)
        session.add(JobRound(job_id=lease.job_id, number=plan.number, plan=plan))
        add_event(session, lease.job_id, "job", {"state": "running", "round": plan.number}, {"done": -images})


def failure_of(results: JobResults) -> str:
    """Why a job has failed: no source image succeeded, or no model's reply was of use. Empty for other jobs."""
    if results.sources > results.sources_failed + results.sources_cancelled:
        refused = {
            check.check for funnel in results.funnels for check in (*funnel.refused_by_text, *funnel.refused_by_image)
        }
        return nothing_compared(results) if refused and refused <= UNANSWERED else ""
    failed = f"none of the {results.sources} source images succeeded"
    if not results.failure_reasons:
        return failed
    first = results.failure_reasons[0]
    return f"{failed}; most often ({first.count} of {results.sources}): {first.reason}"
