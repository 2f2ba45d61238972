"""Names of our modules in strings: `shared.x` in a checkout, `contrafact._system.shared.x` in an installed wheel."""

from __future__ import annotations

_PREFIX = __name__.removesuffix("shared.package")


def module(name: str) -> str:
    """The name under which a module of a checkout is imported here, such as `embedded.run`."""
    return f"{_PREFIX}{name}"
