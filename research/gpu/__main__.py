"""What to run when a GPU is at hand for half an hour: `make gpu`, parts of at most nine minutes each.

    python -m research.gpu PART... [--device cuda] [--size full] [--minutes 9] [--out DIR]

agreement   the shipped small models: pixels and embeddings on the device against the CPU (needs tinyworld/weights)
decoders    autoencoders in bfloat16 and float16: time, and colours against float32 (needs tinyworld/weights)
generators  Stable Diffusion 1.5 and XL on random weights, by the service and by diffusers' pipeline, with a trace
editors     FLUX.2 klein on random weights, by how it is offloaded

Each writes DIR/PART.json after every row, so that what is there when the time is up counts. `--device cpu --size tiny`
tries the same code here. Seconds are synchronised; a time counts only with the card that the file names.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from research.gpu import agreement, decoders, editors, generators
from research.gpu.rows import OutOfTime, Run

PARTS: Mapping[str, Callable[[Run], None]] = {
    "agreement": agreement.measure,
    "decoders": decoders.measure,
    "generators": generators.measure,
    "editors": editors.measure,
}


def main() -> None:
    """Run the parts one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--minutes", type=float, default=9.0, help="for each part; no row begins after them")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="of the figures")
    parser.add_argument("--weights", type=Path, help="of the random weights, up to 24 GB; default: OUT/weights")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch finds no GPU; use `--device cpu --size tiny` to try the parts without one")
    for part in options.parts:
        weights: Path = options.weights or options.out / "weights"
        ends = time.monotonic() + 60 * options.minutes
        run = Run(options.device, options.size == "tiny", options.out, weights, ends, part)
        try:
            PARTS[part](run)
            run.write(complete=True)
        except OutOfTime:
            run.write(complete=False)
            print(f"{part}: the {options.minutes:g} minutes are up", flush=True)


if __name__ == "__main__":
    main()
