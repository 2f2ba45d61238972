"""Compare how early different orders find the known faults: source images before rendering, failures for review.

    python -m tinyworld.yardstick run                      # first: its jobs are replayed
    python -m benchmarks.priority [--directory DIR] [--key FILE] [--json FILE]

The rows of finished jobs are replayed, so every order has the same images, edits and predictions. A *fault* is a
weakness of the key (its interval lies beyond −5 points) that some counterfactual shows validly: the model is right on
the null arm and wrong on the counterfactual, and both oracles still see the class. The figure of an order is APFD: the
mean share of the seconds (before rendering) or of the accepted counterfactuals (for review) that remains when a fault
is first shown. Before rendering, the true findings after a quarter, half and three quarters of the seconds are also
counted; for review, the faults that the first 5, 10, 20 and 50 show. Figures of random orders are means over 200 orders
(findings: over 5).

Orders of single edits, which Contrafact does not use (it processes an image as a whole), show the possible gain.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.replayed import Edit, Image, Replay, replays
from gateway.analysis.effects import Outcomes, Predictions, differences
from gateway.analysis.findings import assess
from gateway.analysis.priority import Fault, turns
from gateway.database.sessions import open_engine, open_sessions, reading
from shared.storage import DirectoryStore
from tinyworld.yardstick.classifiers import YARDSTICK
from tinyworld.yardstick.formats import AnswerKey

RANDOM = np.random.default_rng(0)
SHUFFLES, MEASURED_SHUFFLES = 200, 5
PARTS = (0.25, 0.5, 0.75, 1.0)
FIRST = (5, 10, 20, 50)
Order = Sequence[int]
Figures = dict[str, Any]


def main() -> None:
    """Replay every job of a directory under every order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=YARDSTICK / "contrafact", help="of the embedded system")
    parser.add_argument("--key", type=Path, default=Path("tinyworld/yardstick/key.json"), help="the answer key")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    key = AnswerKey.model_validate_json(arguments.key.read_text(encoding="utf-8"))
    sessions = open_sessions(open_engine(f"sqlite:///{arguments.directory / 'contrafact.db'}"))
    with reading(sessions) as session:
        replayed = list(replays(session, DirectoryStore(arguments.directory / "objects"), key))
    if not replayed:
        parser.error("no finished job there tests models of this key and shows a fault of theirs; see --key")
    figures = [measure(figures_of_job) for figures_of_job in replayed]
    for figures_of_job in figures:
        print(print_table(figures_of_job), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


def measure(job: Replay) -> Figures:
    """All figures of one method of one job."""
    counts = {
        "method": job.method,
        "models": len(job.outcomes),
        "images": len(job.images),
        "edits": len(job.edits),
        "failures": sum(edit.failed for edit in job.edits),
        "weaknesses": len(job.weaknesses),
        "faults": len(job.faults),
    }
    return {
        **counts,
        "images before rendering": {name: _images(job, order) for name, order in image_orders(job.images).items()},
        "edits before rendering": {name: _edits(job, order) for name, order in edit_orders(job).items()},
        "for review": {name: _review(job, order) for name, order in review_orders(job).items()},
    }


def image_orders(images: Sequence[Image]) -> dict[str, list[Order]]:
    """Orders of the source images; the last is Contrafact's own."""
    indices = range(len(images))
    turn = turns([image.label for image in images])
    return {
        "random": [RANDOM.permutation(len(images)).tolist() for _ in range(SHUFFLES)],
        "as they were sent": [list(indices)],
        "class after class": [sorted(indices, key=lambda index: images[index].label)],
        "least confident first": [sorted(indices, key=lambda index: images[index].confidence)],
        "classes in turn": [sorted(indices, key=turn.__getitem__)],
    }


def edit_orders(job: Replay) -> dict[str, list[Order]]:
    """Orders of single edits, by information from before rendering."""
    edits, indices = job.edits, range(len(job.edits))
    return {
        "random": [RANDOM.permutation(len(edits)).tolist() for _ in range(SHUFFLES)],
        "least confident first": [sorted(indices, key=lambda index: job.images[edits[index].image].confidence)],
        "most new words first": [sorted(indices, key=lambda index: -new_words(edits[index]))],
        "rarest cell first": [rarest_first(edits)],
    }


def review_orders(job: Replay) -> dict[str, list[Order]]:
    """Orders of the accepted counterfactuals; the last is Contrafact's own."""
    edits = job.edits
    accepted = [index for index, edit in enumerate(edits) if edit.accepted]
    ranks = {name: index for index, name in enumerate(job.review)}

    def by(key: Callable[[Edit], Any]) -> list[Order]:
        return [sorted(accepted, key=lambda index: key(edits[index]))]

    shuffled = [RANDOM.permutation(accepted).tolist() for _ in range(SHUFFLES)]
    return {
        "random": shuffled,
        "random among failures": [sorted(order, key=lambda index: not edits[index].failed) for order in shuffled],
        "least confident first": by(lambda edit: edit.confidence),
        "failures, least confident first": by(lambda edit: (not edit.failed, edit.confidence)),
        "failures, greatest loss first": by(lambda edit: (not edit.failed, -edit.loss)),
        "what shows most that is new": by(lambda edit: ranks.get(edit.id, len(ranks))),
    }


def new_words(edit: Edit) -> float:
    """The distance of an edit's captions: the share of their words that only one caption has."""
    old, new = (set(caption.lower().split()) for caption in edit.captions)
    return len(old ^ new) / max(1, len(old | new))


def rarest_first(edits: Sequence[Edit]) -> Order:
    """An order that always takes an edit from the cell with the fewest edits so far."""
    tests: Counter[tuple[str, str]] = Counter()
    rounds = []
    for edit in edits:
        rounds.append(tests[edit.cell])
        tests[edit.cell] += 1
    return sorted(range(len(edits)), key=rounds.__getitem__)


def _images(job: Replay, orders: Sequence[Order]) -> Figures:
    edits_of: dict[int, list[Edit]] = {index: [] for index in range(len(job.images))}
    for edit in job.edits:
        edits_of[edit.image].append(edit)
    shows = [frozenset(fault for edit in edits_of[index] for fault in edit.shows) for index in edits_of]
    seconds = [image.seconds or 1.0 for image in job.images]
    costs = [[seconds[index] for index in order] for order in orders]
    figures = {"apfd": _apfd(job, orders, costs, shows)}
    pairs = list(zip(orders, costs, strict=True))[:MEASURED_SHUFFLES]
    for part in PARTS:
        counts = []
        for order, cost in pairs:
            spent = np.cumsum(cost)
            chosen_tests = np.asarray(order)[spent <= part * spent[-1] + 1e-9]
            counts.append(len(true_findings(job, chosen_tests)))
        figures[f"findings after {part:.0%}"] = float(np.mean(counts))
    return figures


def _edits(job: Replay, orders: Sequence[Order]) -> Figures:
    siblings = Counter(edit.image for edit in job.edits)
    seconds = [(job.images[edit.image].seconds or 1.0) / siblings[edit.image] for edit in job.edits]
    costs = [[seconds[index] for index in order] for order in orders]
    return {"apfd": _apfd(job, orders, costs, [edit.shows for edit in job.edits])}


def _review(job: Replay, orders: Sequence[Order]) -> Figures:
    shows = [edit.shows for edit in job.edits]
    figures = {"apfd": _apfd(job, orders, [[1.0] * len(order) for order in orders], shows)}
    for first in FIRST:
        counts = [len({fault for index in order[:first] for fault in shows[index]}) for order in orders]
        figures[f"faults among {first}"] = float(np.mean(counts))
    return figures


def apfd(first_tests: Sequence[int], costs: Sequence[float]) -> float:
    """How early an order detects the faults: the mean share of the cost that remains at detection, 0 … 1.

    `first_tests`: for each fault the position, from 0, of the first test that shows it. `costs`: the cost of each test,
    in order. With equal costs this is the average percentage of faults detected, 1 − Σ TF / (n m) + 1 / (2 n)
    (Rothermel et al. 2001), otherwise its variant with costs (Elbaum et al. 2001). Raises ValueError without faults or
    costs.
    """
    if not len(first_tests) or not len(costs):
        raise ValueError("APFD needs at least one fault that the order detects, and a cost for each test")
    spent = np.cumsum(costs)
    places = np.asarray(first_tests)
    return float(np.mean(1 - (spent[places] - np.asarray(costs)[places] / 2) / spent[-1]))


def _apfd(
    job: Replay, orders: Sequence[Order], costs: Sequence[Sequence[float]], shows: Sequence[frozenset[Fault]]
) -> float:
    values = []
    for order, cost in zip(orders, costs, strict=True):
        first: dict[Fault, int] = {}
        for index, test in enumerate(order):
            for fault in shows[test]:
                first.setdefault(fault, index)
        values.append(apfd([first[fault] for fault in sorted(job.faults, key=repr)], cost))
    return float(np.mean(values))


def true_findings(job: Replay, images: Sequence[int]) -> set[Fault]:
    """The weaknesses of the key that a report on these images alone would call findings."""
    findings = set()
    for model, outcomes in job.outcomes.items():
        subset = outcomes_of(outcomes, images)
        cells = {cell: differences(subset, rows) for cell, rows in subset.cells.items() if len(rows)}
        for effect in assess(cells, seed=0):
            fault = Fault(model, job.method, effect.cell)
            if effect.standing == "weakness" and fault in job.weaknesses:
                findings.add(fault)
    return findings


def outcomes_of(outcomes: Outcomes, images: Sequence[int]) -> Outcomes:
    """The outcomes of some source images."""
    keep = np.isin(outcomes.source, images)
    positions = np.cumsum(keep) - 1

    def predictions_of(predictions: Predictions) -> Predictions:
        return Predictions(predictions.p_truth[keep], predictions.rank[keep], predictions.predicted[keep])

    return replace(
        outcomes,
        source=outcomes.source[keep],
        ordinal=outcomes.ordinal[keep],
        null_arm=outcomes.null_arm[keep],
        original=predictions_of(outcomes.original),
        null=predictions_of(outcomes.null),
        counterfactual=predictions_of(outcomes.counterfactual),
        cells={cell: positions[rows[keep[rows]]] for cell, rows in outcomes.cells.items()},
    )


def print_table(figures: Figures) -> str:
    """Tables to read."""
    scalars = {name: value for name, value in figures.items() if not isinstance(value, dict)}
    lines = [", ".join(f"{name} {value}" for name, value in scalars.items())]
    for title, orders in figures.items():
        if isinstance(orders, dict):
            names = list(next(iter(orders.values())))
            lines.append(f"\n{title:<34}" + "".join(f"{name:>20}" for name in names))
            for order, row in orders.items():
                lines.append(f"{order:<34}" + "".join(f"{row[name]:>20.3f}" for name in names))
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
