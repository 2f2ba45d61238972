"""The table of costs: what each arm spends per counterfactual produced, accepted and good, and the ratios."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from scipy.stats import norm

from benchmarks.cost_arms import Arm, Arms
from benchmarks.cost_sources import Source
from gateway.analysis.certainty import LEVEL, score_interval

Unit = Literal["produced", "accepted", "good"]
UNITS: tuple[Unit, ...] = get_args(Unit)


class Row(NamedTuple):
    """One arm's figures. `evaluations`, `teraflops`, `cpu_seconds` and `seconds` are totals."""

    name: str
    method: str
    papers: bool
    settings: str
    produced: int
    accepted: int | None
    good: int | None
    evaluations: int
    teraflops: float
    cpu_seconds: float
    seconds: float


def row(arm: Arm) -> Row:
    """An arm's figures."""
    return Row(
        arm.name, arm.method, arm.papers, arm.settings, arm.produced, arm.accepted, arm.good,
        arm.spent.sample_evals(), arm.meter.flops(arm.spent) / 1e12, arm.spent.cpu_seconds, arm.spent.seconds,
    )  # fmt: skip


def measure(arms: Arms, sources: Sequence[Source], methods: Sequence[str]) -> Iterator[list[Row]]:
    """The rows of all arms of the methods, in order, after each of the sources."""
    chosen = [arm for arm in arms.arms if arm.method in methods]
    arms.warm_up(chosen, sources[0])
    for number, source in enumerate(sources, start=1):
        for arm in chosen:
            arms.run(arm, source)
            spent = f"{arm.spent.cpu_seconds:.0f} CPU s so far"
            print(f"{number}/{len(sources)} {arm.name}: {spent}", file=sys.stderr, flush=True)
        yield [row(arm) for arm in chosen]


def table(rows: Sequence[Row]) -> str:
    """Markdown; costs are per counterfactual produced, and in brackets per accepted and per good one."""
    lines = [
        "| arm | settings | produced | accepted | good | evaluations | TFLOP | CPU s | s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        spent = (row.evaluations, row.teraflops, row.cpu_seconds, row.seconds)
        cells = [
            f"{_per_call(amount, row.produced)} ({_per_call(amount, row.accepted)}, {_per_call(amount, row.good)})"
            for amount in spent
        ]
        shares = [_share(row.accepted, row.produced), _share(row.good, row.produced)]
        lines.append("| " + " | ".join([row.name, row.settings, str(row.produced), *shares, *cells]) + " |")
    return "\n".join(lines)


def ratios(rows: Sequence[Row]) -> list[str]:
    """Cost ratios of the papers' arm to each of ours, per counterfactual produced, accepted and good, where defined."""
    return [sentence for theirs in rows if theirs.papers for sentence in _ratios(theirs, rows)]


def _ratios(theirs: Row, rows: Sequence[Row]) -> Iterator[str]:
    for ours in rows:
        if ours.papers or ours.method != theirs.method:
            continue
        for unit in UNITS:
            yield f"{theirs.name} against {ours.name}, per {unit} counterfactual: {_ratio(theirs, ours, unit)}"


def _ratio(theirs: Row, ours: Row, unit: Unit) -> str:
    count, our_count = getattr(theirs, unit), getattr(ours, unit)
    if not count or not our_count:
        return no_ratio(theirs, ours, unit)
    of = {
        name: (getattr(theirs, name) / count) / (getattr(ours, name) / our_count)
        for name in ("evaluations", "teraflops", "cpu_seconds", "seconds")
    }
    return (
        f"{of['evaluations']:.1f} × the evaluations, {of['teraflops']:.1f} × the FLOPs, "
        f"{of['cpu_seconds']:.1f} × the CPU seconds, {of['seconds']:.1f} × the seconds"
    )


def no_ratio(theirs: Row | Arm, ours: Row | Arm, unit: Unit) -> str:
    """Why two arms have no ratio of costs: the arms without a counterfactual of this unit."""
    reasons = [
        f"{arm.name} is not judged" if count is None else f"0 of {arm.produced} {unit} by {arm.name}"
        for arm in (theirs, ours)
        if not (count := getattr(arm, unit))
    ]
    return f"no ratio: {' and '.join(reasons)}"


def _per_call(amount: float, count: int | None) -> str:
    return f"{amount / count:.3g}" if count else "–"


def _share(count: int | None, produced: int) -> str:
    if not produced or count is None:
        return "not judged"
    low, high = score_interval(count / produced, produced, float(norm.ppf((1 + LEVEL) / 2)))
    return f"{count} ({low:.0%} to {high:.0%})"
