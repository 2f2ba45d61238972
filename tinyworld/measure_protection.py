"""How well each way of holding protected things keeps them, and what of the edit it costs, by strength and size.

    python -m tinyworld.measure_protection --count 40 --out runs/protection
    python -m tinyworld.measure_protection --arms none blended:0.5 relit:0.25 relit:0.5 edges:1 --out runs/protection

Every scene's edit (of weather or time, said by a faultless language model) is drawn once under each arm, a way and its
strength, with its null arm. `kept`: the things' masks as the profile's segmenter sees them in the image have an IoU of
0.5 or more with the renderer's. `recognised`: both oracles still see what it was. `scene`: both read the edit's value.
`inside`: the colour within the mask went half the way or more that it goes in the renderer's counterfactual, where that
is a way at all. `ceiling` is that counterfactual through the autoencoder: no generator does better. Images, contact
sheets, one line of JSON per thing and `report.txt` go to `--out`; started again, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from diffusion_service.control_images import ControlImages
from diffusion_service.editors.controlnet import BatchKey, ControlNetEditor, Rendered, RenderItem
from diffusion_service.protection import outline_contrast
from diffusion_service.segmentation import Segmenter
from diffusion_service.stable_diffusion import load
from gateway.analysis.certainty import wilson
from gateway.catalogue import method_defaults
from gateway.methods.dillema import DillemaParameters, region_of
from shared.profiles import Profile, load_profile
from shared.schemas.diffusion import Protection, Rendering
from shared.seeds import derive_seed
from tinyworld.contact_sheet import contact_sheet
from tinyworld.pictures import Pixels
from tinyworld.protected_scenes import DISTRICTS, Asked, District, Instance, Mask
from tinyworld.round_trips import through_autoencoder

ARMS = ("none", "blended:0.25", "blended:0.5", "blended:0.75", "relit:0.25", "relit:0.5", "relit:0.75", "edges:1")
RECORDS = "instances.jsonl"
SIZES = {"small": 0.03, "medium": 0.1, "large": 1.0}  # greatest share of the image's area
HALF = 0.5  # of the IoU, and of the way that the colour goes
VISIBLE = 8.0  # length of the way in grey levels below which the renderer's edit does not show within a mask
_SHEET = 8  # scenes on a contact sheet


class Thing(BaseModel):
    """One thing of one image: a line of `instances.jsonl`. `inside` is the share of the way that its colour went."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scene: str
    arm: str
    field: str
    to_value: str
    label: str
    share: float
    iou: float
    recognised: bool
    shown: bool
    inside: float | None
    seam: float | None  # contrast of the outline, over that of the null arm

    @property
    def size(self) -> str:
        """Its size's name."""
        return next(name for name, most in SIZES.items() if self.share <= most)


class Gallery:
    """Draws the edits under arms, many in a batch, with the profile's weights."""

    def __init__(self, profile: Profile, district: District) -> None:
        if profile.diffusion.segmenter is None:
            raise SystemExit("the profile names no segmenter; add [diffusion.segmenter]")
        self.segmenter = Segmenter(profile.diffusion.segmenter, profile.diffusion.keep_labels, device="cpu")
        weights = load(profile.diffusion.base, profile.diffusion.controlnets, device="cpu")
        self._editor = ControlNetEditor(weights, ControlImages(self.segmenter))
        self._parameters = DillemaParameters.model_validate(method_defaults("dillema", profile))
        self._district = district

    def draw(self, asked: Asked, arms: Sequence[str]) -> Iterator[tuple[str, Pixels, Pixels]]:
        """Arm, counterfactual and null arm."""
        p = self._parameters
        source = self._editor.source(asked.source)
        key = BatchKey(*source.geometry.padded, p.steps, p.guidance, p.strengths)
        seed, region = derive_seed("protected", asked.id), region_of(asked.edit, p)
        items = [
            RenderItem(source, Rendering(prompt=prompt, region=region, seed=seed), "", self._protection(arm))
            for arm in arms
            for prompt in (asked.edit.new_caption, asked.edit.caption)
        ]
        for start, arm in zip(range(0, len(items), 2), arms, strict=True):
            edit, null = self._editor.render(key, items[start : start + 2])
            assert isinstance(edit, Rendered), edit
            assert isinstance(null, Rendered), null
            yield arm, edit.image, null.image

    def _protection(self, arm: str) -> Protection | None:
        way, _, strength = arm.partition(":")
        if way == "none":
            return None
        return Protection.model_validate(
            {"classes": self._district.protected, "by": way, "strength": float(strength or 0.5)}
        )

    def iou(self, image: Pixels, thing: Instance) -> float:
        """Of the thing's mask with its label's pixels in the image, as far as these are nearer to it than elsewhere."""
        there = self.segmenter.label_map(image) == self.segmenter.labels.index(thing.label)
        _, pieces = cv2.connectedComponents(there.astype(np.uint8), connectivity=8)
        now = np.isin(pieces, np.setdiff1d(pieces[thing.mask], [0]))
        return float((now & thing.mask).sum() / (now | thing.mask).sum())


def progress(asked: Asked, image: Pixels, mask: Mask) -> float | None:
    """The share of the way that the mean colour within a mask went, of that in the renderer's counterfactual."""
    before, now, wanted = (
        picture[mask].mean(axis=0, dtype=np.float64) for picture in (asked.source, image, asked.truth)
    )
    way = wanted - before
    length = float(np.linalg.norm(way))
    return None if length < VISIBLE else float((now - before) @ way) / length**2


def judged(
    gallery: Gallery, district: District, asked: Asked, drawn: Sequence[tuple[str, Pixels, Pixels | None]]
) -> Iterator[Thing]:
    """What became of each thing in each arm's image."""
    seen = district.seen([asked] * len(drawn), [image for _, image, _ in drawn])
    for (arm, image, null), read in zip(drawn, seen, strict=True):
        for thing, recognised in zip(asked.instances, read.recognised, strict=True):
            contrast = outline_contrast(image, thing.mask)
            usual = None if null is None else outline_contrast(null, thing.mask)
            inside = progress(asked, image, thing.mask)
            yield Thing(
                scene=asked.id,
                arm=arm,
                field=asked.field,
                to_value=asked.to_value,
                label=thing.label,
                share=round(float(thing.mask.mean()), 5),
                iou=round(gallery.iou(image, thing), 4),
                recognised=recognised,
                shown=read.shown,
                inside=None if inside is None else round(inside, 3),
                seam=None if usual is None else round(contrast / max(usual, 0.1), 3),
            )


def report(things: Sequence[Thing]) -> str:
    """The trade-off curve: a line per arm and size of thing."""
    arms = list(dict.fromkeys(one.arm for one in things))
    scenes = len({one.scene for one in things})
    lines = [f"{scenes} scenes, {len({(one.scene, one.label) for one in things})} things; rates with Wilson intervals"]
    header = f"{'arm':<14} {'things':<9} {'kept':<26} {'recognised':<26} {'edit inside':<26} seam: median, 95 %"
    lines += ["", header]
    for arm in arms:
        of_arm = [one for one in things if one.arm == arm]
        groups = {"all": of_arm} | {f". {name}": [t for t in of_arm if t.size == name] for name in SIZES}
        groups |= {f". {name}s": [t for t in of_arm if t.label == name] for name in sorted({t.label for t in of_arm})}
        lines += [_line(arm, name, some) for name, some in groups.items() if some]
    lines += ["", f"{'arm':<14} edit shown in the scene"]
    for arm in arms:
        by_scene = {one.scene: one for one in things if one.arm == arm}.values()
        fields = {"all": list(by_scene)} | {
            f: [t for t in by_scene if t.field == f] for f in sorted({t.field for t in by_scene})
        }
        cells = [f"{name} {_rate(some, lambda t: t.shown)}" for name, some in fields.items()]
        lines.append(f"{arm:<14} " + "; ".join(cells))
    return "\n".join(lines) + "\n"


def _line(arm: str, name: str, some: Sequence[Thing]) -> str:
    told = [one for one in some if one.inside is not None]
    seams = [one.seam for one in some if one.seam is not None]
    seam = f"{np.median(seams):.2f}, {np.quantile(seams, 0.95):.2f}" if seams else ""
    return (
        f"{arm:<14} {name:<12} {_rate(some, lambda t: t.iou >= HALF):<26} {_rate(some, lambda t: t.recognised):<26} "
        f"{_rate(told, lambda t: (t.inside or 0.0) >= HALF):<26} {seam}"
    )


def _rate(some: Sequence[Thing], test: Callable[[Thing], bool]) -> str:
    if not some:
        return "-"
    count = sum(test(one) for one in some)
    rate = wilson(count, len(some))
    return f"{count / len(some):.3f} ({len(some)}; {rate.low:.2f}-{rate.high:.2f})"


def sheet(asked: Sequence[Asked], images: Mapping[tuple[str, str], Pixels], arms: Sequence[str], path: Path) -> None:
    """Source, truth and every arm's image, a row per scene."""
    pictures = []
    for one in asked:
        pictures += [(one.source, f"{one.field}"), (one.truth, one.to_value)]
        pictures += [(images[one.id, arm], arm) for arm in arms]
    contact_sheet(pictures, 2 + len(arms), path, scale=1)


def main() -> None:
    """The command."""
    args = _arguments()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    district = DISTRICTS[args.district]
    gallery = Gallery(load_profile(args.profile), district)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / RECORDS
    things = [Thing.model_validate_json(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(one.scene, one.arm) for one in things}
    rows: list[Asked] = []
    images: dict[tuple[str, str], Pixels] = {}
    with path.open("a") as lines:
        for asked in district.asked(args.count):
            wanted = [arm for arm in args.arms if (asked.id, arm) not in done]
            drawn: list[tuple[str, Pixels, Pixels | None]] = list(gallery.draw(asked, wanted))
            if (asked.id, "ceiling") not in done:
                drawn.append(("ceiling", through_autoencoder(asked.truth[None])[0], None))
            fresh = list(judged(gallery, district, asked, drawn)) if drawn else []
            lines.writelines(one.model_dump_json() + "\n" for one in fresh)
            lines.flush()
            things += fresh
            images |= {(asked.id, arm): image for arm, image, _ in drawn}
            rows += [asked] if len(wanted) == len(args.arms) else []
            if len(rows) == _SHEET:
                sheet(rows, images, args.arms, args.out / f"sheet-{rows[0].id}.png")
                rows, images = [], {}
    text = report(things)
    (args.out / "report.txt").write_text(text)
    print(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--district", choices=tuple(DISTRICTS), default="objects")
    parser.add_argument("--count", type=int, default=40, help="scenes; each is drawn twice under each arm")
    parser.add_argument("--arms", nargs="+", default=ARMS, help="way:strength, or none")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--profile", default="tiny")
    return parser.parse_args()


if __name__ == "__main__":
    main()
