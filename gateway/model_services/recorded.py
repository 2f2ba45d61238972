"""The recorded services: each call is made once per owner and weights, and its reply is reused.

Recorded calls let a job resume after a crash, make a repeated job cheap, let a second model under test use the same
counterfactuals, and document lineage. A call's key is the digest of owner, endpoint, request (its images by digest) and
the revision of the service's weights. Images and vectors are in the object store before a row names them. The row is
written in one short transaction, and no network call is made while a session is open.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from pydantic import JsonValue
from sqlalchemy import delete

from gateway.database.sessions import Sessions, insert_missing, reading
from gateway.database.table_base import utc_now
from gateway.database.tables import RecordedCall
from gateway.metrics import RECORDED
from gateway.model_services.clients import BrokenOff, ModelServices
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recurring import RecurringReplies
from gateway.model_services.single_edits import join, refuse_unusable, split
from gateway.model_services.vectors import with_vectors, without_vectors
from shared.endpoints import Endpoint, Reply, Request, Services
from shared.problems import GenerationFailed, NotFinite, NotReady, Problem
from shared.schemas.base import Contract
from shared.schemas.evaluation import EmbedRequest, PredictRequest, SegmentRequest
from shared.schemas.jobs import Stage
from shared.schemas.service import ServiceInfo, ServiceName
from shared.seeds import derive_digest
from shared.storage import ObjectMissing, call_key
from shared.weights import FROM_SERVER

_FAILED = "generation failed"  # the only key of a recorded call without a valid reply; no reply has such a field


class RecordedServices(Services):
    """The services for one step of one owner. `check` is called before each call and raises to stop the step.

    `note` is called at the first call of a stage that is not recorded yet, once its service is ready. `source_digest`
    is the step's source image; housekeeping deletes its recorded calls with its last job. `recurring` keeps in memory
    the replies that were recorded for another source image, since every image of a job needs them. `guard` returns the
    context manager around a service call, by the call's name (`gateway.model_services.breaker`). `used` holds the
    description of each service whose replies the step used, by service and revision.
    """

    def __init__(
        self,
        services: ModelServices,
        sessions: Sessions,
        shelf: ImageShelf,
        owner_id: str,
        check: Callable[[], None] = lambda: None,
        source_digest: str | None = None,
        note: Callable[[Stage], None] = lambda _: None,
        recurring: RecurringReplies | None = None,
        guard: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self._services = services
        self._sessions = sessions
        self._shelf = shelf
        self._owner_id = owner_id
        self._check = check
        self._source_digest = source_digest
        self._note = note
        self._recurring = recurring or RecurringReplies()
        self._guard = guard
        self._stage: Stage = "starting"
        self.used: dict[tuple[ServiceName, str], ServiceInfo] = {}

    def call(self, endpoint: Endpoint[Request, Reply], request: Request) -> Reply:
        """The recorded reply. Without one, calls the service and records its reply.

        A request for several images is a call per image (`single_edits`). Calls without a recorded reply are made
        together, and each reply is recorded as it arrives. Raises the first problem once all of them have ended; images
        that are not finite are null in the reply, unless all are. GenerationFailed is recorded too, and raised on each
        repeat: a seeded language model would write the same again. That of an external server is not, since its
        operator may change what it writes, such as its reasoning.
        """
        self._check()
        requests = split(request)
        bodies = [self._recorded_form(one) for one in requests]
        info = self._services.description(endpoint.service)
        replies = [self._find(endpoint, self._key(endpoint, body, info.revision)) for body in bodies]
        missing = [index for index, reply in enumerate(replies) if reply is None]
        for outcome, count in (("made", len(missing)), ("found", len(replies) - len(missing))):
            RECORDED.labels(endpoint.path, outcome).inc(count)
        if len(missing) < len(replies):
            self.used[endpoint.service, info.revision] = info
        if missing:
            self._enter(endpoint.stage)
            self._make(endpoint, requests, bodies, replies, info)
        return join(replies)

    def _make(
        self,
        endpoint: Endpoint[Request, Reply],
        requests: Sequence[Request],
        bodies: Sequence[str],
        replies: list[Reply | None],
        info: ServiceInfo,
    ) -> None:
        """Make the calls whose reply is missing, record each reply and enter it. Raises as `call`.

        The guard gets to know a problem only if no call gives an image. `info` is the service's description before.
        """
        missing = [index for index, reply in enumerate(replies) if reply is None]
        source = self._source_of(requests[0])
        problems: dict[int, Problem] = {}
        with self._guard(_name(endpoint, requests[0])):
            ended = time.monotonic()
            for place, reply in self._services.call_each(endpoint, [requests[index] for index in missing]):
                began, ended = ended, time.monotonic()
                index, seconds = missing[place], ended - began
                if isinstance(reply, Problem):
                    problems[index] = reply
                    external = any(weights.dtype == FROM_SERVER for weights in info.weights)
                    if isinstance(reply, GenerationFailed) and not external:
                        key = self._key(endpoint, bodies[index], info.revision)
                        self._store(endpoint, key, source, info.revision, {_FAILED: reply.detail}, seconds)
                    continue
                if not any(isinstance(problem, BrokenOff | NotReady) for problem in problems.values()):
                    # It differs if the service was replaced meanwhile. One that broke off may be gone: it is not asked.
                    info = self._services.description(endpoint.service)
                self._record(
                    endpoint, self._key(endpoint, bodies[index], info.revision), source, info.revision, reply, seconds
                )
                self.used[endpoint.service, info.revision] = info
                replies[index] = reply
            refuse_unusable(replies, problems)
            in_order = [problems[index] for index in sorted(problems)]
            fatal = [problem for problem in in_order if not isinstance(problem, NotFinite)]
            if fatal and all(replies[index] is None for index in missing):
                raise fatal[0]
        if fatal or all(reply is None for reply in replies):
            raise (fatal or in_order)[0]

    def agrees(self, endpoint: Endpoint[Request, Reply], request: Request, reply: Reply) -> bool | None:
        """Whether a reply equals the recorded one, pixel by pixel; None if none is recorded for these weights."""
        revision = self._services.revision(endpoint.service)
        try:
            found = [
                self._find(endpoint, self._key(endpoint, self._recorded_form(one), revision)) for one in split(request)
            ]
        except GenerationFailed:
            return False
        recorded = [reply for reply in found if reply is not None]
        noting = _Noting(self._shelf)
        if len(recorded) < len(found):
            return None
        return _by_digest(join(recorded), noting) == _by_digest(reply, noting)

    def _source_of(self, request: Contract) -> str | None:
        """The source image of a call; for embeddings that begin with another image (an edit undone), that one.

        `recorded_embeddings` takes the first vector for that of the source image.
        """
        if self._source_digest is None or not isinstance(request, EmbedRequest) or not request.images:
            return self._source_digest
        return self._shelf.keep(request.images[0].png)

    def _enter(self, stage: Stage) -> None:
        if stage != self._stage:
            self._note(stage)
            self._stage = stage

    def _recorded_form(self, request: Request) -> str:
        return json.dumps(_by_digest(request, _Noting(self._shelf)), sort_keys=True, separators=(",", ":"))

    def _key(self, endpoint: Endpoint[Request, Reply], body: str, revision: str) -> str:
        return derive_digest("recorded call", self._owner_id, endpoint.path, body, revision).hex()

    def _find(self, endpoint: Endpoint[Request, Reply], key: str) -> Reply | None:
        if isinstance(recurring := self._recurring.find(key), endpoint.reply):
            return recurring
        with reading(self._sessions) as session:
            row = session.get(RecordedCall, key)
        if row is None:
            return None
        if _FAILED in row.reply:
            raise GenerationFailed(str(row.reply[_FAILED]))
        try:
            recorded, size = with_vectors(row.reply, self._shelf.store, call_key(key))
            reply = endpoint.reply.model_validate(recorded, context={"images": self._shelf})
        except ObjectMissing:  # an object of the reply was removed: delete the reply and repeat the call
            with self._sessions.begin() as session:
                session.execute(delete(RecordedCall).where(RecordedCall.key == key))
            return None
        if size and row.source_digest != self._source_digest:
            self._recurring.keep(key, reply, size)
        return reply

    def _record(
        self,
        endpoint: Endpoint[Request, Reply],
        key: str,
        source: str | None,
        revision: str,
        reply: Reply,
        seconds: float,
    ) -> None:
        noting = _Noting(self._shelf)
        recorded, vectors = without_vectors(_by_digest(reply, noting))
        if noting.digests:
            self._shelf.save(noting.digests)
        if vectors is not None:
            self._shelf.store.put(call_key(key), vectors)
        self._store(endpoint, key, source, revision, recorded, seconds)

    def _store(
        self,
        endpoint: Endpoint[Request, Reply],
        key: str,
        source: str | None,
        revision: str,
        recorded: JsonValue,
        seconds: float,
    ) -> None:
        row = {
            "key": key,
            "owner_id": self._owner_id,
            "endpoint": endpoint.path,
            "source_digest": source,
            "revision": revision,
            "reply": recorded,
            "seconds": seconds,
            "created_at": utc_now(),
        }
        with self._sessions.begin() as session:
            insert_missing(session, RecordedCall, [row])


def _name(endpoint: Endpoint[Request, Reply], request: Request) -> str:
    """The name of a call for `guard`: its endpoint, and the model under test, since each model may fail on its own."""
    model = f" with {request.model!r}" if isinstance(request, PredictRequest | SegmentRequest) else ""
    return f"{endpoint.service} at {endpoint.path}{model}"


class _Noting:
    """A shelf that collects the digests in one message."""

    def __init__(self, shelf: ImageShelf) -> None:
        self._shelf = shelf
        self.digests: set[str] = set()

    def keep(self, png: bytes) -> str:
        name = self._shelf.keep(png)
        self.digests.add(name)
        return name

    def load(self, digest: str) -> bytes:
        return self._shelf.load(digest)


def _by_digest(message: Contract, keeper: _Noting) -> dict[str, JsonValue]:
    return message.model_dump(mode="json", context={"images": keeper})
