"""Leases repairs to trainers. Any worker sends repairs, reads heartbeats, sends again, and stores results.

    running, no token ──lease──► token ──heartbeat──► progress ──outcome──► done, failed
                          ▲                 │ no heartbeat for too long
                          └─────────────────┘

A trainer has the object store and no database, so the token is its lease: the row holds the newest token, `grant.json`
repeats it in the store, and a trainer writes everything for the gateway under its own token. Files under an older token
are never read. Every change of a row has `WHERE token = …`, so several workers may do this at once, and any may die.

The model card of a repaired model: data, training, seeds, results, and the original model's licence.
"""

from __future__ import annotations

import io
import logging
import secrets
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict

from pydantic import ValidationError
from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions, database_now, reading
from gateway.database.table_base import utc_now
from gateway.database.tables import Job, Repair
from gateway.kinds import KINDS, of_metric
from gateway.repairs.figures import figures
from gateway.settings import Settings
from shared.media.storage import ObjectMissing, ObjectStore, repair_key
from shared.problems import DependencyFailed
from shared.schemas.jobs import JobState
from shared.schemas.repairs import (
    ARMS,
    TRAINED,
    Arm,
    Heartbeat,
    RepairLease,
    RepairOrder,
    RepairOutcome,
    RepairParameters,
    RepairProgress,
    RepairResult,
    TrainedArm,
)
from shared.words.repair_tables import arm_table, class_table

_TRAINING: dict[Arm, str] = {
    "before": "the model as it was",
    "repaired": "original pictures, and accepted counterfactuals of them",
    "originals": "original pictures alone: a control",
    "null": "original pictures, and null arms of them: a control",
    "augmented": "original pictures alone, under RandAugment: a control",
}
_OPTIMISERS = {
    "adamw": "AdamW",
    "adam": "Adam",
    "sgd": "SGD with momentum 0.9 and weight decay 0.0001",
}
_SCHEDULES = {"cosine": "with a cosine to 0", "step": "with a tenth after each third", "constant": "throughout"}
CHECK_SECONDS = 2.0
FIRST_HEARTBEAT_SECONDS = 300.0  # the message may wait behind other repairs
MAX_DEATHS = 3  # of a process that does everything, before the repair that was trained in it fails
CARD = "README.md"

logger = logging.getLogger("contrafact.repairs")


@dataclass(frozen=True, slots=True)
class _Running:
    """A running repair. `silent`: no heartbeat for too long, or no trainer has it. `done` counts optimiser steps."""

    id: str
    token: str | None
    beat: int
    done: int
    silent: bool


class _RepairColumns(TypedDict, total=False):
    """Columns of a running repair that change."""

    state: JobState
    failure: str
    progress: RepairProgress
    result: RepairResult
    token: None
    beat: int
    heard_at: ColumnElement[datetime]
    lost: int
    finished_at: datetime


def repair_loop(
    sessions: Sessions,
    store: ObjectStore,
    send: Callable[[RepairLease], None],
    settings: Settings,
    stopping: threading.Event,
) -> None:
    """Check running repairs every few seconds until `stopping` is set."""
    while not stopping.wait(min(CHECK_SECONDS, settings.sweep_seconds)):
        try:
            check_repairs(sessions, store, send, settings)
        except (DBAPIError, DependencyFailed) as error:  # the database or store is unreachable; retry
            logger.warning("repairs are checked late: %s", error)


def check_repairs(
    sessions: Sessions, store: ObjectStore, send: Callable[[RepairLease], None], settings: Settings
) -> None:
    """Check every running repair once. A repair with an unusable outcome fails. Raises what the stores raise."""
    for repair in _running(sessions, settings.lease_seconds):
        try:
            _check(sessions, store, send, settings, repair)
        except (DBAPIError, DependencyFailed):
            raise
        except Exception as error:  # a fault of one repair's objects must not stop the others
            logger.exception("repair %s failed", repair.id)
            if repair.token is not None:
                failure = f"{type(error).__name__}: {error}"
                with sessions.begin() as session:
                    _close(session, repair.id, repair.token, {"state": "failed", "failure": failure})


def _check(
    sessions: Sessions,
    store: ObjectStore,
    send: Callable[[RepairLease], None],
    settings: Settings,
    repair: _Running,
) -> None:
    if repair.token is not None and _store_outcome(sessions, store, repair.id, repair.token):
        return
    if repair.token is not None and _store_heartbeat(sessions, store, repair, repair.token):
        return
    if repair.silent and (lease := _new_lease(sessions, repair, settings.max_lost_leases)) is not None:
        store.put(repair_key(repair.id, "grant.json"), lease.model_dump_json().encode())
        send(lease)


def revoke_leases(session: Session) -> None:
    """End the leases of all running repairs. Call it only when no trainer is alive; they are sent again."""
    session.execute(update(Repair).where(Repair.state == "running").values(token=None, beat=0))


def record_deaths(session: Session, store: ObjectStore) -> None:
    """End the leases of running repairs after the process of their trainer died. Call it only when no trainer is alive.

    A repair in which it died several times without progress fails; it would end the next process, too.
    """
    rows = select(Repair.id, Repair.token, Repair.lost).where(Repair.state == "running")
    for repair_id, token, lost in session.execute(rows).all():
        if token is None or not store.exists(repair_key(repair_id, token, "progress.json")):
            continue  # it waited behind another repair
        _change(session, repair_id, token, {"lost": lost + 1})
        if lost + 1 >= MAX_DEATHS:
            reason = f"its process ended {lost + 1} times without progress; it may need more memory than there is"
            _close(session, repair_id, token, {"state": "failed", "failure": reason})
    revoke_leases(session)


def correct_times(session: Session) -> None:
    """After the database's clock was set back: what was heard later than now counts as heard now."""
    session.execute(
        update(Repair)
        .where(Repair.state == "running", Repair.heard_at > database_now())
        .values(heard_at=database_now())
        .execution_options(synchronize_session=False)
    )


def _running(sessions: Sessions, lease_seconds: float) -> list[_Running]:
    silent = or_(
        Repair.token.is_(None),
        (Repair.beat > 0) & (Repair.heard_at < database_now(-lease_seconds)),
        Repair.heard_at < database_now(-max(lease_seconds, FIRST_HEARTBEAT_SECONDS)),
    )
    query = select(Repair.id, Repair.token, Repair.beat, Repair.progress, silent).where(Repair.state == "running")
    with reading(sessions) as session:
        rows = session.execute(query.order_by(Repair.created_at, Repair.id)).all()
    return [_Running(name, token, beat, progress.done, bool(quiet)) for name, token, beat, progress, quiet in rows]


def _new_lease(sessions: Sessions, repair: _Running, max_lost: int) -> RepairLease | None:
    """A new lease of a repair; None if another worker was faster, or if too many trainers have died on it."""
    lost = Repair.lost + (1 if repair.beat else 0)
    lease = RepairLease(repair=repair.id, token=secrets.token_hex(16))
    same_token = Repair.token.is_(None) if repair.token is None else Repair.token == repair.token
    with sessions.begin() as session:
        count = session.scalar(
            update(Repair)
            .where(Repair.id == repair.id, Repair.state == "running", same_token)
            .values(token=lease.token, beat=0, heard_at=database_now(), lost=lost)
            .returning(Repair.lost)
            .execution_options(synchronize_session=False)
        )
        if count is not None and count >= max_lost:
            reason = f"{count} trainers stopped without making progress"
            _close(session, lease.repair, lease.token, {"state": "failed", "failure": reason})
            return None
    return None if count is None else lease


def _store_heartbeat(sessions: Sessions, store: ObjectStore, repair: _Running, token: str) -> bool:
    """Record a new heartbeat with its progress. Returns whether there was one."""
    try:
        heartbeat = Heartbeat.model_validate_json(store.get(repair_key(repair.id, token, "progress.json")))
    except ObjectMissing:
        return False
    if heartbeat.beat <= repair.beat:
        return False
    values: _RepairColumns = {"beat": heartbeat.beat, "heard_at": database_now()}
    if heartbeat.total:
        values["progress"] = RepairProgress(done=heartbeat.done, total=heartbeat.total, arm=heartbeat.arm)
    if heartbeat.done > repair.done:
        values["lost"] = 0
    with sessions.begin() as session:
        _change(session, repair.id, token, values)
    return True


def _store_outcome(sessions: Sessions, store: ObjectStore, repair_id: str, token: str) -> bool:
    """Store an outcome: packages with model cards, then the row with the figures. Returns whether there was one.

    A second worker writes the same objects, and changes the row only if it is still running.
    """
    try:
        outcome = RepairOutcome.model_validate_json(store.get(repair_key(repair_id, token, "outcome.json")))
        order = RepairOrder.model_validate_json(store.get(repair_key(repair_id, "order.json")))
    except ObjectMissing:
        return False
    except ValidationError as error:  # a trainer of another version
        outcome = RepairOutcome(problem=f"the trainer's answer cannot be read: {error.error_count()} errors")
    values: _RepairColumns = {"state": "failed", "failure": outcome.problem}
    if not outcome.problem:
        with reading(sessions) as session:
            reserve = session.get_one(Job, order.job).stored_spec.reserve
        result = figures(order, outcome, reserve)
        for arm in TRAINED:
            _package(store, order, arm, result)
        done = RepairProgress(done=len(TRAINED) * order.parameters.steps, total=len(TRAINED) * order.parameters.steps)
        values = {"state": "done", "result": result, "progress": done}
    with sessions.begin() as session:
        _close(session, repair_id, token, values)
    for item in list(store.iterate(repair_key(repair_id) + "/")):
        if item.key.endswith(("checkpoint.tar", "package.tar", "grant.json")):
            store.delete(item.key)
    return True


def _package(store: ObjectStore, order: RepairOrder, arm: TrainedArm, result: RepairResult) -> None:
    """Store the arm's model with its card: the reply of `GET /repairs/{id}/model`, which `POST /models` accepts."""
    try:
        pieces = store.pieces(repair_key(order.repair, arm, "package.tar"))
    except ObjectMissing:
        if store.exists(repair_key(order.repair, arm, "model.tar")):
            return  # another worker stored it
        raise DependencyFailed(f"the object store has lost the {arm} model of repair {order.repair}") from None
    card = model_card(order, arm, result).encode()
    with tempfile.TemporaryFile() as package, tempfile.TemporaryFile() as file:
        package.writelines(pieces)
        package.seek(0)
        with (
            tarfile.open(fileobj=package, mode="r:") as arrived,
            tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive,
        ):
            header = tarfile.TarInfo(CARD)
            header.size = len(card)
            archive.addfile(header, io.BytesIO(card))
            for member in arrived:
                archive.addfile(member, arrived.extractfile(member))
        store.put_file(repair_key(order.repair, arm, "model.tar"), file)


def _close(session: Session, repair_id: str, token: str, values: _RepairColumns) -> None:
    _change(session, repair_id, token, {**values, "token": None, "finished_at": utc_now()})


def _change(session: Session, repair_id: str, token: str, values: _RepairColumns) -> None:
    """Change a running repair that still has this token."""
    session.execute(
        update(Repair)
        .where(Repair.id == repair_id, Repair.state == "running", Repair.token == token)
        .values(**values)
        .execution_options(synchronize_session=False)
    )


def model_card(order: RepairOrder, arm: TrainedArm, result: RepairResult) -> str:
    """`README.md` of one arm, in Markdown with the Hub's metadata before it."""
    parameters = order.parameters
    lines = [
        *_metadata(order),
        f"# {order.model}, {'repaired' if arm == 'repaired' else f'control `{arm}`'}",
        "",
        f"`{order.model}` trained further by Contrafact: {_TRAINING[arm]}. The original model's licence applies: "
        f"{order.licence or 'not stated'}.",
        "",
        f"* **Data**: job `{order.job}`; {len(order.originals)} source images ({_ground_truth(order)}), "
        f"{len(order.counterfactuals)} accepted counterfactuals, {len(order.null_arms)} null arms of these. Values not "
        f"trained on: {', '.join(order.values_not_trained_on) or 'none'}.",
        f"* **Training**: {_training(parameters)}; repair `{order.repair}`.",
        f"* **Made with**: {', '.join(f'{name} {number}' for name, number in sorted(result.versions.items()))}.",
        "",
        f"## Results on {result.sources_held_out} source images that it was not trained on",
        "",
        "| images | n of source images | " + " | ".join(ARMS) + " |",
        "|---" * (2 + len(ARMS)) + "|",
        *(f"| {name} | {size} | {' | '.join(rates)} |" for name, size, rates in arm_table(result.sets)),
        "",
        *_by_class(result),
        *(f"* {sentence}" for sentence in result.sentences),
        "",
        "All arms start from the same weights and take the same steps under the same seed.",
        "",
    ]
    return "\n".join(lines)


def _training(parameters: RepairParameters) -> str:
    """Steps, optimiser, rate, schedule, seed and start, in words."""
    halves = "half of every batch of each kind" if parameters.epochs is None else f"{parameters.epochs} epochs of all"
    return (
        f"{parameters.steps} steps of {parameters.batch_size} images ({halves}), {_OPTIMISERS[parameters.optimiser]}, "
        f"learning rate {parameters.learning_rate:g} {_SCHEDULES[parameters.schedule]}, seed {parameters.seed}"
        f"{', from random weights' if parameters.from_scratch else ''}"
    )


def _metadata(order: RepairOrder) -> list[str]:
    return [
        "---",
        f"license: {_licence(order.licence)}",
        f"pipeline_tag: image-{order.kind}",
        "library_name: transformers",
        "tags: [contrafact]",
        "---",
        "",
    ]


def _ground_truth(order: RepairOrder) -> str:
    if KINDS[order.kind].localised:
        return f"{KINDS[order.kind].truths} of {', '.join(order.classes)}"
    counts = Counter(example.label for example in order.originals)
    return ", ".join(f"{label} {count}" for label, count in sorted(counts.items()))


def _by_class(result: RepairResult) -> list[str]:
    rows = class_table(result)
    if not rows:
        return []
    return [
        "By class:"
        if of_metric(result.metric).right_or_wrong
        else "The figures above are means over images; IoU of all pixels together:",
        "",
        "| images | class | " + " | ".join(ARMS) + " |",
        "|---" * (2 + len(ARMS)) + "|",
        *(f"| {name} | {label} | {' | '.join(values)} |" for name, label, values in rows),
        "",
    ]


def _licence(licence: str) -> str:
    """The licence as the Hub writes it: lower case; `other` if none is stated."""
    return licence.lower() if licence and licence.replace("-", "").replace(".", "").isalnum() else "other"
