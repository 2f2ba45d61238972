"""Colours of segmentation maps that ControlNets were trained with: index of a label → red, green, blue.

`ade20k` holds the colours of the 150 classes of ADE20K (arXiv 1608.05442) in their usual order, which the public
segmenters for it and `lllyasviel/control_v11p_sd15_seg` use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from shared.images import Pixels

# Six hexadecimal digits per class.
_ADE20K = """
787878 b47878 06e6e6 503232 04c803 787850 8c8c8c cc05ff e6e6e6 04fa07 e005ff ebff07 96053d 787846 08ff33
ff0652 8fff8c ccff04 ff3307 cc4603 0066c8 3de6fa ff0633 0b66ff ff0747 ff09e0 0907e6 dcdcdc ff095c 7009ff
08ffd6 07ffe0 ffb806 0aff47 ff290a 07ffff e0ff08 6608ff ff3d06 ffc207 ff7a08 00ff14 ff0829 ff0599 0633ff
eb0cff a09614 00a3ff 8c8c8c fa0a0f 14ff00 1fff00 ff1f00 ffe000 99ff00 0000ff ff4700 00ebff 00adff 1f00ff
0bc8c8 ff5200 00fff5 003dff 00ff70 00ff85 ff0000 ffa300 ff6600 c2ff00 008fff 33ff00 0052ff 00ff29 00ffad
0a00ff adff00 00ff99 ff5c00 ff00ff ff00f5 ff0066 ffad00 ff0014 ffb8b8 001fff 00ff3d 0047ff ff00cc 00ffc2
00ff52 000aff 0070ff 3300ff 00c2ff 007aff 00ffa3 ff9900 00ff0a ff7000 8fff00 5200ff a3ff00 ffeb00 08b8aa
8500ff 00ff5c b800ff ff001f 00b8ff 00d6ff ff0070 5cff00 00e0ff 70e0ff 46b8a0 a300ff 9900ff 47ff00 ff00a3
ffcc00 ff008f 00ffeb 85ff00 ff00eb f500ff ff007a fff500 0abed4 d6ff00 00ccff 1400ff ffff00 0099ff 0029ff
00ffcc 2900ff 29ff00 ad00ff 00f5ff 4700ff 7a00ff 00ffb8 005cff b8ff00 0085ff ffd600 19c2c2 66ff00 5c00ff
"""


def palette(name_or_colours: Literal["ade20k"] | Mapping[str, Sequence[int]], labels: Sequence[str]) -> Pixels:
    """Colours (labels × 3) of a segmenter's labels in their order; a label missing from a mapping is black.

    Raises ValueError for a label that the segmenter lacks, or if the number of labels does not match the palette.
    """
    if name_or_colours == "ade20k":
        colours = np.array([list(bytes.fromhex(code)) for code in _ADE20K.split()], np.uint8)
        if len(colours) != len(labels):
            raise ValueError(f"palette ade20k is for {len(colours)} labels, and the segmenter has {len(labels)}")
        return colours
    if unknown := sorted(set(name_or_colours) - set(labels)):
        raise ValueError(f"the palette colours labels that the segmenter lacks: {unknown}; it has {sorted(labels)}")
    return np.array([name_or_colours.get(label, (0, 0, 0)) for label in labels], np.uint8)
