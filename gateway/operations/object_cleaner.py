"""Clean the objects of the store one by one; an error on one object does not stop the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from shared.problems import DependencyFailed
from shared.storage import ObjectStore

MOST_ERRORS = 20  # in a row; then the store is probably away, and each further attempt may last until a timeout

logger = logging.getLogger("contrafact.housekeeping")


@dataclass(slots=True)
class ObjectCleaner:
    """`errors` counts the objects that failed; they stay for the next run."""

    store: ObjectStore
    errors: int = 0
    _in_a_row: int = 0

    def delete(self, key: str) -> bool:
        """Delete an object. Returns whether that succeeded."""
        return self.attempt(key, lambda: self.store.delete(key))

    def attempt(self, key: str, work: Callable[[], None]) -> bool:
        """Run `work` on an object. Returns whether it succeeded. After `MOST_ERRORS` in a row, nothing more is run."""
        if self._in_a_row >= MOST_ERRORS:
            return False
        try:
            work()
        except Exception as error:  # no error on one object may stop the others
            self.errors += 1
            self._in_a_row += 1
            logger.warning("housekeeping leaves %s for its next run: %s: %s", key, type(error).__name__, error)
            return False
        self._in_a_row = 0
        return True

    def refuse_broken(self) -> None:
        """Raises DependencyFailed if the run gave up."""
        if self._in_a_row >= MOST_ERRORS:
            raise DependencyFailed(f"{MOST_ERRORS} objects in a row could not be cleaned; the log says why")
