"""Write the weights of one part, or measure it, in this process: `python -m research.full_services.part`.

The command starts it once for each, so that the peak of a part's memory is its own.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from research.full_services.meter import ServiceMeter, Work
from research.full_services.parts import PARTS

WRITTEN = "parameters.json"  # beside the weights, once they are complete


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("folder", type=Path, help="of the weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--measure", type=Path, help="measure, and write the figures here; else write the weights")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    part = PARTS[options.part]
    if options.measure is None:
        options.folder.mkdir(parents=True, exist_ok=True)
        started = time.process_time()
        counts = dict(part.write(options.folder))
        (options.folder / WRITTEN).write_text(json.dumps(counts))
        print(f"weights of {options.part}: {time.process_time() - started:.0f} CPU s, {counts}", flush=True)
        return
    out: Path = options.measure

    def write(work: list[Work], **more: list[str]) -> None:
        out.write_text(json.dumps({**more, "work": [piece.figures() for piece in work]}))

    meter = ServiceMeter(write)  # after each piece, so that they survive if the next one needs too much memory
    states = part.measure(meter, options.folder, options.threads)
    write(meter.work, states=states)


if __name__ == "__main__":
    main()
