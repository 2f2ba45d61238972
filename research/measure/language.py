"""Measure how often the tiny language model answers correctly on scenes that it was not trained on.

`python -m research.measure.language --write` judges the shipped weights and writes the figures into their card.
"""

from __future__ import annotations

import argparse
import json

import torch

from research.judges.language import ABOUT, TITLE, WORDINGS, evaluate, success_rates
from research.system.folders import WEIGHTS
from research.train.model_card import write_card

FOLDER = WEIGHTS / "language"


def main() -> None:
    """Judge the shipped weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200, help="of each kind of question; 0 leaves them out")
    parser.add_argument("--captions", type=int, default=500, help="for each of LANCE's factors; 0 leaves them out")
    parser.add_argument("--wordings", nargs="+", choices=list(WORDINGS), default=["sentences", "phrases too"])
    parser.add_argument("--write", action="store_true", help="put the figures into the card of the weights")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, object] = {}
    if arguments.examples:
        results |= evaluate(FOLDER, examples=arguments.examples)
        print(*(f"{key}: {value}" for key, value in results.items()), sep="\n", flush=True)
    if arguments.captions:
        results |= success_rates(FOLDER, arguments.captions, arguments.wordings)
    if arguments.write:
        record = json.loads((FOLDER / "training.json").read_text())
        command, before = record.pop("command"), record.pop("results")
        write_card(FOLDER, title=TITLE, text=ABOUT, command=command, results=before | results, record=record)


if __name__ == "__main__":
    main()
