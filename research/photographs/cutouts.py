"""The photographic cut-outs: their class from the package's folders, and as source images with masks."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from research.photographs.packages import members

SIDE = 448  # pixels of a source image
LONGEST = 300  # pixels of the cut-out's longer side
GREY = 127
LEAST = 64  # pixels of a cut-out's longer side in the package


class CutoutClass(NamedTuple):
    """A class of the trial: the package's folders, and the classifier's outputs whose probabilities are added."""

    folders: tuple[str, ...]
    outputs: tuple[tuple[int, int], ...]  # first and last index
    without: tuple[str, ...] = ()  # files of these folders that show something else


# The indices are ImageNet's, in the order of its synsets.
CLASSES = {
    "bird": CutoutClass(("animals/birds",), ((7, 24), (80, 100), (127, 146))),
    "mammal": CutoutClass(
        ("animals/mammals", "animals/marsupials"),
        ((102, 106), (147, 299), (330, 388)),
        without=("edward_bear",),
    ),
    "insect": CutoutClass(("animals/insects",), ((300, 326),), without=("Brown_slug", "Woodlouse")),
    "fruit or vegetable": CutoutClass(
        ("food/fruit", "food/vegetables"), ((936, 957), (987, 987), (998, 998))
    ),
    "musical instrument": CutoutClass(
        ("hobbies/music",),
        (
            (401, 402), (420, 420), (432, 432), (486, 486), (494, 494), (513, 513), (541, 541), (546, 546),
            (558, 558), (566, 566), (577, 577), (579, 579), (593, 594), (641, 642), (683, 684), (687, 687),
            (699, 699), (776, 776), (822, 822), (875, 875), (881, 881), (889, 889),
        ),
    ),
    "vehicle": CutoutClass(
        ("vehicles", "military/vehicles"),
        (
            (403, 405), (407, 408), (417, 417), (436, 436), (444, 444), (450, 450), (466, 466), (468, 468),
            (472, 472), (484, 484), (510, 511), (537, 537), (547, 547), (554, 555), (561, 561), (565, 565),
            (569, 569), (573, 573), (575, 576), (586, 586), (595, 595), (603, 603), (609, 609), (612, 612),
            (625, 625), (627, 628), (654, 654), (656, 656), (661, 661), (665, 665), (670, 671), (675, 675),
            (690, 690), (705, 705), (717, 717), (724, 724), (734, 734), (751, 751), (757, 757), (779, 780),
            (802, 803), (812, 812), (814, 814), (817, 817), (820, 820), (829, 829), (833, 833), (847, 847),
            (856, 856), (864, 864), (866, 867), (870, 871), (874, 874), (880, 880), (895, 895), (913, 914),
        ),
        without=("7spoke256", "ww2_german_gun"),
    ),
}  # fmt: skip
OTHER_CLASS = "something else"


def outputs_by_class() -> dict[str, list[int]]:
    """Class → the classifier's outputs; those of no class are "something else"."""
    outputs = {
        name: [index for first, last in chosen.outputs for index in range(first, last + 1)]
        for name, chosen in CLASSES.items()
    }
    used = {index for indices in outputs.values() for index in indices}
    return {**outputs, OTHER_CLASS: [index for index in range(1000) if index not in used]}


@dataclass(frozen=True, slots=True)
class Cutout:
    """A cut-out: height × width × 4, 0 … 255, the last channel its opacity, and the package's line about it."""

    name: str
    label: str
    pixels: NDArray[np.uint8]
    description: str


def cutouts(package: Path) -> Iterator[Cutout]:
    """The photographic cut-outs of the classes, without mirrored copies, drawings and toys."""
    files = dict(members(package))
    for path, content in sorted(files.items()):
        place = PurePosixPath(*path.parts[path.parts.index("stamps") + 1 :]) if "stamps" in path.parts else None
        if place is None or path.suffix != ".png" or "cartoon" in place.parts or "_mirror" in place.stem:
            continue
        label = _label(place)
        if label is None:
            continue
        with Image.open(io.BytesIO(content)) as image:
            pixels = np.asarray(image.convert("RGBA"))
        if max(pixels.shape[:2]) >= LEAST and (pixels[..., 3] < 128).mean() > 0.02:
            text = files.get(path.with_suffix(".txt"), b"").decode().partition("\n")[0].strip()
            yield Cutout(place.with_suffix("").as_posix().replace("/", "-"), label, pixels, text)


def _label(place: PurePosixPath) -> str | None:
    for name, chosen in CLASSES.items():
        if any(place.is_relative_to(folder) for folder in chosen.folders):
            return None if place.stem in chosen.without else name
    return None


def on_grey(
    cutout: Cutout, background: NDArray[np.uint8] | None = None, shift: tuple[int, int] = (0, 0)
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A source image with the cut-out in the middle of grey, and its mask (255 where the object is).

    `background` (SIDE × SIDE × 3) takes the place of the grey; `shift` moves the cut-out right and down, in pixels.
    """
    image = Image.fromarray(cutout.pixels)
    box = image.getchannel("A").point(lambda value: 255 * (value >= 128)).getbbox()
    image = image.crop(box)
    scale = LONGEST / max(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
    canvas = Image.new("RGB", (SIDE, SIDE), (GREY, GREY, GREY)) if background is None else Image.fromarray(background)
    corner = ((SIDE - image.width) // 2 + shift[0], (SIDE - image.height) // 2 + shift[1])
    canvas.paste(image, corner, image.getchannel("A"))
    mask = Image.new("L", (SIDE, SIDE), 0)
    mask.paste(image.getchannel("A").point(lambda value: 255 * (value >= 128)), corner)
    return np.asarray(canvas), np.asarray(mask)
