"""Values deep inside JSON."""

from __future__ import annotations

from typing import Any


def value_at(document: Any, *path: str | int) -> Any:
    """What stands at `path`, names and places, in a JSON document; fails where there is nothing."""
    for step in path:
        document = document[step]
    return document
