"""How far the weights of a service are loaded, for `/readyz`.

    loading thread:  expect(section) ─► reading(weights) ─► reading(weights) ─► ... ─► preparing(what) ─► ...
    any thread:      state()

Loaders wrap each read in `reading`, and what a warm-up computes in `preparing`. They report to the service that loads
in this thread and do nothing in other threads. This module does not import torch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass

from shared.profiles.weights import Section, Weights

WAITING = "another service of this process, which loads first"
WARM_UP = "digests of the files, and a first computation"


@dataclass(frozen=True, slots=True)
class LoadState:
    """What is being loaded, gigabytes loaded and in total (as the profile states them), and seconds so far."""

    loading: str
    gigabytes_loaded: float
    gigabytes_total: float
    seconds: float

    @property
    def sentence(self) -> str:
        """The state in words."""
        share = f"{self.gigabytes_loaded:.1f} of {self.gigabytes_total:.1f} GB after {self.seconds:.0f} s"
        if self.loading in (WAITING, WARM_UP):
            return f"the weights are still loading: {share}; it waits for {self.loading}"
        return f"the weights are still loading: {share}; now {self.loading}"


class LoadProgress:
    """The progress of one service's loading; thread-safe."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._begun = time.monotonic()
        self._expected: dict[str, Weights] = {}
        self._done: set[str] = set()
        self._current = ""
        self._expecting = False

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Let `expect` and `reading` in this thread report here."""
        token = _receiver.set(self)
        try:
            yield
        finally:
            _receiver.reset(token)

    def state(self) -> LoadState:
        """The present state of the loading."""
        with self._changing:
            sizes = {name: weights.gigabytes for name, weights in self._expected.items()}
            current = self._current or (WARM_UP if self._expecting else WAITING)
            return LoadState(
                loading=current,
                gigabytes_loaded=sum(sizes[name] for name in self._done),
                gigabytes_total=sum(sizes.values()),
                seconds=time.monotonic() - self._begun,
            )

    def expect(self, section: Section) -> None:
        """Name the weights that will be read: all sets in a section of the profile."""
        with self._changing:
            self._expected, self._expecting = dict(sets_of_weights(section)), True

    @contextmanager
    def preparing(self, what: str) -> Iterator[None]:
        """Name what is computed first, after the reading: compiling takes minutes."""
        with self._changing:
            self._current = what
        try:
            yield
        finally:
            with self._changing:
                self._current = ""

    @contextmanager
    def reading(self, weights: Weights) -> Iterator[None]:
        """Mark the time in which a set of weights is read; sets read within the block count as part of it."""
        with self._changing:
            outermost = not self._current
            names = [name for name, expected in self._expected.items() if expected == weights]
            if outermost:
                self._current = f"{names[0]} ({weights.id})" if names else weights.id
        try:
            yield
        finally:
            if outermost:
                with self._changing:
                    self._done.update(names)
                    self._current = ""


_receiver: ContextVar[LoadProgress | None] = ContextVar("load_progress", default=None)


def expect(section: Section) -> None:
    """See `LoadProgress.expect`."""
    if (receiver := _receiver.get()) is not None:
        receiver.expect(section)


@contextmanager
def reading(weights: Weights) -> Iterator[None]:
    """See `LoadProgress.reading`."""
    receiver = _receiver.get()
    if receiver is None:
        yield
        return
    with receiver.reading(weights):
        yield


@contextmanager
def preparing(what: str) -> Iterator[None]:
    """See `LoadProgress.preparing`."""
    receiver = _receiver.get()
    with nullcontext() if receiver is None else receiver.preparing(what):
        yield


def sets_of_weights(section: Section, prefix: str = "") -> Iterator[tuple[str, Weights]]:
    """Every set of weights in a section of a profile, under the name of its table (`controlnets.canny`)."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        items = value.items() if isinstance(value, dict) else [("", value)]
        for key, item in items:
            table = ".".join(part for part in (prefix, name, key) if part)
            if isinstance(item, Weights):
                yield table, item
            elif isinstance(item, Section):
                yield from sets_of_weights(item, table)
