"""The table of `cost_of_methods`: what each arm spent per counterfactual produced and accepted, and the ratios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.cost_arms import Arm
from gateway.analysis.certainty import wilson


class Row(NamedTuple):
    """One arm's figures. `evaluations`, `teraflops`, `cpu_seconds` and `seconds` are those of all that it produced."""

    name: str
    method: str
    papers: bool
    settings: str
    produced: int
    accepted: int | None
    accepted_low: float | None
    accepted_high: float | None
    evaluations: int
    teraflops: float
    cpu_seconds: float
    seconds: float


def row(arm: Arm) -> Row:
    """An arm's figures; the shares of accepted edits have Wilson's interval."""
    low = high = None
    if arm.accepted is not None:
        share = wilson(arm.accepted, arm.produced)
        low, high = share.low, share.high
    return Row(
        arm.name, arm.method, arm.papers, arm.settings, arm.produced, arm.accepted, low, high,
        arm.spent.sample_evals(), arm.meter.flops(arm.spent) / 1e12, arm.spent.cpu_seconds, arm.spent.seconds,
    )  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Markdown, per counterfactual: produced, and in brackets accepted."""
    lines = [
        "| arm | settings | produced | accepted | evaluations | TFLOP | CPU s | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        spent = (one.evaluations, one.teraflops, one.cpu_seconds, one.seconds)
        cells = [f"{_each(amount, one.produced)} ({_each(amount, one.accepted)})" for amount in spent]
        lines.append("| " + " | ".join([one.name, one.settings, str(one.produced), _share(one), *cells]) + " |")
    return "\n".join(lines)


def ratios(rows: Sequence[Row]) -> list[str]:
    """The papers' way against each of ours, in sentences."""
    return [sentence for theirs in rows if theirs.papers for sentence in _ratios(theirs, rows)]


def _ratios(theirs: Row, rows: Sequence[Row]) -> Iterator[str]:
    for ours in rows:
        if ours.papers or ours.method != theirs.method:
            continue
        for unit, count, other in (
            ("produced", theirs.produced, ours.produced),
            ("accepted", theirs.accepted, ours.accepted),
        ):
            if count and other:
                of = {
                    name: (getattr(theirs, name) / count) / (getattr(ours, name) / other)
                    for name in ("evaluations", "teraflops", "cpu_seconds", "seconds")
                }
                yield (
                    f"{theirs.name} against {ours.name}, per {unit} counterfactual: {of['evaluations']:.1f} × the "
                    f"evaluations, {of['teraflops']:.1f} × the FLOPs, {of['cpu_seconds']:.1f} × the CPU seconds, "
                    f"{of['seconds']:.1f} × the seconds"
                )


def _each(amount: float, count: int | None) -> str:
    return f"{amount / count:.3g}" if count else "–"


def _share(one: Row) -> str:
    if one.accepted is None or one.accepted_low is None or one.accepted_high is None:
        return "not judged"
    return f"{one.accepted} ({one.accepted_low:.0%} to {one.accepted_high:.0%})"
