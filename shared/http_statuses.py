"""What the status says that somebody else's server (a language server, a model under test) answers a request with."""

from __future__ import annotations

RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""About the moment, not about the request."""

_ABOUT_THE_CONNECTION = frozenset({401, 402, 403, 404, 405, 407, 410})  # the operator's key, account or address


def refuses_content(status: int) -> bool:
    """Whether the server refuses what was sent, and would refuse the same again (400, 413, 415, 422 and their like)."""
    return 400 <= status < 500 and status not in RETRIED | _ABOUT_THE_CONNECTION
