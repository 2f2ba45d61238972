"""The papers' data sets as they lie on disk: ImageNet folders, Hard ImageNet's masks, SHIFT.

ImageNet: `IMAGES/n02084071/NAME.JPEG`, a folder per synset. Its class list is a text file of 1,000 lines in the order
of the models' outputs, `n01440764 tench, Tinca tinca`, as Kaggle's `LOC_synset_mapping.txt` has it.

Hard ImageNet (Moayeri et al. 2022) is a choice of ImageNet's images: those for which it has a mask,
`MASKS/n02084071_NAME.JPEG`.

SHIFT (Sun et al. 2022), discrete images: `IMAGES/img/SEQUENCE/00000000_img_front.jpg` and
`IMAGES/semseg/SEQUENCE/00000000_semseg_front.png`, whose red channel is the class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.seeds import derive_digest

IMAGE_SUFFIXES = frozenset({".jpeg", ".jpg", ".png", ".webp"})
SYNSET = re.compile(r"n\d{8}")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One source image: its class, or its mask and its sequence."""

    path: Path
    label: str | None = None
    mask: Path | None = None
    group: str | None = None

    @property
    def name(self) -> str:
        """Its name in the job: folder and file."""
        return f"{self.path.parent.name}/{self.path.name}"


def read_class_list(path: Path) -> dict[str, str]:
    """Class names by synset, in the order of the models' outputs: the first synonym, or all where two share the first.

    Raises ValueError with the number of the line that is not `SYNSET NAMES`.
    """
    names: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        synset, _, synonyms = line.strip().partition(" ")
        if not SYNSET.fullmatch(synset) or not synonyms.strip() or synset in names:
            raise ValueError(
                f"{path}, line {number}: expected a new synset and its names: n01440764 tench, Tinca tinca"
            )
        names[synset] = synonyms.strip()
    first = {synset: synonyms.split(",")[0].strip() for synset, synonyms in names.items()}
    shared = {name for name in first.values() if list(first.values()).count(name) > 1}
    return {synset: names[synset] if first[synset] in shared else first[synset] for synset in names}


def imagenet(folder: Path, classes: Mapping[str, str], only: Path | None = None) -> list[SourceFile]:
    """The images of an ImageNet folder by class. `only`: a folder of Hard ImageNet's masks that names them.

    Raises ValueError where the folder has no images in folders of the class list.
    """
    chosen = None if only is None else {path.stem for path in only.iterdir()}
    files = [
        SourceFile(path, label=classes[path.parent.name])
        for path in sorted(folder.glob("*/*"))
        if path.suffix.lower() in IMAGE_SUFFIXES
        and path.parent.name in classes
        and (chosen is None or f"{path.parent.name}_{path.stem}" in chosen)
    ]
    if not files:
        where = "" if only is None else f" that {only} has masks for"
        raise ValueError(f"{folder} has no images{where} in folders named by synset, such as n02084071/IMAGE.JPEG")
    return files


def shift(folder: Path) -> list[SourceFile]:
    """The front images of SHIFT that have a mask, with their sequences. Raises ValueError where there are none."""
    files = []
    for path in sorted(folder.glob("img/*/*_img_front.jpg")):
        mask = folder / "semseg" / path.parent.name / path.name.replace("_img_front.jpg", "_semseg_front.png")
        if mask.is_file():
            files.append(SourceFile(path, mask=mask, group=path.parent.name))
    if not files:
        raise ValueError(f"{folder} has no img/SEQUENCE/*_img_front.jpg with semseg/SEQUENCE/*_semseg_front.png")
    return files


def sample(files: Sequence[SourceFile], most: int, seed: int) -> list[SourceFile]:
    """At most so many files of each class, or of each sequence, in an order that depends on their names and the seed.

    The samples of a seed are nested: a smaller one is part of a larger one.
    """
    members: dict[str, list[SourceFile]] = {}
    for file in sorted(files, key=lambda file: derive_digest(str(seed), file.name)):
        members.setdefault(file.label or file.group or "", []).append(file)
    return [file for name in sorted(members) for file in members[name][:most]]
