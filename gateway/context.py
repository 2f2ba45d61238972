"""The context that routes and pages share: settings, profile, database, object store, model services, wake-up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gateway.database.sessions import Sessions, open_engine, open_sessions
from gateway.intake.sources import IntakeLimits
from gateway.model_services.clients import ModelServices
from gateway.queue.celery_tasks import wake_worker
from gateway.settings import Settings
from gateway.storage.object_store import open_store
from shared.media.storage import ObjectMissing, ObjectStore
from shared.problems import DependencyFailed
from shared.profiles.profile import Profile, load_profile
from shared.service.celery_app import broker_fault, open_celery

SERVICE_WAIT_SECONDS = 20.0  # a request does not wait for a starting service as long as a worker does
SERVICE_DEADLINE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Context:
    """What routes and pages share.

    `wake` tells the workers, after a commit, that work waits. Shutdown sets `stopping`. `broker_fault` says why `wake`
    cannot reach any worker while this process runs; it is empty if it can.
    """

    settings: Settings
    profile: Profile
    sessions: Sessions
    store: ObjectStore
    services: ModelServices
    wake: Callable[[], None]
    stopping: threading.Event = field(default_factory=threading.Event)
    broker_fault: str = ""

    @property
    def limits(self) -> IntakeLimits:
        """The limits of uploads."""
        return intake_limits(self.settings)


def intake_limits(settings: Settings) -> IntakeLimits:
    """The limits of uploads."""
    return IntakeLimits(
        image_bytes=settings.max_image_bytes,
        image_pixels=settings.max_image_pixels,
        images=settings.max_images_per_job,
        archive_bytes=settings.max_archive_bytes,
        working_side=settings.working_side,
    )


def open_context(settings: Settings) -> Context:
    """Open what the settings describe. Connects to nothing yet."""
    celery = open_celery(settings.broker_url)
    stopping = threading.Event()
    return Context(
        settings=settings,
        profile=load_profile(settings.profile),
        sessions=open_sessions(open_engine(settings.database_url, settings.database_connections)),
        store=open_store(settings),
        services=ModelServices(settings.service_urls, SERVICE_DEADLINE_SECONDS, SERVICE_WAIT_SECONDS, stopping),
        wake=lambda: wake_worker(celery),
        stopping=stopping,
        broker_fault=broker_fault(celery),
    )


def read_stored(context: Context, key: str) -> bytes:
    """The bytes of an object that a row names. Raises DependencyFailed when the store does not have it."""
    try:
        return context.store.get(key)
    except ObjectMissing as error:
        raise _lost_object(key) from error


def stored_pieces(context: Context, key: str) -> Iterator[bytes]:
    """The same in pieces, for objects that are too large for memory."""
    try:
        return context.store.pieces(key)
    except ObjectMissing as error:
        raise _lost_object(key) from error


def _lost_object(key: str) -> DependencyFailed:
    return DependencyFailed(f"the object store has lost {key}; restore it from a backup, or run the job again")
