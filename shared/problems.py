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
    │   └── GenerationFailed   502  generation-failed    the language model gave no valid value, twice
    ├── NotReady               503  not-ready            weights are still loading, or the service is stopping
    ├── NotFinite              500  not-finite           the network's output has NaN or infinity
    ├── OutOfMemory            503  out-of-memory        one item alone does not fit the device
    ├── DeviceFailed           503  device-failed        the accelerator failed during the request
    └── DeadlineExceeded       504  deadline-exceeded

Raise them anywhere. `shared.problem_replies` turns them into `application/problem+json`; on the caller's side
`from_reply` turns such a reply back into the same class.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from pydantic import JsonValue
from pydantic_core import ErrorDetails

from shared.http_statuses import retry_seconds

PREFIX = "urn:contrafact:problem:"
MEDIA_TYPE = "application/problem+json"
MAX_LISTED_ERRORS = 20


class Problem(Exception):
    """An error that a caller may see.

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
    """The request is readable, but its content is not allowed."""

    status, name, title = 422, "invalid-input", "Invalid input"


class ModelStopped(InvalidInput):
    """An uploaded model broke a limit or ended its process, or is quarantined because it did.

    The member `setting` names the operator's limit, `quarantined` is true if the model was not run.
    """

    name, title = "model-stopped", "The model under test was stopped"


class Malformed(InvalidInput):
    """The request, or a file in it, cannot be read."""

    status, name, title = 400, "malformed", "Malformed input"


class Unauthorized(Problem):
    """No API key, or an unknown one."""

    status, name, title = 401, "unauthorized", "Unauthorized"


class Forbidden(Problem):
    """The API key is known, but not allowed to do this."""

    status, name, title = 403, "forbidden", "Forbidden"


class NotFound(Problem):
    """The resource does not exist, or belongs to another API key."""

    status, name, title = 404, "not-found", "Not found"


class Conflict(Problem):
    """The request contradicts the present state."""

    status, name, title = 409, "conflict", "Conflict"


class TooLarge(Problem):
    """More bytes, pixels or files than the limits allow."""

    status, name, title = 413, "too-large", "Too large"


class Overloaded(Problem):
    """The queue is full; come back after `retry_after` seconds."""

    status, name, title = 429, "overloaded", "Overloaded"


class DependencyFailed(Problem):
    """A service or store behind this one failed or gave an unusable reply."""

    status, name, title = 502, "dependency-failed", "A dependency failed"


class GenerationFailed(DependencyFailed):
    """The language model gave no value that satisfies the schema, in two attempts."""

    name, title = "generation-failed", "Generation failed"


class NotReady(Problem):
    """Weights are still loading (or failed to load), or the service is stopping."""

    status, name, title = 503, "not-ready", "Not ready"


class NotFinite(Problem):
    """The network's output has NaN or infinity (often caused by half precision), so there is no result."""

    status, name, title = 500, "not-finite", "Result is not finite"


class OutOfMemory(Problem):
    """The device has too little memory, even for one item at a time."""

    status, name, title = 503, "out-of-memory", "Out of memory"


class DeviceFailed(Problem):
    """The accelerator, or the thread that uses it, failed during the request; the service restarts."""

    status, name, title = 503, "device-failed", "The device failed"


class DeadlineExceeded(Problem):
    """The caller's deadline passed before the work was done."""

    status, name, title = 504, "deadline-exceeded", "Deadline exceeded"


def _tree(cls: type[Problem]) -> Iterator[type[Problem]]:
    """Yield the classes with a name of their own, which are sent in replies. Clients may subclass them further."""
    if "name" in vars(cls):
        yield cls
    for child in cls.__subclasses__():
        yield from _tree(child)


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
    for cls in _tree(Problem):
        if cls.name == name:
            return cls(detail, members=members, retry_after=seconds)
    return DependencyFailed(f"a service answered {status}: {detail}", members=members)


def quoted(names: Sequence[str], most: int = 5) -> str:
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
