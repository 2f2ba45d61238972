"""The recorded services: each call is made once per owner and weights, and its reply is reused.

Recorded calls let a job resume after a crash, make a repeated job cheap, let a second model under test use the same
counterfactuals, and document lineage. A call's key is the digest of owner, endpoint, request (its images by digest) and
the revision of the service's weights. Images and vectors are in the object store before a row names them. The row is
written in one short transaction, and no network call is made while a session is open.

Splits a request for several images into one request per image, and joins the replies.

So each edit, null arm and sham arm is a recorded call with a deadline of its own: one that comes too late does not lose
the images that are finished. The requests are sent together, and the service's batcher merges them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, cast

from pydantic import JsonValue
from sqlalchemy import delete

from gateway.database.sessions import Sessions, insert_missing, reading
from gateway.database.table_base import utc_now
from gateway.database.tables import RecordedCall
from gateway.metrics import RECORDED
from gateway.model_services.clients import BrokenOff, ModelServices
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recurring import RecurringReplies
from gateway.model_services.vectors import with_vectors, without_vectors
from shared.media.storage import ObjectMissing, call_key
from shared.problems import GenerationFailed, NotFinite, NotReady, UnusableReply
from shared.profiles.weights import FROM_SERVER
from shared.schemas.base import Contract
from shared.schemas.diffusion import EditReply, EditRequest, InstructReply, InstructRequest, RenderReply, RenderRequest
from shared.schemas.evaluation import EmbedRequest, PredictRequest, SegmentRequest
from shared.schemas.jobs import Stage
from shared.schemas.service import ServiceInfo, ServiceName
from shared.seeds import derive_digest
from shared.service.endpoints import Endpoint, Reply, Request, Services

# The fields with an entry per image. Corruptions and compositions take the CPU milliseconds, so they stay together.
_EDITS: Mapping[type[Contract], str] = {RenderRequest: "renderings", EditRequest: "edits", InstructRequest: "edits"}
# The only key of a recorded call without a valid reply, whose value is the problem's detail. No reply has such a field.
_FAILED, _NOT_FINITE = "generation failed", "not finite"


@dataclass(slots=True)
class _Calls(Generic[Request, Reply]):
    """The calls of one request, by place: the recorded forms of their requests, and what they came to.

    An outcome is None until the call is made. `errors` are those of the service, `store_errors` of what follows: one
    reply that cannot be recorded must not lose the others. `info` describes the service.
    """

    endpoint: Endpoint[Request, Reply]
    bodies: Sequence[str]
    source: str | None
    outcomes: list[Reply | NotFinite | None]
    info: ServiceInfo
    seconds: dict[int, float] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)
    store_errors: list[Exception] = field(default_factory=list)

    @contextmanager
    def noting_store_errors(self) -> Iterator[None]:
        """Keep an error of the block for later."""
        try:
            yield
        except Exception as error:
            self.store_errors.append(error)


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
        together, and each reply is recorded as it arrives, even if another one cannot be. Raises the first problem once
        all of them have ended; images that are not finite are null in the reply, unless all are. GenerationFailed is
        recorded too, and raised on each repeat: a seeded language model would write the same again. That of an external
        server is not, since its operator may change what it writes, such as its reasoning.
        """
        self._check()
        requests = split(request)
        bodies = [self._recorded_form(one) for one in requests]
        info = self._services.description(endpoint.service)
        outcomes = [self._find(endpoint, self._key(endpoint, body, info.revision)) for body in bodies]
        missing = sum(outcome is None for outcome in outcomes)
        for name, count in (("made", missing), ("found", len(outcomes) - missing)):
            RECORDED.labels(endpoint.path, name).inc(count)
        if missing < len(outcomes):
            self.used[endpoint.service, info.revision] = info
        if missing:
            self._enter(endpoint.stage)
            self._make(_Calls(endpoint, bodies, self._source_of(requests[0]), outcomes, info), requests)
        return _joined(outcomes)

    def _make(self, calls: _Calls[Request, Reply], requests: Sequence[Request]) -> None:
        """Make the calls without an outcome, enter it and record it. Raises as `call`.

        The guard gets to know a problem only if no call gives an image.
        """
        missing = [index for index, outcome in enumerate(calls.outcomes) if outcome is None]
        with self._guard(_name(calls.endpoint, requests[0])):
            ended = time.monotonic()
            for place, answer in self._services.call_each(calls.endpoint, [requests[index] for index in missing]):
                index, began, ended = missing[place], ended, time.monotonic()
                calls.seconds[index] = ended - began
                if isinstance(answer, Exception):
                    calls.errors[index] = answer
                else:
                    calls.outcomes[index] = answer
                with calls.noting_store_errors():
                    self._record_answer(calls, index, answer)
            refuse_unusable(calls.outcomes, calls.errors)
            in_order = [error for _, error in sorted(calls.errors.items())]
            fatal = [error for error in in_order if not isinstance(error, NotFinite)]
            if fatal and all(calls.outcomes[index] is None for index in missing):
                raise fatal[0]
        finite = any(outcome is not None for outcome in calls.outcomes)
        for index, error in calls.errors.items():
            if isinstance(error, NotFinite):
                calls.outcomes[index] = error
                if finite:  # a device that is broken gives no finite image at all, but does once it is restarted
                    with calls.noting_store_errors():
                        self._store(calls, index, {_NOT_FINITE: error.detail})
        if errors := fatal + calls.store_errors:
            raise errors[0]

    def _record_answer(self, calls: _Calls[Request, Reply], index: int, answer: Reply | Exception) -> None:
        if isinstance(answer, GenerationFailed):
            if not any(weights.dtype == FROM_SERVER for weights in calls.info.weights):
                self._store(calls, index, {_FAILED: answer.detail})
        elif not isinstance(answer, Exception):
            service = calls.endpoint.service
            if not any(isinstance(error, BrokenOff | NotReady) for error in calls.errors.values()):
                # It differs if the service was replaced meanwhile. One that broke off may be gone: it is not asked.
                calls.info = self._services.description(service)
            self.used[service, calls.info.revision] = calls.info
            self._record(calls, index, answer)

    def agrees(self, endpoint: Endpoint[Request, Reply], request: Request, reply: Reply) -> bool | None:
        """Whether a reply equals the recorded one, pixel by pixel; None if none is recorded for these weights."""
        revision = self._services.revision(endpoint.service)
        try:
            found = [
                self._find(endpoint, self._key(endpoint, self._recorded_form(one), revision)) for one in split(request)
            ]
            if None in found:
                return None
            recorded = _joined(found)
        except (GenerationFailed, NotFinite):
            return False
        noting = _Noting(self._shelf)
        return _by_digest(recorded, noting) == _by_digest(reply, noting)

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

    def _find(self, endpoint: Endpoint[Request, Reply], key: str) -> Reply | NotFinite | None:
        """What is recorded under a key; None if nothing is. Raises a recorded GenerationFailed."""
        if isinstance(recurring := self._recurring.find(key), endpoint.reply):
            return recurring
        with reading(self._sessions) as session:
            row = session.get(RecordedCall, key)
        if row is None:
            return None
        if _FAILED in row.reply:
            raise GenerationFailed(str(row.reply[_FAILED]))
        if _NOT_FINITE in row.reply:
            return NotFinite(str(row.reply[_NOT_FINITE]))
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

    def _record(self, calls: _Calls[Request, Reply], index: int, reply: Reply) -> None:
        noting = _Noting(self._shelf)
        recorded, vectors = without_vectors(_by_digest(reply, noting))
        if noting.digests:
            self._shelf.save(noting.digests)
        if vectors is not None:
            key = self._key(calls.endpoint, calls.bodies[index], calls.info.revision)
            self._shelf.store.put(call_key(key), vectors)
        self._store(calls, index, recorded)

    def _store(self, calls: _Calls[Request, Reply], index: int, recorded: JsonValue) -> None:
        row = {
            "key": self._key(calls.endpoint, calls.bodies[index], calls.info.revision),
            "owner_id": self._owner_id,
            "endpoint": calls.endpoint.path,
            "source_digest": calls.source,
            "revision": calls.info.revision,
            "reply": recorded,
            "seconds": calls.seconds[index],
            "created_at": utc_now(),
        }
        with self._sessions.begin() as session:
            insert_missing(session, RecordedCall, [row])


def _joined(outcomes: Sequence[Reply | NotFinite | None]) -> Reply:
    """The reply to the whole request. Raises NotFinite if no image is finite."""
    replies = [None if isinstance(outcome, NotFinite) else outcome for outcome in outcomes]
    if all(reply is None for reply in replies):
        raise next(outcome for outcome in outcomes if isinstance(outcome, NotFinite))
    return join(replies)


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


def split(request: Request) -> list[Request]:
    """One request per image, in order; the request itself if it is for one image, or for none."""
    name = _EDITS.get(type(request), "")
    edits: Sequence[Contract] = getattr(request, name) if name else ()
    return [request.model_copy(update={name: [edit]}) for edit in edits] if len(edits) > 1 else [request]


def join(replies: Sequence[Reply | None]) -> Reply:
    """The reply to the whole request. None stands for an image that is not finite; not all may be None."""
    first = next(reply for reply in replies if reply is not None)
    if len(replies) == 1:
        return first
    joined: Contract
    match first:
        case RenderReply():
            joined = _join_renderings(first, cast(Sequence[RenderReply | None], replies))
        case EditReply():
            joined = _join_edits(first, cast(Sequence[EditReply | None], replies))
        case InstructReply():
            joined = _join_instructed(first, cast(Sequence[InstructReply | None], replies))
        case _:
            raise TypeError(f"a {type(first).__name__} is not joined")
    return cast(Reply, joined)


def refuse_unusable(replies: list[Reply | NotFinite | None], problems: dict[int, Exception]) -> None:
    """Turn an editor's unusable replies into refusals of these edits, if another edit of the image has a picture."""
    usable = next((one for one in replies if isinstance(one, InstructReply) and one.images[0] is not None), None)
    if usable is None:
        return
    for index, problem in list(problems.items()):
        if isinstance(problem, UnusableReply):
            del problems[index]
            refused = {"images": [None], "refusals": [problem.detail], "evaluations": 0}
            replies[index] = cast(Reply, usable.model_copy(update=refused))


def _join_renderings(first: RenderReply, replies: Sequence[RenderReply | None]) -> RenderReply:
    finite = [reply for reply in replies if reply is not None]
    protection = first.protection
    if protection is not None:
        outcomes = [reply.protection.outcomes[0] if reply and reply.protection else [] for reply in replies]
        protection = protection.model_copy(update={"outcomes": outcomes})
    return first.model_copy(
        update={
            "images": [image for reply in replies for image in (reply.images if reply else [None])],
            "controls": {region: image for reply in finite for region, image in reply.controls.items()},
            "prompts": [prompt for reply in replies for prompt in (reply.prompts if reply else [""])],
            "further_controls": {
                kind: {region: image for reply in finite for region, image in reply.further_controls[kind].items()}
                for kind in first.further_controls
            },
            "protection": protection,
        }
    )


def _join_edits(first: EditReply, replies: Sequence[EditReply | None]) -> EditReply:
    not_finite = [None] * len(first.images[0])
    refusals = [reason for reply in replies for reason in ((reply and reply.refusals) or [None])]
    costs = [reply.evaluations for reply in replies if reply is not None]
    dearest = {name: max(getattr(cost, name) for cost in costs) for name in ("source", "edit")}
    return first.model_copy(
        update={
            "images": [row for reply in replies for row in (reply.images if reply else [not_finite])],
            "evaluations": first.evaluations.model_copy(update=dearest),
            "prompts": [prompt for reply in replies for prompt in (reply.prompts if reply else [""])],
            "refusals": refusals if any(refusals) else [],
        }
    )


def _join_instructed(first: InstructReply, replies: Sequence[InstructReply | None]) -> InstructReply:
    return first.model_copy(
        update={
            "images": [image for reply in replies for image in (reply.images if reply else [None])],
            "refusals": [reason for reply in replies for reason in (reply.refusals if reply else [""])],
            "evaluations": max(reply.evaluations for reply in replies if reply is not None),
        }
    )
