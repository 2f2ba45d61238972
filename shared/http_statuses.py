"""Interpret the HTTP status and `Retry-After` of an external server (a language server, a model under test)."""

from __future__ import annotations

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
