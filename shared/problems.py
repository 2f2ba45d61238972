"""Errors as RFC 9457 problem details, the same on every service.

    Problem                    500  internal
    ├── InvalidInput           422  invalid-input        well-formed, but the request is not valid
    │   ├── ModelStopped       422  model-stopped        an uploaded model broke a limit, or ended its process
    │   └── Malformed          400  malformed            cannot be read at all (broken JSON, broken image)
    ├── Unauthorized           401  unauthorized
    ├── Forbidden              403  forbidden
    ├── NotFound               404  not-found
    ├── Conflict               409  conflict
    ├── TooLarge               413  too-large
    ├── Overloaded             429  overloaded           the queue is full; Retry-After says when to come back
    ├── DependencyFailed       502  dependency-failed    a service or store behind this one failed
    │   └── UnusableReply      502  unusable-reply       a model's reply is no answer; another try gives the same
    │       └── GenerationFailed  502  generation-failed  the language model gave no valid value, twice
    ├── NotReady               503  not-ready            weights are still loading, or the service is stopping
    ├── NotFinite              500  not-finite           the network's output has NaN or infinity
    ├── OutOfMemory            503  out-of-memory        one item alone does not fit the device
    ├── DeviceFailed           503  device-failed        the accelerator failed during the request
    └── DeadlineExceeded       504  deadline-exceeded

Raise them anywhere. `shared.service.problem_replies` turns them into `application/problem+json`; on the caller's side
`from_reply` turns such a reply back into the same class. The first paragraph of a docstring says what happened, the
second what to do; `docs.generate` makes a page of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from pydantic import JsonValue
from pydantic_core import ErrorDetails

PREFIX = "urn:contrafact:problem:"
MEDIA_TYPE = "application/problem+json"
MAX_LISTED_ERRORS = 20
BEGINS = ". The reply begins: "  # before the quoted words of an unusable reply; what precedes them is its reason


class Problem(Exception):
    """An error that a caller may see; without a type of its own, it is a fault of Contrafact.

    The log has the traceback under the error's `request_id`; please report it.

    `detail` is a sentence that says what is wrong and what to change. `members` are RFC 9457 extension members.
    `retry_after` (seconds) becomes the Retry-After header.
    """

    status = 500
    name = "internal"
    title = "Internal error"

    def __init__(
        self, detail: str, *, members: Mapping[str, JsonValue] | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.members = dict(members or {})
        self.retry_after = retry_after

    def about(self, name: str) -> Self:
        """The same problem, whose `detail` begins with the name of the file that it is about."""
        return type(self)(f"{name!r}: {self.detail}", members=self.members, retry_after=self.retry_after)

    def body(self, instance: str | None = None) -> dict[str, JsonValue]:
        """The members of the problem document."""
        document: dict[str, JsonValue] = {
            **self.members,
            "type": PREFIX + self.name,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        return document if instance is None else {**document, "instance": instance}


class InvalidInput(Problem):
    """The request is readable, but its content is not allowed.

    Change the field that `detail` names.
    """

    status, name, title = 422, "invalid-input", "Invalid input"


class ModelStopped(InvalidInput):
    """An uploaded model broke a limit or ended its process, or is quarantined because it did.

    Make it smaller, or ask the operator to raise the `setting` that the error names.

    The member `setting` names the operator's limit, `quarantined` is true if the model was not run.
    """

    name, title = "model-stopped", "The model under test was stopped"


class Malformed(InvalidInput):
    """The request, or a file in it, cannot be read: it is damaged or has another format.

    Repair or convert the file, archive, manifest or JSON that `detail` names.
    """

    status, name, title = 400, "malformed", "Malformed input"


class Unauthorized(Problem):
    """The API key is missing, wrong or revoked.

    Set `CONTRAFACT_API_KEY`, or log in at `/login`.
    """

    status, name, title = 401, "unauthorized", "Unauthorized"


class Forbidden(Problem):
    """The key lacks the scope, the page is another site's, or a gateway without keys was called from another machine.

    Use a key with the scope, the gateway's own pages, or the gateway's machine.
    """

    status, name, title = 403, "forbidden", "Forbidden"


class NotFound(Problem):
    """The resource does not exist, or belongs to another owner.

    Check the id.
    """

    status, name, title = 404, "not-found", "Not found"


class Conflict(Problem):
    """The job, run or model is in another state, or a name or `Idempotency-Key` is taken.

    Wait, cancel the job, or choose another name.
    """

    status, name, title = 409, "conflict", "Conflict"


class TooLarge(Problem):
    """More bytes, pixels or files than the limits allow.

    `detail` names the limit. `contrafact submit FOLDER` uploads images one by one.
    """

    status, name, title = 413, "too-large", "Too large"


class Overloaded(Problem):
    """The key's limit is reached, another upload is in progress, or a service's queue is full or too long.

    Wait for `Retry-After` (`retry_after` seconds), as the client does.
    """

    status, name, title = 429, "overloaded", "Overloaded"


class DependencyFailed(Problem):
    """A service, store or model endpoint behind this one failed or gave an unusable reply.

    `detail`, or its own log, says why.
    """

    status, name, title = 502, "dependency-failed", "A dependency failed"


class UnusableReply(DependencyFailed):
    """A model server's reply is no answer: it is empty, or holds reasoning, markup or text where an answer belongs.

    `detail` names the server and quotes the first words. Change the server's settings, then retry the job.
    """

    name, title = "unusable-reply", "Unusable reply"


class GenerationFailed(UnusableReply):
    """The language model gave no value that satisfies the schema, in two attempts.

    If this happens often, take a larger model.
    """

    name, title = "generation-failed", "Generation failed"


class NotReady(Problem):
    """Weights are loading, the process is stopping, the database or a server does not answer, or uploads are too many.

    Try again. If it lasts, run `contrafact doctor`.
    """

    status, name, title = 503, "not-ready", "Not ready"


class NotFinite(Problem):
    """The network's output has NaN or infinity (often caused by half precision), so there is no result.

    Set `CONTRAFACT_VAE_DTYPE` or `CONTRAFACT_DTYPE` to `float32`. Of a model under test, its weights or preprocessing
    are at fault.
    """

    status, name, title = 500, "not-finite", "Result is not finite"


class OutOfMemory(Problem):
    """The device has too little memory, even for one item at a time.

    Free the device, or in deterministic mode lower `CONTRAFACT_MAX_BATCH`.
    """

    status, name, title = 503, "out-of-memory", "Out of memory"


class DeviceFailed(Problem):
    """The accelerator, or the thread that uses it, failed during the request; the service restarts.

    If it recurs, look at the GPU (`nvidia-smi`, `dmesg`).
    """

    status, name, title = 503, "device-failed", "The device failed"


class DeadlineExceeded(Problem):
    """The caller's deadline passed before the work was done.

    Give the service more processors, or raise `CONTRAFACT_SERVICE_DEADLINE_SECONDS`.
    """

    status, name, title = 504, "deadline-exceeded", "Deadline exceeded"


def problem_types(cls: type[Problem] = Problem) -> Iterator[type[Problem]]:
    """Yield the classes with a name of their own, which are sent in replies. Clients may subclass them further."""
    if "name" in vars(cls):
        yield cls
    for child in cls.__subclasses__():
        yield from problem_types(child)


def from_reply(status: int, body: bytes, retry_after: str | None = None) -> Problem:
    """Return the problem in a service's reply as its own class; `DependencyFailed` for any other reply."""
    seconds = retry_seconds(retry_after)
    try:
        document = json.loads(body)
        name = document["type"].removeprefix(PREFIX)
        detail = str(document["detail"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return DependencyFailed(f"a service answered {status} without a problem document: {body[:200]!r}")
    members = {key: value for key, value in document.items() if key not in Problem("").body("")}
    for cls in problem_types():
        if cls.name == name:
            return cls(detail, members=members, retry_after=seconds)
    return DependencyFailed(f"a service answered {status}: {detail}", members=members)


def quote(names: Sequence[str], most: int = 5) -> str:
    """Format names for a message: the first ones in quotes, then the number of the others."""
    more = len(names) - most
    return ", ".join(map(repr, names[:most])) + (f" and {more} more" if more > 0 else "")


_IN_TERMS_OF_JSON = {
    "model_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "list_type": "Input should be a valid array",
    "tuple_type": "Input should be a valid array",
}


def validation_sentence(errors: list[ErrorDetails]) -> str:
    """Summarise the first errors of a pydantic validation in one line, without echoing the (possibly huge) input."""
    lines = [
        f"{'.'.join(map(str, error['loc'])) or 'body'}: "
        f"{_IN_TERMS_OF_JSON.get(error['type'], error['msg'].removeprefix('Value error, '))}"
        for error in errors[:MAX_LISTED_ERRORS]
    ]
    more = len(errors) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more > 0 else "")


RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses of temporary conditions; the same request may succeed later.

409 too: OpenAI's servers send it for a lock that is held, and its client repeats it.
"""

_ABOUT_THE_CONNECTION = frozenset({401, 402, 403, 404, 405, 407, 410})  # the operator's key, account or address


def refuses_content(status: int) -> bool:
    """Whether the server refuses the content and would refuse it again (400, 413, 415, 422 and similar statuses)."""
    return 400 <= status < 500 and status not in RETRIED | _ABOUT_THE_CONNECTION


def retry_seconds(header: str | None) -> float | None:
    """The seconds of a `Retry-After` header; None if there is none, or it is a date."""
    return float(header) if header and header.isascii() and header.isdigit() else None
