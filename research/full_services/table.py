"""The figures of `make full-size` as a section of the documentation. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "full-size.json"
STEP_NETWORKS = ("unet", "controlnet")

Figures = Mapping[str, Any]


def full_size_section(path: Path = RESULTS) -> str:
    """Markdown: a table per part, in the order of the file."""
    figures: Mapping[str, Figures] = json.loads(path.read_text(encoding="utf-8"))
    return "\n".join(line for part in figures.values() for line in _part(part))


def _part(part: Figures) -> Iterator[str]:
    conditions = (
        f"{part['processor']}{' with native bfloat16' if part['native_bfloat16'] else ''}, {part['threads']} thread"
        f"{'s' if part['threads'] > 1 else ''}, torch {part['torch']}, {part['date']}, `{part['command']}`"
    )
    if "stopped" in part:
        yield f"**{part.get('title', part['command'])}** did not run to its end: {part['stopped']}. {conditions}.\n"
    else:
        billions = sum(part["parameters"].values()) / 1e9
        yield f"**{part['title']}**: networks of {billions:.2f} billion parameters. {conditions}."
        yield f"{len(part['warnings'])} warnings.\n" if part["warnings"] else "No warnings.\n"
    if "work" not in part:
        return
    yield "| | CPU s | of UNet and ControlNets, by rows of a pass | of other networks | peak GiB | above before |"
    yield "|---|---|---|---|---|---|"
    for work in part["work"]:
        yield _row(work)
    yield ""


def _row(work: Figures) -> str:
    passes: Sequence[Figures] = work["passes"]
    steps = [step for step in passes if step["network"] in STEP_NETWORKS]
    other_passes = [passing for passing in passes if passing["network"] not in STEP_NETWORKS]
    facts = work["facts"]
    added = "" if work["gib_before"] is None else f"{work['gib_peak'] - work['gib_before']:.1f}"
    finite = f" ({facts['finite']} of {facts['images']} images finite)" if "finite" in facts else ""
    return (
        f"| {work['name']}{finite} | {work['cpu_seconds']:,.0f} | {_seconds(steps, rows=True)} | "
        f"{_seconds(other_passes, rows=False)} | {work['gib_peak']:.1f} | {added} |"
    )


def _seconds(passes: Sequence[Figures], *, rows: bool) -> str:
    """Networks with the mean seconds of a pass."""
    return ", ".join(
        f"{step['network']}{' × ' + str(step['rows']) if rows else ''}: {step['cpu_seconds'] / step['count']:.1f}"
        + (f" ({step['count']} passes)" if step["count"] > 1 else "")
        for step in passes
    )
