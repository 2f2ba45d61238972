"""Progress without a terminal: the interval of its lines, rates, and time left."""

from __future__ import annotations

import io
from itertools import pairwise

import pytest
from rich.console import Console

from contrafact.progress_display import BYTES, LONGEST_SILENCE_SECONDS, SHORTEST_GAP_SECONDS, Pace, ProgressDisplay
from tests.support.terminal import Terminal


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lines_of(output: io.StringIO) -> list[str]:
    """The lines, without their times of day."""
    return [line[10:] for line in output.getvalue().splitlines()]


def follow(clock: Clock, seconds: int, per_image: float, total: int) -> list[tuple[float, str]]:
    """When which line was written, of work whose images end one after the other, looked at every half second."""
    output = io.StringIO()
    display = ProgressDisplay(Console(file=output, width=200), "rendering", "images", clock)
    began, lines = clock.now, list[tuple[float, str]]()
    for _ in range(2 * seconds):
        done = min(total, int((clock.now - began) / per_image))
        display.update(done, total, "rendering", "8 rendering")
        lines += [(clock.now - began, line) for line in lines_of(output)[len(lines) :]]
        clock.now += 0.5
    display.stop()
    return lines


@pytest.mark.parametrize("per_image", [0.5, 3.0, 20.0, 90.0])
def test_lines_come_at_least_every_half_minute_and_at_most_every_few_seconds(clock: Clock, per_image: float) -> None:
    lines = follow(clock, seconds=600, per_image=per_image, total=60)
    times = [at for at, _ in lines]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 0
    assert max(gaps) <= LONGEST_SILENCE_SECONDS
    assert min(gaps) >= SHORTEST_GAP_SECONDS


def test_every_tenth_has_its_line(clock: Clock) -> None:
    lines = follow(clock, seconds=700, per_image=10.0, total=60)
    counts = [int(line.split()[1]) for _, line in lines]
    assert {6 * tenth for tenth in range(11)} <= set(counts)


def test_a_line_says_stage_counts_rate_and_time_left_and_nothing_before_they_can_be_known(clock: Clock) -> None:
    lines = [line for _, line in follow(clock, seconds=500, per_image=12.0, total=60)]
    assert lines[0] == "rendering  0 of 60 images done, 8 rendering · estimating the time left"
    later = next(line for line in lines if " 30 of 60 " in line)
    assert later == "rendering  30 of 60 images done, 8 rendering · 5.0 images/min · about 6 min left"


def test_a_rate_counts_from_the_first_that_was_finished(clock: Clock) -> None:
    pace = Pace(clock)
    for done, seconds in ((20, 100.0), (21, 10.0), (22, 10.0)):
        pace.note(done)
        clock.now += seconds
    assert pace.per_second(22) is None  # two of them are no rate
    pace.note(23)
    assert pace.per_second(23) == pytest.approx(2 / 20)
    assert pace.words(23, 29, "images") == "6.0 images/min · about 60 s left"
    assert pace.words(23, 23 + 3_000, "images").endswith("about 8.3 h left")


def test_bytes_are_written_as_sizes(clock: Clock) -> None:
    output = io.StringIO()
    display = ProgressDisplay(Console(file=output, width=200), "uploading", BYTES, clock)
    for second in range(0, 61, 10):
        display.update(second * 2_000_000, 120_000_000)
        clock.now += 10
    display.stop()
    lines = lines_of(output)
    assert "0 bytes of 120.0 MB" in lines[0]
    assert all(words in lines[2] for words in ("40.0 MB of 120.0 MB", "2.0 MB/s", "40 s"))
    assert "120.0 MB of 120.0 MB" in lines[-1]


def test_what_ends_at_once_leaves_its_last_count(clock: Clock) -> None:
    output = io.StringIO()
    display = ProgressDisplay(Console(file=output, width=200), "uploading", "images", clock)
    display.update(0, 3)
    for _ in range(3):
        display.advance()
    display.stop()
    first, last = lines_of(output)
    assert "0 of 3 images" in first
    assert "3 of 3 images" in last


def test_a_terminal_has_a_bar_with_the_numbers_beneath_and_no_lines(clock: Clock) -> None:
    output = Terminal()
    console = Console(file=output, width=100, force_terminal=True, _environ={"TERM": "xterm"})
    display = ProgressDisplay(console, "starting", "images", clock)
    display.start()
    display.update(0, 60, "captioning", "3 captioning")
    display.update(1, 60, "rendering", "8 rendering · 4 counterfactuals, 2 accepted")
    display.stop()
    shown = output.getvalue()
    assert "1/60" in shown
    assert "4 counterfactuals, 2 accepted" in shown
    assert "images done" not in shown


def test_a_log_file_has_lines_though_the_environment_asks_for_colours(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    output = io.StringIO()
    display = ProgressDisplay(Console(file=output, width=200), "rendering", "images", clock)
    display.update(0, 60)
    display.stop()
    assert output.getvalue().count("\n") == 1
    assert "\x1b" not in output.getvalue()
