"""Initialise a narrower generator from a published one.

    python -m research.train.narrow_diffusion tinyworld/weights/diffusion diffusion-roads --widths 64 96 128

The first argument is the folder of a published generator, the second a run (`runs/diffusion-roads/start.pt` is
written). Each narrowed level of UNet and ControlNets keeps channels at equal distances, so that normalisation groups
and attention heads are preserved at a smaller size. Training recovers the loss in minutes
(`research.train.diffusion --run diffusion-roads`); from scratch it takes as long as the wide one did. A ControlNet
that the wide generator lacks starts from the weights of its canny ControlNet.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import product
from math import gcd
from pathlib import Path

import torch
from diffusers import UNet2DConditionModel
from torch import Tensor

from research.datasets.generator_pictures import CONTROL_KINDS
from research.system.folders import RUNS
from research.train.diffusion import WIDTHS, Generator

Levels = Sequence[tuple[int, int]]  # channels of each level, before and after
_MOST = 10  # copies of one level's channels along an axis: eight in a gated feed-forward, two where levels are joined


def channels_kept(wide: int, narrow: int, levels: Levels) -> Tensor:
    """Which of `wide` positions of an axis stay, `narrow` of them.

    An axis holds the channels of one level once or several times, or of two where a skip connection joins them, the
    wider first; one that is not narrower stays whole.

    >>> kept(12, 8, [(3, 2), (4, 4)]).tolist()
    [0, 1, 3, 4, 6, 7, 9, 10]
    >>> kept(7, 6, [(3, 2), (4, 4)]).tolist()
    [0, 1, 2, 3, 4, 5]
    """
    if wide == narrow:
        return torch.arange(wide)
    order = sorted(dict.fromkeys(levels), reverse=True)
    counts_by_rule = [
        counts
        for counts in product(range(_MOST + 1), repeat=len(order))
        if sum(count * old for count, (old, _) in zip(counts, order, strict=True)) == wide
        and sum(count * new for count, (_, new) in zip(counts, order, strict=True)) == narrow
    ]
    if not counts_by_rule:
        raise ValueError(f"no way from {wide} to {narrow} channels with the levels {list(order)}")
    counts = min(counts_by_rule, key=lambda counts_of_rule: sum(count > 0 for count in counts_of_rule))
    positions: list[int] = []
    start = 0
    for count, (old, new) in zip(counts, order, strict=True):
        positions += [start + place for place in range(count * old) if _stays(place, old, new)]
        start += count * old
    return torch.tensor(positions)


def _stays(place: int, old: int, new: int) -> bool:
    """A fixed share of each block: 4 of 5 from 160 to 128."""
    step = gcd(old, new)
    return place % (old // step) < new // step


def narrow_tensors(wide: Mapping[str, Tensor], narrow: Mapping[str, Tensor], levels: Levels) -> dict[str, Tensor]:
    """The wide network's tensors, cut to the shapes of the narrow one's."""
    cut = {}
    for name, target in narrow.items():
        tensor = wide[name] if name in wide else wide[name.replace(".segmentation.", ".canny.")]
        for axis, (old, new) in enumerate(zip(tensor.shape, target.shape, strict=True)):
            tensor = tensor.index_select(axis, channels_kept(old, new, levels))
        cut[name] = tensor.contiguous()
    return cut


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wide", type=Path, help="folder of a published generator")
    parser.add_argument("run", help="name of the run that shall begin with it")
    parser.add_argument("--widths", nargs=3, type=int, default=WIDTHS, help="channels of each level")
    parser.add_argument("--controls", nargs="+", choices=CONTROL_KINDS, default=["canny"])
    args = parser.parse_args()
    config = UNet2DConditionModel.load_config(args.wide / "unet")
    text_width, before = config["cross_attention_dim"], tuple(config["block_out_channels"])
    wide = Generator(text_width, before)
    wide.take_published(args.wide)
    slim = Generator(text_width, tuple(args.widths), args.controls)
    levels = list(zip(before, args.widths, strict=True))
    folder = RUNS / args.run
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(narrow_tensors(wide.state_dict(), slim.state_dict(), levels), folder / "start.pt")
    (folder / "start.json").write_text(json.dumps({"from": str(args.wide), "widths": before}) + "\n")


if __name__ == "__main__":
    main()
