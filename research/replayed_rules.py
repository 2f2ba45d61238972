"""The rules of findings before and now, on the same effects of the yardstick's models, scored against the answer key.

`python -m research.replayed_rules`: *before* is a committed answer as it is; *now* tests "more than 5 points" on its
effects and numbers of images. Each cell gets pairs with this mean, as if errors on both arms were independent. `--out`
writes the scores to a file.

`--directory` takes the rows of the finished jobs of DILLEMA in an embedded system instead. Then *before*: only edits
are filtered by the checks; the hypothesis is "no effect", and findings are cut at 5 points afterwards. *Both arms
filtered*: the same test of the pairs in which both arms pass the checks. *Now*: on these pairs the hypothesis is "at
most 5 points".
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from scipy.stats import false_discovery_control
from sqlalchemy.orm import Session

from gateway.analysis.certainty import LEVEL, mean_interval, p_beyond
from gateway.analysis.effects import Differences, Estimand, differences
from gateway.analysis.findings import assess
from gateway.analysis.limits import BEYOND, FALSE_DISCOVERY_RATE, LEAST_SOURCES
from gateway.database.sessions import open_engine, open_sessions, reading
from gateway.results.estimands import counted_cells
from gateway.results.rows import ModelRows
from research.replayed_designs import ANSWER, KEY, independent_pairs, latest_rows
from research.system.packed import read_text
from research.yardstick.contrafact import found_cell
from research.yardstick.formats import Answer, AnswerKey, FoundCell
from research.yardstick.printing import format_answer
from research.yardstick.score import score
from shared.schemas.effects import Cell
from shared.seeds import derive_seed


def earlier_findings(model: str, rows: ModelRows, estimand: Estimand) -> Iterator[FoundCell]:
    """The cells of a model by the earlier test, on the counterfactuals that the estimand takes."""
    cells = {cell: differences(rows.scores, members, estimand) for cell, members in rows.scores.cells.items()}
    cells = {cell: pairs for cell, pairs in cells.items() if pairs.counterfactuals}
    q_values = _q_values(model, cells)
    for cell, pairs in cells.items():
        effect = float(pairs.correct.mean())
        seed = derive_seed(model, *cell.model_dump().values())
        interval = mean_interval(pairs.correct, LEVEL, seed) if cell in q_values else None
        yield FoundCell(
            model=model,
            cell=cell,
            effect=effect,
            low=None if interval is None else interval.low,
            high=None if interval is None else interval.high,
            finding=q_values.get(cell, 1.0) <= FALSE_DISCOVERY_RATE and abs(effect) > BEYOND,
            images=len(pairs.correct),
        )


def _q_values(model: str, cells: Mapping[Cell, Differences]) -> dict[Cell, float]:
    """Adjusted p-values of "no effect", of the cells with enough source images."""
    tested = {cell: pairs.correct for cell, pairs in cells.items() if len(pairs.correct) >= LEAST_SOURCES}
    p_values = [
        p_beyond(correct, 0.0, derive_seed(model, *cell.model_dump().values())) for cell, correct in tested.items()
    ]
    return dict(zip(tested, false_discovery_control(np.array(p_values)).tolist(), strict=True)) if tested else {}


def todays_findings(model: str, rows: ModelRows) -> Iterator[FoundCell]:
    """The cells of a model by today's rules."""
    cells = counted_cells(rows.scores.cells, partial(differences, rows.scores))
    yield from (found_cell(model, effect) for effect in assess(cells, derive_seed(model)))


RULES: Mapping[str, Callable[[str, ModelRows], Iterator[FoundCell]]] = {
    "before": partial(earlier_findings, estimand="edits"),
    "both arms filtered": partial(earlier_findings, estimand="pairs"),
    "now": todays_findings,
}


def answers(session: Session, images: int | None = None) -> Iterator[Answer]:
    """The answer of each rule about all models with a finished job of DILLEMA in the free design.

    `images`: only jobs of so many source images.
    """
    rows = latest_rows(session, images)
    for name, rule in RULES.items():
        cells = [cell for model, cells_of_model in rows.items() for cell in rule(model, cells_of_model)]
        yield Answer(
            method=f"dillema, rules {name}",
            models=list(rows),
            factors=["weather"],
            cells=[cell for cell in cells if cell.cell.factor == "weather"],
        )


def by_todays_rules(answer: Answer) -> Answer:
    """The answer with its effects and images tested by today's rules."""
    findings: list[FoundCell] = []
    for model in answer.models:
        cells = {}
        for cell in answer.cells:
            if cell.model == model and cell.effect is not None and cell.images:
                pairs = independent_pairs(cell.effect, cell.images)
                cells[cell.cell] = Differences(np.arange(cell.images), pairs, np.full(cell.images, np.nan), cell.images)
        findings += [found_cell(model, effect) for effect in assess(cells, derive_seed(model))]
    return answer.model_copy(update={"method": f"{answer.method}, rules now", "cells": findings})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answer", type=Path, nargs="+", default=[ANSWER], help="of the yardstick")
    parser.add_argument("--directory", type=Path, help="of an embedded system, whose rows are taken")
    parser.add_argument("--images", type=int, help="source images of the jobs in the directory; default: any number")
    parser.add_argument("--key", type=Path, default=KEY, help="the answer key")
    parser.add_argument("--out", type=Path, help="a file for the scores; default: none is written")
    arguments = parser.parse_args()
    key = AnswerKey.model_validate_json(read_text(arguments.key))
    scores = [score(key, answer) for answer in _replay(arguments)]
    print("\n\n".join(map(format_answer, scores)))
    record = {
        "command": f"python -m research.replayed_rules {_options(arguments)}",
        "scores": [score.model_dump() for score in scores],
    }
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _replay(arguments: argparse.Namespace) -> list[Answer]:
    if arguments.directory is None:
        committed = [Answer.model_validate_json(read_text(path)) for path in arguments.answer]
        return [either for answer in committed for either in (answer, by_todays_rules(answer))]
    sessions = open_sessions(open_engine(f"sqlite:///{arguments.directory / 'contrafact.db'}"))
    with reading(sessions) as session:
        return list(answers(session, arguments.images))


def _options(arguments: argparse.Namespace) -> str:
    """The options that name the source of the figures."""
    if arguments.directory is None:
        return f"--answer {' '.join(map(str, arguments.answer))}"
    images = "" if arguments.images is None else f" --images {arguments.images}"
    return f"--directory {arguments.directory}{images} --key {arguments.key}"


if __name__ == "__main__":
    main()
