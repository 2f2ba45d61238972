"""Train a perturber: a LoRA adapter for any causal language model, on caption-edit pairs.

    python -m llm_service.train_perturber pairs.jsonl my-adapter --weights tinyworld/weights/language

After an interruption, the same command resumes from its last checkpoint (docs/how-to/perturber.md).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import torch

from llm_service.pairs import BadLine, Pair, read_lines
from llm_service.perturber_training import Recipe, train
from shared.profiles.weights import Dtype, Weights

_HELP = {
    "rank": "rank of the adapter's matrices",
    "alpha": "the adapter is scaled by alpha / rank",
    "dropout": "dropout on the adapter's input",
    "layers": "all-linear, or names of layers separated by commas, such as q_proj,v_proj",
    "epochs": "passes over the pairs",
    "batch": "pairs per optimiser step",
    "at_once": "pairs per micro-batch; fewer need less memory",
    "learning_rate": "peak learning rate, after a linear warm-up (5 % of the steps) and before a cosine decay",
    "held_out": "share of the pairs held out for evaluation",
    "longest": "most tokens of question and reply together",
    "seed": "of all randomness",
    "save_every": "steps between checkpoints",
}


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path, help="JSONL of pairs, as `collect_pairs` writes them")
    parser.add_argument("folder", type=Path, help="the adapter's folder")
    parser.add_argument("--weights", required=True, help="folder, or id on the Hugging Face Hub, of the language model")
    parser.add_argument("--revision", default="", help="commit on the Hub")
    parser.add_argument("--dtype", choices=get_args(Dtype), default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: torch's default")
    for field in fields(Recipe):
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=type(field.default), default=field.default, help=_HELP[field.name])
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    folder = Path(options.weights)
    try:
        weights = Weights(
            path=folder.resolve() if folder.is_dir() else None, hub=None if folder.is_dir() else options.weights,
            revision=options.revision, dtype=options.dtype, licence="", gigabytes=1,
        )  # fmt: skip
        recipe = Recipe(**{field.name: getattr(options, field.name) for field in fields(Recipe)})
        pairs = list(read_lines(options.pairs, Pair))
        result = train(weights, pairs, recipe, options.folder, device=options.device)
    except (BadLine, OSError, ValueError) as error:
        sys.exit(str(error))
    print(f"{options.folder}: {result.pairs} pairs, {result.steps} steps", end="")
    if result.loss_before is not None and result.loss_after is not None:
        print(f"; loss on {result.held_out} held-out pairs:", end="")
        print(f" {result.loss_before:.3f} before, {result.loss_after:.3f} after", end="")
    print()


if __name__ == "__main__":
    main()
