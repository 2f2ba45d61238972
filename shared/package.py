"""Names of our modules in strings: `shared.x` in a checkout, `contrafact._system.shared.x` in an installed wheel.

And imports that Ctrl-C does not cut in half.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Loaded = TypeVar("Loaded")
_PREFIX = __name__.removesuffix("shared.package")


def module(name: str) -> str:
    """The name under which a module of a checkout is imported here, such as `embedded.run`."""
    return f"{_PREFIX}{name}"


def uninterrupted(load: Callable[[], Loaded]) -> Loaded:
    """What `load` returns, which imports modules. Ctrl-C waits for its end: half an import cannot be repeated."""
    with ThreadPoolExecutor(1, "imports") as thread:
        thread.submit(int).result()  # interrupted while it starts, the thread would not be waited for
        return thread.submit(load).result()
