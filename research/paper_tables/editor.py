"""The paper's editor of LANCE beside the profile's: what it accepts at which cost, and under whose thresholds.

    python -m research.paper_tables.editor --sources 12

Every column is a job with a free design over the same drawn pictures, judged as in the other tables: by oracles, and by
the grammar of the captions. The jobs of one editor differ in thresholds alone, so the second one renders nothing new.
The paper's thresholds (Table 6, and an image nearer to the new caption than to the old one) were set for CLIP ViT-L/14.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from research.paper_tables.arms import TASK, scenes_of, write_sources
from research.paper_tables.judging import factor_figures, judge_counterfactuals
from research.paper_tables.printing import grid, number, rate
from research.paper_tables.rows import FactorFigures
from research.system.public_jobs import embedded_client, figures, run_job
from shared.schemas.jobs import JobSpec, MethodChoice
from shared.schemas.results import Cost, Funnel
from tinyworld.objects.world import Scene

PAPER: Mapping[str, JsonValue] = {"inversion": "null_text", "attention": "refine", "reweight": 2.0, "blend": True}
EDITORS: Mapping[str, Mapping[str, JsonValue]] = {
    "profile": {},
    "null-text": {"inversion": "null_text"},
    "paper": PAPER,
    "paper-additions": {**PAPER, "additions": True},
}
THRESHOLDS: Mapping[str, Mapping[str, JsonValue]] = {
    "the profile's": {},
    "the paper's": {
        "thresholds": {
            "direction": {"default": 0.2},
            "likeness": {"default": 0.7},
            "match": {"default": 0.2},
            "caption": {"default": 0.0},
            "label": {"default": -1.0},  # the paper has no such check
        }
    },
}
Column = tuple[str, Funnel, Cost, FactorFigures]


def measure(editors: Sequence[str], scenes: Sequence[Scene], folder: Path) -> Iterator[Column]:
    """A column for each editor and set of thresholds. A repeated call goes on where it was stopped."""
    sources = folder / "sources"
    write_sources(scenes, sources)
    for editor in editors:
        with embedded_client(folder / editor, "tiny") as client:
            for name, thresholds in THRESHOLDS.items():
                title = f"{editor}, {name} thresholds"
                choice = MethodChoice(name="lance", parameters={**EDITORS[editor], **thresholds})
                job = run_job(client, JobSpec(task_description=TASK, methods=[choice], design="free"), sources, title)
                results = figures(client, job)
                edits = judge_counterfactuals(list(client.counterfactuals(job.id, {})), scenes, client.image)
                yield title, results.funnels[0], results.costs[0], factor_figures(edits)[0]


def table(columns: Sequence[Column]) -> str:
    """A row for each figure; refusals by check, those of words together."""
    checks = sorted({count.check for _, funnel, *_ in columns for count in funnel.refused_by_image})
    body = [
        ["edits of words", *(f"{funnel.proposed}" for _, funnel, *_ in columns)],
        ["… as asked, by the grammar", *(rate(judged.as_asked) for *_, judged in columns)],
        ["… refused by their words", *(f"{sum(c.count for c in f.refused_by_text)}" for _, f, *_ in columns)],
        ["rendered", *(f"{funnel.rendered}" for _, funnel, *_ in columns)],
        *([f"… refused by `{check}`", *(_refused(funnel, check) for _, funnel, *_ in columns)] for check in checks),
        ["accepted, of all edits", *(rate(funnel.accepted) for _, funnel, *_ in columns)],
        ["… label kept, by the oracles", *(rate(judged.kept) for *_, judged in columns)],
        ["… edit shown", *(rate(judged.shown) for *_, judged in columns)],
        ["evaluations per accepted", *(number(cost.evaluations_per_accepted) for _, _, cost, _ in columns)],
    ]
    return grid(["", *(title for title, *_ in columns)], body)


def _refused(funnel: Funnel, check: str) -> str:
    return f"{sum(count.count for count in funnel.refused_by_image if count.check == check)}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, default=12, help="source images, of every class in turn")
    parser.add_argument("--editors", nargs="+", choices=tuple(EDITORS), default=tuple(EDITORS))
    parser.add_argument("--out", type=Path, default=Path("runs/editor"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes it started end, too
    columns = []
    for column in measure(options.editors, scenes_of(options.sources), options.out):
        columns.append(column)
        print(table(columns), flush=True)


if __name__ == "__main__":
    main()
