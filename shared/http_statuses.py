"""Interpret the HTTP status of an external server (a language server, a model under test)."""

from __future__ import annotations

RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of temporary conditions; the same request may succeed later."""

_ABOUT_THE_CONNECTION = frozenset({401, 402, 403, 404, 405, 407, 410})  # the operator's key, account or address


def refuses_content(status: int) -> bool:
    """Whether the server refuses the content and would refuse it again (400, 413, 415, 422 and similar statuses)."""
    return 400 <= status < 500 and status not in RETRIED | _ABOUT_THE_CONNECTION
