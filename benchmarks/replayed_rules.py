"""The rules of findings before and now, on the same effects of the yardstick's models, scored against the answer key.

`python -m benchmarks.replayed_rules`: *before* is a committed answer as it is; *now* tests "more than 5 points" on its
effects and numbers of images. Each cell gets pairs with this mean, as if errors on both arms were independent.

`--directory` takes the rows of the finished jobs of DILLEMA in an embedded system instead. Then *before*: only edits
are filtered by the checks; the hypothesis is "no effect", and findings are cut at 5 points afterwards. *Now*: both arms
of a pair pass the checks, and the hypothesis is "at most 5 points".
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from scipy.stats import false_discovery_control
from sqlalchemy.orm import Session

from benchmarks.replayed_designs import ANSWER, KEY, independent_pairs, latest_rows
from gateway.analysis.certainty import LEVEL, mean_interval, p_beyond
from gateway.analysis.effects import Differences, differences
from gateway.analysis.findings import assess
from gateway.analysis.limits import BEYOND, FALSE_DISCOVERY_RATE, LEAST_SOURCES
from gateway.database.sessions import open_engine, open_sessions, reading
from gateway.results.classification import ModelRows
from gateway.results.estimands import counted_cells
from shared.schemas.results import Cell
from shared.seeds import derive_seed
from tinyworld.yardstick.contrafact import found_cell
from tinyworld.yardstick.formats import Answer, AnswerKey, FoundCell
from tinyworld.yardstick.printing import printed
from tinyworld.yardstick.score import score

RESULTS = Path(__file__).parent / "results" / "replayed-rules.json"


def before(model: str, rows: ModelRows) -> Iterator[FoundCell]:
    """The cells of a model by the earlier rules."""
    outcomes = rows.outcomes
    cells = {cell: differences(outcomes, members, "edits") for cell, members in outcomes.cells.items()}
    cells = {cell: own for cell, own in cells.items() if own.counterfactuals}
    q_values = _q_values(model, cells)
    for cell, own in cells.items():
        effect = float(own.correct.mean())
        seed = derive_seed(model, *cell.model_dump().values())
        interval = mean_interval(own.correct, LEVEL, seed) if cell in q_values else None
        yield FoundCell(
            model=model,
            cell=cell,
            effect=effect,
            low=None if interval is None else interval.low,
            high=None if interval is None else interval.high,
            finding=q_values.get(cell, 1.0) <= FALSE_DISCOVERY_RATE and abs(effect) > BEYOND,
            images=len(own.correct),
        )


def _q_values(model: str, cells: Mapping[Cell, Differences]) -> dict[Cell, float]:
    """Adjusted p-values of "no effect", of the cells with enough source images."""
    tested = {cell: own.correct for cell, own in cells.items() if len(own.correct) >= LEAST_SOURCES}
    p_values = [p_beyond(own, 0.0, derive_seed(model, *cell.model_dump().values())) for cell, own in tested.items()]
    return dict(zip(tested, false_discovery_control(np.array(p_values)).tolist(), strict=True)) if tested else {}


def now(model: str, rows: ModelRows) -> Iterator[FoundCell]:
    """The cells of a model by today's rules."""
    outcomes = rows.outcomes
    cells = counted_cells(outcomes.cells, lambda members, estimand="pairs": differences(outcomes, members, estimand))
    yield from (found_cell(model, effect) for effect in assess(cells, derive_seed(model)))


def answers(session: Session) -> Iterator[Answer]:
    """The answers of both rules about all models with a finished job of DILLEMA in the free design."""
    rows = latest_rows(session)
    for name, rule in (("before", before), ("now", now)):
        cells = [cell for model, own in rows.items() for cell in rule(model, own)]
        yield Answer(
            method=f"dillema, rules {name}",
            models=list(rows),
            factors=["weather"],
            cells=[cell for cell in cells if cell.cell.factor == "weather"],
        )


def by_todays_rules(answer: Answer) -> Answer:
    """The answer with its effects and images tested by today's rules."""
    found: list[FoundCell] = []
    for model in answer.models:
        cells = {}
        for own in answer.cells:
            if own.model == model and own.effect is not None and own.images:
                pairs = independent_pairs(own.effect, own.images)
                cells[own.cell] = Differences(np.arange(own.images), pairs, np.full(own.images, np.nan), own.images)
        found += [found_cell(model, effect) for effect in assess(cells, derive_seed(model))]
    return answer.model_copy(update={"method": f"{answer.method}, rules now", "cells": found})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answer", type=Path, nargs="+", default=[ANSWER], help="of the yardstick")
    parser.add_argument("--directory", type=Path, help="of an embedded system, whose rows are taken")
    parser.add_argument("--key", type=Path, default=KEY, help="the answer key")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    key = AnswerKey.model_validate_json(arguments.key.read_text(encoding="utf-8"))
    scores = [score(key, answer) for answer in _replayed(arguments)]
    print("\n\n".join(map(printed, scores)))
    source = arguments.directory or " ".join(map(str, arguments.answer))
    option = f"--{'directory' if arguments.directory else 'answer'} {source}"
    record = {
        "command": f"python -m benchmarks.replayed_rules {option}",
        "scores": [each.model_dump() for each in scores],
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _replayed(arguments: argparse.Namespace) -> list[Answer]:
    if arguments.directory is None:
        committed = [Answer.model_validate_json(path.read_text(encoding="utf-8")) for path in arguments.answer]
        return [each for answer in committed for each in (answer, by_todays_rules(answer))]
    sessions = open_sessions(open_engine(f"sqlite:///{arguments.directory / 'contrafact.db'}"))
    with reading(sessions) as session:
        return list(answers(session))


if __name__ == "__main__":
    main()
