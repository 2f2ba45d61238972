"""The whole system in this process, and drawn pictures that its small models know.

`run_embedded` serves a directory, such as that of a `contrafact.test`, until its block ends. `write_demo` draws a
labelled test set. The profile `tiny` has models under test for it, such as `street-classifier`, and
`street-classifier-night-bus` with a planted weakness.
"""

from __future__ import annotations

try:
    from embedded.run import Embedded, run_embedded
    from tinyworld.objects.demo import write_demo
except ModuleNotFoundError as error:
    message = f"{error}: this runs the whole system: install `contrafact[embedded]`"
    raise ImportError(message, name=error.name) from error

__all__ = ["Embedded", "run_embedded", "write_demo"]
