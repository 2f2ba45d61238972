"""Replies that recur for every image, such as the vectors of class prompts, in the memory of one worker."""

from __future__ import annotations

import threading
from collections import OrderedDict

from shared.schemas.base import Contract

MOST_BYTES = 8 * 1024 * 1024  # as float32; in Python's lists a number takes eight times as much


class RecurringReplies:
    """The most recently used replies with vectors, by key of the recorded call. Thread-safe."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._replies: OrderedDict[str, tuple[Contract, int]] = OrderedDict()
        self._changing = threading.Lock()

    def find(self, key: str) -> Contract | None:
        """The reply, if it is kept."""
        with self._changing:
            if key not in self._replies:
                return None
            self._replies.move_to_end(key)
            return self._replies[key][0]

    def keep(self, key: str, reply: Contract, size: int) -> None:
        """Keep a reply whose vectors have `size` bytes, and drop the least recently used replies beyond the limit."""
        with self._changing:
            self._bytes += size - self._replies.get(key, (reply, 0))[1]
            self._replies[key] = reply, size
            while self._bytes > self._most_bytes:
                _, (_, freed) = self._replies.popitem(last=False)
                self._bytes -= freed
