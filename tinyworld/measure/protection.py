"""How well each way of holding protected things keeps them, and what of the edit it costs, by strength and size.

    python -m tinyworld.measure.protection --count 40 --out runs/protection
    python -m tinyworld.measure.protection --arms none blended:0.5 relit:0.25 relit:0.5 edges:1 --out runs/protection

    python -m tinyworld.measure.protection --district roads --profile PATH --out runs/roads/protection

Every scene's edit (of weather or time; of roads also of surface or season), said by a faultless language model, is
drawn once under each arm, a way and its strength, with its null arm. `kept`: the things' masks as the profile's
segmenter sees them in the image have an IoU of 0.5 or more with the renderer's. `recognised`: both oracles still see
what it was; on the roads, with such an IoU; `of those there`: the same of the things that they see in the source image.
`scene`: both (on the roads, both readers) read the edit's value.
`inside`: the colour within the mask went half the way or more that it goes in the renderer's counterfactual, where that
is a way at all. `ceiling` is that counterfactual through the autoencoder: no generator does better. Images, contact
sheets, one line of JSON per thing and `report.txt` go to `--out`; started again, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from diffusion_service.control_images import ControlImages
from diffusion_service.depth import DepthEstimator
from diffusion_service.editors.controlnet import BatchKey, ControlNetEditor, Rendered, RenderItem
from diffusion_service.few_steps import load_few_step
from diffusion_service.palettes import palette
from diffusion_service.protection import outline_contrast
from diffusion_service.segmentation import Segmenter
from diffusion_service.stable_diffusion import load
from gateway.analysis.certainty import wilson
from gateway.jobs.choices import method_defaults
from gateway.methods.dillema import DillemaParameters, region_of
from shared.arithmetic import native_weights
from shared.problems import validation_sentence
from shared.profiles import Diffusion, Profile, load_profile
from shared.schemas.diffusion import Controls, Protection, Rendering
from shared.seeds import derive_seed
from shared.service import ServiceSettings
from tinyworld.datasets.round_trips import through_autoencoder
from tinyworld.judges.protected_roads import ROADS
from tinyworld.judges.protected_scenes import HALF, OBJECTS, Asked, District, Instance, Mask, overlaps
from tinyworld.objects.contact_sheet import contact_sheet
from tinyworld.objects.pictures import Pixels

ARMS = ("none", "blended:0.25", "blended:0.5", "blended:0.75", "relit:0.25", "relit:0.5", "relit:0.75", "edges:1")
RECORDS = "instances.jsonl"
SETTING = "setting.txt"
DISTRICTS: Mapping[str, District] = {"objects": OBJECTS, "roads": ROADS}
HALF_WAY = 0.5  # of the way that the colour goes
VISIBLE = 8.0  # length of the way in grey levels below which the renderer's edit does not show within a mask
_SHEET = 8  # scenes on a contact sheet
_NAME = 25  # letters of a line's name


class Thing(BaseModel):
    """One thing of one image: a line of `instances.jsonl`. `inside` is the share of the way that its colour went.

    `there`: the oracles recognise it in the source image.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    scene: str
    arm: str
    field: str
    to_value: str
    label: str
    size: str
    share: float
    iou: float
    there: bool
    recognised: bool
    shown: bool
    inside: float | None
    seam: float | None  # contrast of the outline, over that of the null arm


class Gallery:
    """Draws the edits under arms, many in a batch, with the profile's weights."""

    def __init__(self, profile: Profile, district: District, controls: Sequence[str] = ()) -> None:
        """`controls` (kind, or kind:scale) stand in place of the profile's own.

        Raises SystemExit where the profile has no such control, or no segmenter that knows what is protected.
        """
        if profile.diffusion.segmenter is None:
            raise SystemExit("the profile names no segmenter; add [diffusion.segmenter]")
        self._parameters = parameters(profile, controls)
        self.segmenter = Segmenter(profile.diffusion.segmenter, profile.diffusion.keep_labels, device="cpu")
        if unknown := [label for label in district.protected if label not in self.segmenter.labels]:
            raise SystemExit(f"the profile's segmenter knows no {', '.join(unknown)}; it is of another district")
        diffusion = native_weights(profile.diffusion, "cpu", ServiceSettings().dtype)
        weights = load(diffusion.base, diffusion.controlnets, device="cpu", vae=diffusion.vae)
        few_step = load_few_step(diffusion.few_step, diffusion.base, weights) if diffusion.few_step else None
        self._editor = ControlNetEditor(weights, _control_images(profile.diffusion, self.segmenter), few_step)
        self._district = district

    @property
    def controls(self) -> Controls:
        """What holds every image."""
        return self._parameters.strengths

    @property
    def own_arm(self) -> str:
        """The arm that the profile's defaults are."""
        p = self._parameters
        return f"{p.protection.by}:{p.protection.strength:g}" if p.protect else "none"

    def draw(self, asked: Asked, arms: Sequence[str]) -> Iterator[tuple[str, Pixels, Pixels]]:
        """Arm, counterfactual and null arm."""
        p = self._parameters
        source = self._editor.source(asked.source)
        key = BatchKey(*source.geometry.padded, p.steps, p.guidance, p.strengths)
        seed, region = derive_seed("protected", asked.id), region_of(asked.edit, p, masked=self._district.masked)
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

    def ious(self, image: Pixels, things: Sequence[Instance]) -> list[float]:
        """Of each thing with its label's pixels in the image."""
        return overlaps(self.segmenter.label_map(image), self.segmenter.labels, things, self._district.overlap)


def parameters(profile: Profile, controls: Sequence[str]) -> DillemaParameters:
    """The profile's own, but for the controls where some are named, as `canny` or `canny:0.8`.

    Raises SystemExit for a control that the profile lacks, that is named twice or has no weight from 0 to 2.
    """
    said = [one.partition(":") for one in controls]
    own: dict[str, object] = dict(method_defaults("dillema", profile))
    if said:
        own["controls"] = [{"kind": kind, "scale": scale or 1.0} for kind, _, scale in said]
    try:
        found = DillemaParameters.model_validate(own)
    except ValidationError as error:
        raise SystemExit(f"--controls: {validation_sentence(error.errors())}") from error
    there = profile.diffusion.controlnets
    if missing := [one.kind for one in found.strengths if one.kind not in there]:
        raise SystemExit(f"the profile has no control {', '.join(missing)}; it has {', '.join(there)}")
    return found


def _control_images(profile: Diffusion, segmenter: Segmenter) -> ControlImages:
    colours = None if profile.palette is None else palette(profile.palette, segmenter.labels)
    depth = None if profile.depth is None else DepthEstimator(profile.depth, device="cpu")
    return ControlImages(segmenter, colours, depth)


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
    before, *seen = district.seen([asked] * (1 + len(drawn)), [asked.source, *(image for _, image, _ in drawn)])
    for (arm, image, null), read in zip(drawn, seen, strict=True):
        ious = gallery.ious(image, asked.instances)
        for thing, iou, there, recognised in zip(
            asked.instances, ious, before.recognised, read.recognised, strict=True
        ):
            contrast = outline_contrast(image, thing.mask)
            usual = None if null is None else outline_contrast(null, thing.mask)
            inside = progress(asked, image, thing.mask)
            yield Thing(
                scene=asked.id,
                arm=arm,
                field=asked.field,
                to_value=asked.to_value,
                label=thing.label,
                size=district.size(thing),
                share=round(thing.share, 5),
                iou=round(iou, 4),
                there=there,
                recognised=recognised,
                shown=read.shown,
                inside=None if inside is None else round(inside, 3),
                seam=None if usual is None else round(contrast / max(usual, 0.1), 3),
            )


def report(things: Sequence[Thing], sizes: Iterable[str]) -> str:
    """The trade-off curve: a line per arm, class and size of thing; `sizes` in the order of their lines."""
    arms = list(dict.fromkeys(one.arm for one in things))
    scenes = len({one.scene for one in things})
    count = max(Counter(one.arm for one in things).values())
    lines = [f"{scenes} scenes, {count} things; rates with n and Wilson intervals"]
    rates = "".join(f"{name:<27}" for name in ("kept", "recognised", "of those there", "edit inside"))
    header = f"{'arm':<14} {'things':<{_NAME}} {rates}seam: median, 95 %"
    lines += ["", header]
    for arm in arms:
        of_arm = [one for one in things if one.arm == arm]
        groups = {"all": of_arm} | {f". {name}": [t for t in of_arm if t.size == name] for name in sizes}
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
    there = [one for one in some if one.there]
    seams = [one.seam for one in some if one.seam is not None]
    seam = f"{np.median(seams):.2f}, {np.quantile(seams, 0.95):.2f}" if seams else ""
    kept = _rate(some, lambda t: t.iou >= HALF)
    return (
        f"{arm:<14} {name:<{_NAME}} {kept:<26} {_rate(some, lambda t: t.recognised):<26} "
        f"{_rate(there, lambda t: t.recognised):<26} "
        f"{_rate(told, lambda t: (t.inside or 0.0) >= HALF_WAY):<26} {seam}"
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
    district.load_judges()
    gallery = Gallery(load_profile(args.profile), district, args.controls)
    controls = ", ".join(f"{one.kind} {one.scale:g}" for one in gallery.controls)
    setting = f"{args.district}, profile {args.profile}, controls: {controls}"
    keep_setting(args.out, setting)
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
    text = f"{setting}\n{report(things, district.sizes)}"
    (args.out / "report.txt").write_text(text)
    print(text)


def keep_setting(folder: Path, setting: str) -> None:
    """Write down what a folder's records are of. Raises SystemExit where they are of something else."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SETTING
    if path.exists() and path.read_text() != setting:
        raise SystemExit(f"{folder} holds records of {path.read_text()}; name another --out for {setting}")
    path.write_text(setting)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--district", choices=tuple(DISTRICTS), default="objects")
    parser.add_argument("--count", type=int, default=40, help="scenes; each is drawn twice under each arm")
    parser.add_argument("--arms", nargs="+", default=ARMS, help="way:strength, or none")
    parser.add_argument(
        "--controls", nargs="+", default=(), help="kind or kind:scale, for all arms; else the profile's"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--profile", default="tiny", help="name of a shipped profile, or path of a TOML file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
