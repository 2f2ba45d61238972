"""How early an order finds the faults of the answer key: source images before rendering, failures for review.

    python -m tinyworld.yardstick run                      # first: its jobs are what is replayed
    python -m benchmarks.priority [--directory DIR] [--key FILE] [--json FILE]

Replayed from the rows of finished jobs, so every order has the same images, edits and answers. A *fault* is a weakness
of the key (its interval lies beyond −5 points) that some counterfactual shows validly: the model is right on the null
arm and wrong on it, and both oracles still see the class. An order's figure is APFD: the mean share of the seconds
(before rendering) or of the accepted counterfactuals (for review) that is left when a fault is first shown. Before
rendering also: how many of the job's true findings its first quarter, half and three quarters of the seconds give. For
review also: how many faults the first 5, 10, 20 and 50 show. Random orders are means over 200 (findings: over 5).

Orders of single edits, which the house does not do (it works on an image as a whole), tell what they could gain.
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
from gateway.analysis.priority import Fault, apfd, turns
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
        found = list(replays(session, DirectoryStore(arguments.directory / "objects"), key))
    if not found:
        parser.error("no finished job there tests models of this key and shows a fault of theirs; see --key")
    figures = [measured(one) for one in found]
    for one in figures:
        print(printed(one), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


def measured(job: Replay) -> Figures:
    """All figures of one method of one job."""
    shown = {
        "method": job.method,
        "models": len(job.outcomes),
        "images": len(job.images),
        "edits": len(job.edits),
        "failures": sum(edit.failed for edit in job.edits),
        "weaknesses": len(job.weaknesses),
        "faults": len(job.faults),
    }
    return {
        **shown,
        "images before rendering": {name: _images(job, order) for name, order in image_orders(job.images).items()},
        "edits before rendering": {name: _edits(job, order) for name, order in edit_orders(job).items()},
        "for review": {name: _review(job, order) for name, order in review_orders(job).items()},
    }


def image_orders(images: Sequence[Image]) -> dict[str, list[Order]]:
    """Orders of the source images; the last is the house's."""
    places = range(len(images))
    turn = turns([image.label for image in images])
    return {
        "random": [RANDOM.permutation(len(images)).tolist() for _ in range(SHUFFLES)],
        "as they were sent": [list(places)],
        "class after class": [sorted(places, key=lambda place: images[place].label)],
        "least confident first": [sorted(places, key=lambda place: images[place].confidence)],
        "classes in turn": [sorted(places, key=turn.__getitem__)],
    }


def edit_orders(job: Replay) -> dict[str, list[Order]]:
    """Orders of single edits, with what is known before they are rendered."""
    edits, places = job.edits, range(len(job.edits))
    return {
        "random": [RANDOM.permutation(len(edits)).tolist() for _ in range(SHUFFLES)],
        "least confident first": [sorted(places, key=lambda place: job.images[edits[place].image].confidence)],
        "most new words first": [sorted(places, key=lambda place: -new_words(edits[place]))],
        "rarest cell first": [rarest_first(edits)],
    }


def review_orders(job: Replay) -> dict[str, list[Order]]:
    """Orders of the accepted counterfactuals; the last is the house's."""
    edits = job.edits
    accepted = [place for place, edit in enumerate(edits) if edit.accepted]
    listed = {name: place for place, name in enumerate(job.review)}

    def by(worth: Callable[[Edit], Any]) -> list[Order]:
        return [sorted(accepted, key=lambda place: worth(edits[place]))]

    shuffled = [RANDOM.permutation(accepted).tolist() for _ in range(SHUFFLES)]
    return {
        "random": shuffled,
        "random among failures": [sorted(order, key=lambda place: not edits[place].failed) for order in shuffled],
        "least confident first": by(lambda edit: edit.confidence),
        "failures, least confident first": by(lambda edit: (not edit.failed, edit.confidence)),
        "failures, greatest loss first": by(lambda edit: (not edit.failed, -edit.loss)),
        "what shows most that is new": by(lambda edit: listed.get(edit.id, len(listed))),
    }


def new_words(edit: Edit) -> float:
    """How far apart its captions are: share of their words that only one of them has."""
    old, new = (set(caption.lower().split()) for caption in edit.captions)
    return len(old ^ new) / max(1, len(old | new))


def rarest_first(edits: Sequence[Edit]) -> Order:
    """Always an edit of the cell of which fewest were taken."""
    taken: Counter[tuple[str, str]] = Counter()
    rounds = []
    for edit in edits:
        rounds.append(taken[edit.cell])
        taken[edit.cell] += 1
    return sorted(range(len(edits)), key=rounds.__getitem__)


def _images(job: Replay, orders: Sequence[Order]) -> Figures:
    edits_of: dict[int, list[Edit]] = {place: [] for place in range(len(job.images))}
    for edit in job.edits:
        edits_of[edit.image].append(edit)
    shows = [frozenset(fault for edit in edits_of[place] for fault in edit.shows) for place in edits_of]
    seconds = [image.seconds or 1.0 for image in job.images]
    costs = [[seconds[place] for place in order] for order in orders]
    figures = {"apfd": _apfd(job, orders, costs, shows)}
    few = list(zip(orders, costs, strict=True))[:MEASURED_SHUFFLES]
    for part in PARTS:
        found = []
        for order, cost in few:
            spent = np.cumsum(cost)
            taken = np.asarray(order)[spent <= part * spent[-1] + 1e-9]
            found.append(len(true_findings(job, taken)))
        figures[f"findings after {part:.0%}"] = float(np.mean(found))
    return figures


def _edits(job: Replay, orders: Sequence[Order]) -> Figures:
    siblings = Counter(edit.image for edit in job.edits)
    seconds = [(job.images[edit.image].seconds or 1.0) / siblings[edit.image] for edit in job.edits]
    costs = [[seconds[place] for place in order] for order in orders]
    return {"apfd": _apfd(job, orders, costs, [edit.shows for edit in job.edits])}


def _review(job: Replay, orders: Sequence[Order]) -> Figures:
    shows = [edit.shows for edit in job.edits]
    figures = {"apfd": _apfd(job, orders, [[1.0] * len(order) for order in orders], shows)}
    for first in FIRST:
        counts = [len({fault for place in order[:first] for fault in shows[place]}) for order in orders]
        figures[f"faults among {first}"] = float(np.mean(counts))
    return figures


def _apfd(
    job: Replay, orders: Sequence[Order], costs: Sequence[Sequence[float]], shows: Sequence[frozenset[Fault]]
) -> float:
    values = []
    for order, cost in zip(orders, costs, strict=True):
        first: dict[Fault, int] = {}
        for place, test in enumerate(order):
            for fault in shows[test]:
                first.setdefault(fault, place)
        values.append(apfd([first[fault] for fault in sorted(job.faults, key=repr)], cost))
    return float(np.mean(values))


def true_findings(job: Replay, images: Sequence[int]) -> set[Fault]:
    """The weaknesses of the key that the report of a job of these images would call findings."""
    found = set()
    for model, outcomes in job.outcomes.items():
        part = taken(outcomes, images)
        cells = {cell: differences(part, rows) for cell, rows in part.cells.items() if len(rows)}
        for effect in assess(cells, seed=0):
            fault = Fault(model, job.method, effect.cell)
            if effect.standing == "weakness" and fault in job.weaknesses:
                found.add(fault)
    return found


def taken(outcomes: Outcomes, images: Sequence[int]) -> Outcomes:
    """The outcomes of some source images."""
    keep = np.isin(outcomes.source, images)
    place = np.cumsum(keep) - 1

    def some(said: Predictions) -> Predictions:
        return Predictions(said.p_truth[keep], said.rank[keep], said.predicted[keep])

    return replace(
        outcomes,
        source=outcomes.source[keep],
        ordinal=outcomes.ordinal[keep],
        null_arm=outcomes.null_arm[keep],
        original=some(outcomes.original),
        null=some(outcomes.null),
        counterfactual=some(outcomes.counterfactual),
        cells={cell: place[rows[keep[rows]]] for cell, rows in outcomes.cells.items()},
    )


def printed(figures: Figures) -> str:
    """Tables to read."""
    said = {name: value for name, value in figures.items() if not isinstance(value, dict)}
    lines = [", ".join(f"{name} {value}" for name, value in said.items())]
    for title, orders in figures.items():
        if isinstance(orders, dict):
            names = list(next(iter(orders.values())))
            lines.append(f"\n{title:<34}" + "".join(f"{name:>20}" for name in names))
            for order, row in orders.items():
                lines.append(f"{order:<34}" + "".join(f"{row[name]:>20.3f}" for name in names))
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
