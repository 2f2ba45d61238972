"""Set the thresholds of the image checks for the shipped scorer: `python -m research.calibrate.checks --write`.

It uses scenes of the split "calibration", which no training and no report uses, and images by the shipped generator
whose fault is known by construction (`broken.py`): a good counterfactual, one with another class, without the object,
without the edit, and with a second factor changed, in equal numbers. The printed errors are measured by two-fold
cross-validation over scenes; `--write` puts the thresholds set on all scenes (`thresholds.py`) into the shipped
profile `tiny`.
"""

from __future__ import annotations

import argparse

import cv2
import torch

from gateway.jobs.choices import method_defaults
from gateway.methods.dillema import DillemaParameters
from research.calibrate.broken import trials
from research.calibrate.thresholds import held_out_scores, table, thresholds, toml, with_thresholds
from research.judges.trials import Studio
from shared.profiles.profile import SHIPPED, load_profile
from tinyworld.domain.names import add_domain


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_domain(parser)
    parser.add_argument("--edits", type=int, default=120, help="edits, each drawn well and broken in four ways")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="put the thresholds into shared/profiles/tiny.toml")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    profile = load_profile("tiny")
    studio = Studio(
        profile, DillemaParameters.model_validate({**method_defaults("dillema", profile), "thresholds": {}})
    )
    scored, unlike = trials(studio, arguments.edits, arguments.batch)
    print(f"{len(scored)} trials; left out, as the oracles do not see what was asked for:", dict(unlike))
    judged = held_out_scores(scored)
    print(*table(judged), sep="\n")
    tables = toml(thresholds(scored))
    print("\n" + tables)
    if arguments.write:
        path = SHIPPED / "tiny.toml"
        path.write_text(with_thresholds(path.read_text(), tables))
