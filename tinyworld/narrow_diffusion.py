"""Start a slimmer generator from a wider one: `python -m tinyworld.narrow_diffusion WIDE NARROW`.

`WIDE` and `NARROW` name runs (`runs/WIDE/checkpoint.pt` is read, `runs/NARROW/start.pt` written). The widest
level of the UNet and of the ControlNet loses one channel in six, the last of each, so that groups of normalisation
and heads of attention lose one in six as well and stay the groups and heads that they were. What this costs in
loss, `train_diffusion --run NARROW` wins back in minutes; from scratch it takes as long as the wide one did.
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import Tensor

from tinyworld.train_diffusion import Generator
from tinyworld.training_loop import RUNS

WIDE = 192  # channels of the wide generator's lowest level


def kept(wide: int, narrow: int) -> Tensor:
    """Which of `wide` positions stay: all outside the widest level, five of six inside it.

    >>> kept(12, 10).tolist()
    [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    """
    positions = torch.arange(wide)
    inside = 6 * (wide - narrow)  # a joint of two levels has the widest first
    return positions[(positions >= inside) | (positions % 6 < 5)]


def narrowed(wide: dict[str, Tensor], narrow: dict[str, Tensor]) -> dict[str, Tensor]:
    """The wide network's tensors, cut to the shapes of the narrow one's."""
    cut = {}
    for name, target in narrow.items():
        tensor = wide[name]
        for axis, (old, new) in enumerate(zip(tensor.shape, target.shape, strict=True)):
            tensor = tensor.index_select(axis, kept(old, new))
        cut[name] = tensor.contiguous()
    return cut


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wide")
    parser.add_argument("narrow")
    args = parser.parse_args()
    state = torch.load(RUNS / args.wide / "checkpoint.pt", weights_only=True)
    wide = state["average"]
    generator = Generator(wide["unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight"].shape[1])
    (RUNS / args.narrow).mkdir(parents=True, exist_ok=True)
    torch.save(narrowed(wide, generator.state_dict()), RUNS / args.narrow / "start.pt")
    steps, seconds, loss = state["at"]
    origin = {"run": args.wide, "widest": WIDE, "steps": steps, "seconds": round(seconds, 1), "loss": round(loss, 4)}
    (RUNS / args.narrow / "start.json").write_text(json.dumps(origin) + "\n")


if __name__ == "__main__":
    main()
