"""Compare the cost of a counterfactual by our loops and by the papers': network evaluations, operations, seconds.

    python -m research.cost_of_methods [--images 3] [--edits 2] [--json FILE]
    python -m research.cost_of_methods --random --device cuda       # Stable Diffusion's full size, random weights

All arms have the same weights, images, captions and edits, in one run. Captioner and language model are left out,
because all arms would call them alike. Null arms are left out, because the papers do not render them. Arms:

    lance, papers' way      fp32, 50 steps, null-text with trainable weights, one edit and one of 5 fractions at a time
                            (`cost_reference.py`: diffusers has no pipeline for it)
    lance, their settings   ours at their steps and fractions: `direct`, frozen weights, all of a source in batches
    lance                   ours at the profile's settings
    dillema, diffusers, …   `StableDiffusionControlNetPipeline` in fp32, batch 1, control image, mask and prompts for
                            each sibling again, under three settings: the published code's (UniPC, 5 steps, guidance
                            7.5; the paper gives none), those of profile `paper` (20 steps), and the best settings for
                            the tiny weights, which give the same images as ours
    dillema                 ours at the profile's settings

An edit is *accepted* if one of its images passes the profile's checks (the same for all arms). It is *good* if both
oracles see the object kept and in place, and the edit shown. With random weights nothing is judged. Tinyworld renders
the pictures (split `final-test`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.cost_arms import arms_of
from benchmarks.cost_report import Row, measure, ratios, table
from benchmarks.cost_sources import sources
from benchmarks.cost_weights import Shape, write_random
from research.cost_judge import Oracles
from shared.profiles.profile import load_profile


def main() -> None:
    """Read the command line, measure every arm on every source, print the table and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=3, help="source images")
    parser.add_argument("--edits", type=int, default=2, help="edits of each")
    parser.add_argument("--profile", default="tiny", help="weights, parameters and thresholds")
    parser.add_argument("--random", action="store_true", help="random weights of Stable Diffusion 1.x's size instead")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--methods", nargs="+", choices=("lance", "dillema"), default=["lance", "dillema"])
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    profile, chosen = load_profile(options.profile), sources(options.images, options.edits)
    with tempfile.TemporaryDirectory() as folder:
        if options.random:
            captions = [text for source in chosen for text in (source.caption, *source.prompts)]
            profile = profile.model_copy(update={"diffusion": write_random(Path(folder), Shape(), captions)})
        arms = arms_of(profile, options.device, judge=None if options.random else Oracles)
        rows: list[Row] = []
        for completed, rows in enumerate(measure(arms, chosen, options.methods), start=1):
            if options.json:  # after each source, so that an interrupted run has figures
                command = f"python -m research.cost_of_methods {' '.join(sys.argv[1:])}"
                figures = {"command": command, "images": completed, "edits_per_image": options.edits}
                figures |= {"device": options.device, "threads": options.threads}
                figures |= {"weights": [weights.model_dump() for weights in arms.weights]}
                figures |= {"rows": [arm_row._asdict() for arm_row in rows], "ratios": ratios(rows)}
                options.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(table(rows), *ratios(rows), sep="\n")


if __name__ == "__main__":
    main()
