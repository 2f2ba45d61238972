"""Check the statistics on synthetic tables with a known truth: `make simulate`.

Measures coverage and width of every reported interval, false discoveries under dependence between cells, the power that
plans promise, and effects among valid counterfactuals when a known share is invalid. Prints tables and writes them as
JSON. `research/simulated_jobs.py` and `research/simulated_validity.py` generate the synthetic data.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TypedDict

import numpy as np

from gateway.analysis.effects import Originals, differences
from gateway.analysis.findings import assess
from gateway.analysis.limits import BEYOND, FALSE_DISCOVERY_RATE
from gateway.analysis.metrics import paper_metrics
from gateway.analysis.power import detectable_drop
from research.simulated_jobs import CLASSES, VALUES, Setting, grid, job, truths
from research.simulated_validity import Contaminated, EffectOutcome, contaminated_grid, simulate_contaminated
from research.system.packed import write_text
from shared.schemas.effects import Cell, CellEffect, Interval, Rate
from shared.seeds import derive_seed

RESULTS = Path(__file__).parent / "results" / "simulation.json.gz"
FAMILY = 8  # cells of a simulated job
PAIRS = (("sources", "rate"), ("sources", "drop"), ("siblings", "correlation"), ("sources", "calibrated"))
POWER_SOURCES = (15, 20, 40, 80)


@dataclass(frozen=True, slots=True)
class IntervalOutcome:
    """One reported interval: its quantity, setting and width, whether it contains the truth (`covered`)."""

    quantity: str
    setting: Setting | Contaminated
    kind: str
    covered: bool
    width: float


@dataclass(frozen=True, slots=True)
class Discoveries:
    """Counts of one run: rejected cells, findings, the false ones of each, and selected intervals that miss."""

    setting: Setting
    rejected: int
    rejected_false: int
    findings: int
    findings_false: int
    selected_missed: int


@dataclass(frozen=True, slots=True)
class SimulationRow:
    """A group of runs or intervals: their number, the mean of the measured quantity, and the mean width, if any."""

    quantity: str
    by: str
    value: str
    n: int
    mean: float
    width: float | None = None


def one_run(setting: Setting, seed: int) -> tuple[list[IntervalOutcome], Discoveries]:
    """One synthetic job through the analysis."""
    outcomes = job(setting, np.random.default_rng(seed))
    true = truths(setting)
    cells = {cell: differences(outcomes, rows) for cell, rows in outcomes.cells.items() if len(rows)}
    effects = assess(cells, seed)
    outcomes_of_intervals = [
        _interval_outcome("effect", setting, effect.interval, true[effect.cell])
        for effect in effects
        if effect.interval is not None
    ]
    figures = paper_metrics(outcomes, Originals(outcomes.ranks.original.rank, outcomes.cluster), seed)
    wrong = 1 - setting.rate + setting.drop / (len(CLASSES) * len(VALUES))
    for name, rate, truth in (
        ("rate over counterfactuals", figures.error_rate, wrong),
        ("rate over null arms", figures.error_rate_null, 1 - setting.rate),
    ):
        outcomes_of_intervals.append(_rate_outcome(name, setting, rate, truth))
    return outcomes_of_intervals, _discoveries(setting, effects, true)


def _interval_outcome(name: str, setting: Setting, interval: Interval, truth: float) -> IntervalOutcome:
    covers = interval.low - 1e-9 <= truth <= interval.high + 1e-9
    return IntervalOutcome(name, setting, interval.kind, covers, interval.high - interval.low)


def _rate_outcome(name: str, setting: Setting, rate: Rate, truth: float) -> IntervalOutcome:
    return IntervalOutcome(name, setting, "wilson", rate.low - 1e-9 <= truth <= rate.high + 1e-9, rate.high - rate.low)


def _discoveries(setting: Setting, effects: Sequence[CellEffect], true: dict[Cell, float]) -> Discoveries:
    rejected = [effect for effect in effects if effect.q_value is not None and effect.q_value <= FALSE_DISCOVERY_RATE]
    findings = [effect for effect in effects if effect.standing in ("weakness", "improvement")]
    missed = [
        effect
        for effect in rejected
        if effect.selected_interval
        and not effect.selected_interval.low <= true[effect.cell] <= effect.selected_interval.high
    ]
    beyond = {
        effect.cell: (-true[effect.cell] if effect.standing == "weakness" else true[effect.cell]) > BEYOND + 1e-9
        for effect in findings
    }
    return Discoveries(
        setting,
        len(rejected),
        sum(abs(true[effect.cell]) < 1e-9 for effect in rejected),
        len(findings),
        sum(not is_beyond for is_beyond in beyond.values()),
        len(missed),
    )


def power(sources: int, runs: int) -> list[SimulationRow]:
    """How often a drop of the size that a plan states is detected, and a drop of three quarters of this size."""
    stated = detectable_drop(sources, FAMILY)
    if stated is None:
        return []
    rows = []
    for name, drop in (("stated drop", stated), ("three quarters of it", 0.75 * stated)):
        setting = Setting(sources, 1, 0.95, 0.0, drop, accepted=1.0)
        detected = 0
        for run in range(runs):
            seed = derive_seed("power", sources, name, run)
            outcomes = job(setting, np.random.default_rng(seed))
            effects = assess({c: differences(outcomes, rows) for c, rows in outcomes.cells.items()}, seed)
            aimed = Cell(label="bus", factor="weather", value="night", direction="to")
            detected += any(e.cell == aimed and e.standing == "weakness" for e in effects)
        rows.append(
            SimulationRow(f"power, {name}", "sources", f"{sources}: {100 * drop:.0f} points", runs, detected / runs)
        )
    return rows


def groups_of(setting: Setting | Contaminated) -> Iterator[tuple[str, str]]:
    """The groups of a setting, as (by, value): all, each of its properties, and some pairs of properties."""
    properties = {name: str(value) for name, value in asdict(setting).items()}
    yield "all", ""
    yield from properties.items()
    for pair in PAIRS:
        if all(name in properties for name in pair):
            yield " × ".join(pair), " × ".join(properties[name] for name in pair)
    yield "setting", ", ".join(f"{name} {value}" for name, value in properties.items())


def coverage_rows(intervals: Iterable[IntervalOutcome]) -> Iterator[SimulationRow]:
    """Coverage and mean width, in all and by property of the settings."""
    groups: dict[tuple[str, str, str], list[IntervalOutcome]] = defaultdict(list)
    for interval in intervals:
        for by, value in (*groups_of(interval.setting), ("kind", interval.kind)):
            groups[interval.quantity, by, value].append(interval)
    for (name, by, value), members in sorted(groups.items()):
        coverage = float(np.mean([interval.covered for interval in members]))
        width = float(np.mean([interval.width for interval in members]))
        yield SimulationRow(name, by, value, len(members), coverage, width)


def discovery_rows(runs: Sequence[Discoveries]) -> Iterator[SimulationRow]:
    """Mean false share of rejected cells, of findings and of selected intervals, by property."""
    groups: dict[tuple[str, str], list[Discoveries]] = defaultdict(list)
    for run in runs:
        for group in groups_of(run.setting):
            groups[group].append(run)
    for name, false, of in (
        ("false share of rejected cells (no effect)", "rejected_false", "rejected"),
        ("false share of findings (within 5 points)", "findings_false", "findings"),
        ("share of selected intervals that miss", "selected_missed", "rejected"),
    ):
        for (by, value), members in sorted(groups.items()):
            shares = [getattr(run, false) / max(1, getattr(run, of)) for run in members]
            yield SimulationRow(name, by, value, len(members), float(np.mean(shares)))


@dataclass(slots=True)
class Simulated:
    """The simulated outcomes so far; `repeat` adds one run of every setting."""

    every: int = 1  # use every n-th setting only (for tests)
    passes: int = 0
    shown: list[IntervalOutcome] = field(default_factory=list)
    discoveries: list[Discoveries] = field(default_factory=list)
    judged: list[EffectOutcome] = field(default_factory=list)

    def repeat(self) -> None:
        """One more run of every setting."""
        for number, setting in enumerate(list(grid())[:: self.every]):
            intervals, discoveries = one_run(setting, derive_seed("simulate", number, self.passes))
            self.shown += intervals
            self.discoveries.append(discoveries)
        for number, contaminated in enumerate(list(contaminated_grid())[:: self.every]):
            judged = simulate_contaminated(contaminated, derive_seed("contaminated", number, self.passes))
            self.shown.append(
                IntervalOutcome("effect among valid", contaminated, "validity", judged.covered, judged.width)
            )
            self.judged.append(judged)
        self.passes += 1

    def rows(self) -> list[SimulationRow]:
        """All tables."""
        lost = [cell.bias for cell in self.judged if cell.setting.invalid == "lost"]
        name = "bias of the estimate, every invalid one lost"
        return [
            *coverage_rows(self.shown),
            *discovery_rows(self.discoveries),
            SimulationRow(name, "all", "", len(lost), float(np.mean(lost))),
            *_breakdown_rows([cell.breakdown_holds for cell in self.judged if cell.breakdown_holds is not None]),
        ]


def _breakdown_rows(within: Sequence[bool]) -> list[SimulationRow]:
    if not within:
        return []
    name = "effects truly beyond 5 points, invalid share below breakdown"
    return [SimulationRow(name, "all", "", len(within), float(np.mean(within)))]


def worst(rows: Iterable[SimulationRow], least: int = 150) -> SimulationRow:
    """The group with the lowest coverage among groups of at least `least` intervals."""
    return min((row for row in rows if row.width is not None and row.n >= least), key=lambda row: row.mean)


def lowest_settings(rows: Iterable[SimulationRow]) -> list[SimulationRow]:
    """The ten single settings with the lowest coverage of an effect's intervals."""
    return sorted((row for row in rows if row.by == "setting" and row.quantity == "effect"), key=lambda row: row.mean)[
        :10
    ]


class SimulationRecord(TypedDict):
    """The file of results. It is complete when `passes_done` equals `passes_requested`."""

    command: str
    passes_done: int  # runs of every setting of both grids
    passes_requested: int
    runs: int
    intervals: int
    cpu_seconds: int
    versions: dict[str, str]
    rows: list[dict[str, str | float | None]]
    lowest_settings: list[dict[str, str | float | None]]


def record(simulated: Simulated, powers: Sequence[SimulationRow], passes: int, power_runs: int) -> SimulationRecord:
    """What is simulated so far, of `passes` requested passes."""
    rows = [*simulated.rows(), *powers]
    return SimulationRecord(
        command=f"python -m research.simulate --runs {passes} --power-runs {power_runs}",
        passes_done=simulated.passes,
        passes_requested=passes,
        runs=len(simulated.discoveries) + len(simulated.judged),
        intervals=len(simulated.shown),
        cpu_seconds=round(time.process_time()),
        versions={"python": platform.python_version(), **{name: version(name) for name in ("numpy", "scipy")}},
        rows=[asdict(row) for row in rows if row.by != "setting"],
        lowest_settings=[asdict(row) for row in lowest_settings(rows)],
    )


def print_rows(rows: Sequence[SimulationRow]) -> None:
    """A line for each group, and the group with the lowest coverage."""
    for row in (row for row in rows if row.by != "setting"):
        width = "" if row.width is None else f"  width {100 * row.width:.1f}"
        noise = math.sqrt(max(row.mean * (1 - row.mean), 0) / row.n)
        group = f"{row.by} {row.value}"
        print(f"{row.quantity:<44} {group:<36} {100 * row.mean:6.2f} % ± {100 * noise:.2f}  n {row.n}{width}")
    print(f"\nlowest coverage of a group: {worst(rows)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="of every setting of both grids")
    parser.add_argument("--power-runs", type=int, default=400, help="per number of source images")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    powers = [row for sources in POWER_SOURCES for row in power(sources, arguments.power_runs)]
    simulated = Simulated()
    for _ in range(arguments.runs):  # the file is written after every pass, so that a long run can be interrupted
        simulated.repeat()
        written = record(simulated, powers, arguments.runs, arguments.power_runs)
        write_text(arguments.out, json.dumps(written) + "\n")
        print(f"pass {simulated.passes} of {arguments.runs}, {written['cpu_seconds']} CPU seconds", flush=True)
    print_rows([*simulated.rows(), *powers])


if __name__ == "__main__":
    main()
