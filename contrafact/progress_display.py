"""Progress of long commands: a bar on a terminal, one line that changes in a notebook, plain lines elsewhere.

In logs of CI and containers, a line is written at every 10 % and at least every 30 seconds, but at most every 5
seconds. The first and the last line are always written.

A job in a terminal: its progress until it ends, then its findings.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer
from rich.console import Console, RenderableType
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from contrafact import printing
from contrafact.client import Client
from contrafact.command_line import messages, print_output
from shared.schemas.jobs import JobDetail
from shared.words.stages import stage_words

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

LONGEST_SILENCE_SECONDS = 30.0
SHORTEST_GAP_SECONDS = 5.0
STEPS = 10  # a line for each tenth
LEAST_FINISHED = 3  # items; fewer give no useful rate
BYTES = "bytes"  # the unit whose counts are written as kB, MB or GB


class Pace:
    """The rate of work, measured from the first finished item."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at_start: int | None = None
        self._first: tuple[float, int] | None = None

    def note(self, done: int) -> None:
        """Record that `done` items are finished now."""
        if self._at_start is None:
            self._at_start = done
        elif self._first is None and done > self._at_start:
            self._first = self._clock(), done

    def per_second(self, done: int) -> float | None:
        """The rate, or None while too few items are finished to estimate it."""
        if self._first is None or self._at_start is None or done - self._at_start < LEAST_FINISHED:
            return None
        start_time, start_count = self._first
        seconds = self._clock() - start_time
        return (done - start_count) / seconds if done > start_count and seconds > 0 else None

    def words(self, done: int, total: int, unit: str) -> str:
        """The rate and the time left, in words, also while too few items are finished to estimate them."""
        rate = self.per_second(done)
        if rate is None:
            return "estimating the time left"
        return f"{_rate(rate, unit)} · {_duration((total - done) / rate)} left"


class ProgressDisplay:
    """The display that `show_progress` yields. Any thread may update it."""

    def __init__(self, console: Console, stage: str, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._stage, self._unit, self._clock = console, stage, unit, clock
        self._pace = Pace(clock)
        self._done, self._total, self._detail = 0, 0, ""
        self._written_at: float | None = None
        self._written_tenth = 0
        self._lock = threading.RLock()
        self._in_notebook: DisplayHandle | None = None
        # Many CI systems set FORCE_COLOR for log files. Rich then assumes a terminal.
        self._bar = _Bar(console, unit) if console.is_interactive and console.file.isatty() else None
        self._task = self._bar.add_task(stage, total=None) if self._bar else None

    def update(self, done: int, total: int, stage: str | None = None, detail: str = "") -> None:
        """Show `done` finished items of `total` (0 if unknown), the `stage`, and a `detail` in words."""
        with self._lock:
            self._done, self._total, self._detail = done, total, detail
            self._stage = stage or self._stage
            self._pace.note(done)
            if self._bar is not None and self._task is not None:
                self._bar.detail = " · ".join(filter(None, [detail, self._pace_words()]))
                self._bar.update(self._task, description=self._stage, completed=done, total=total or None)
            elif self._line_is_due():
                self._write()

    def advance(self, items: int = 1) -> None:
        """Record that this many more items are finished. 0 repeats the last state."""
        with self._lock:
            self.update(self._done + items, self._total, detail=self._detail)

    def start(self) -> None:
        """Show the bar, if there is one."""
        if self._bar is not None:
            self._bar.start()

    def stop(self) -> None:
        """Remove the bar, or write the last line if it is not written yet."""
        if self._bar is not None:
            self._bar.stop()
        elif self._written_at is not None and self._done >= self._total > 0 and self._written_tenth < STEPS:
            self._write()

    def _pace_words(self) -> str:
        return self._pace.words(self._done, self._total, self._unit) if self._done < self._total else ""

    def _tenth(self) -> int:
        return self._done * STEPS // self._total if self._total else 0

    def _line_is_due(self) -> bool:
        if self._written_at is None:
            return True
        elapsed = self._clock() - self._written_at
        if elapsed < SHORTEST_GAP_SECONDS:
            return False
        return elapsed >= LONGEST_SILENCE_SECONDS or self._tenth() > self._written_tenth

    def _write(self) -> None:
        self._written_at, self._written_tenth = self._clock(), self._tenth()
        count = _count_words(self._done, self._total, self._unit) if self._total else ""
        words = " · ".join(filter(None, [", ".join(filter(None, [count, self._detail])), self._pace_words()]))
        line = f"{datetime.now():%H:%M:%S}  {self._stage}  {words}".rstrip()
        if self._console.is_jupyter:
            self._replace(line)
            return
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()

    def _replace(self, line: str) -> None:
        """Put the line in the place of the one before, in the notebook's output."""
        from IPython.display import display

        text = {"text/plain": line}
        if self._in_notebook is None:
            self._in_notebook = display(text, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._in_notebook.update(text, raw=True)  # type: ignore[no-untyped-call]


class _Bar(Progress):
    """Rich's bar with a second line for details."""

    def __init__(self, console: Console, unit: str) -> None:
        self.detail = ""
        count = DownloadColumn() if unit == BYTES else MofNCompleteColumn()
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), count)
        super().__init__(*columns, TimeElapsedColumn(), console=console)

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar and the line beneath it."""
        yield self.make_tasks_table(self.tasks)
        if self.detail:
            yield Text(f"  {self.detail}", style="dim")


@contextmanager
def show_progress(console: Console, stage: str, total: int = 0, unit: str = "images") -> Iterator[ProgressDisplay]:
    """Show a progress display on this console until the block ends. It repeats the last state between updates."""
    display = ProgressDisplay(console, stage, unit)
    display.start()
    try:
        if total:
            display.update(0, total)
        with _repeat_state(display):
            yield display
    finally:
        display.stop()


@contextmanager
def show_upload(console: Console, name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show an upload of `total` bytes until the block ends. Yields a function that takes the number of bytes sent.

    Once all bytes are sent, the display says that the gateway checks them.
    """

    def show(sent: int) -> None:
        display.update(sent, total, f"checking {name}" if sent >= total else f"uploading {name}")

    with show_progress(console, f"uploading {name}", total, BYTES) as display:
        yield show
        display.update(total, total, f"uploaded {name}")


@contextmanager
def _repeat_state(display: ProgressDisplay) -> Iterator[None]:
    """Repeat the last state every few seconds, for work that reports nothing for a long time."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(SHORTEST_GAP_SECONDS):
            display.advance(0)

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _count_words(done: int, total: int, unit: str) -> str:
    if unit == BYTES:
        return f"{decimal(done)} of {decimal(total)} done"
    return f"{done:,} of {total:,} {unit} done"


def _rate(per_second: float, unit: str) -> str:
    if unit == BYTES:
        return f"{decimal(round(per_second))}/s"
    for seconds, name in ((1, "s"), (60, "min")):
        if per_second * seconds >= 1:
            return f"{per_second * seconds:.1f} {unit}/{name}"
    return f"{per_second * 3600:.1f} {unit}/h"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(10, round(seconds, -1)):.0f} s"
    if seconds < 90 * 60:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.1f} h"


def print_page(client: Client, job: str) -> None:
    """Print the link to a job's page, which shows its pictures as they are made."""
    messages.print(f"watch it at {client.page_of(job)}", markup=False, highlight=False, soft_wrap=True)


def follow_job(client: Client, detail: JobDetail) -> JobDetail:
    """Show progress until the job ends, and a link to the gallery once a counterfactual is accepted."""
    current, has_link = detail, _accepted_count(detail) > 0
    with show_progress(messages, stage_words(detail.progress), detail.images) as display:
        for current in client.follow(detail.id):
            progress = current.progress
            display.update(
                printing.count_finished(progress), current.images, stage_words(progress), printing.details(progress)
            )
            if not has_link and _accepted_count(current):
                has_link = True
                seconds = max(0.0, (datetime.now(UTC) - current.created_at).total_seconds())
                line = f"first counterfactual after {seconds:.0f} s: {client.gallery_of(current.id)}"
                messages.print(line, markup=False, highlight=False, soft_wrap=True)
    return current


def print_findings(client: Client, job: str) -> None:
    """Print the findings. Exits with code 1 if the job failed or was cancelled, with 0 if it is still running."""
    page = client.results(job, {}, limit=1)
    unsuccessful = page.state in ("failed", "cancelled")
    if page.metrics is None:
        messages.print(f"the job is {page.state}; findings are available when it is done")
        raise typer.Exit(1 if unsuccessful else 0)
    print_output(printing.findings(page.metrics))
    if unsuccessful:
        messages.print(f"the job is {page.state}")
        raise typer.Exit(1)


def _accepted_count(detail: JobDetail) -> int:
    return sum(funnel.accepted for funnel in detail.progress.funnel)
