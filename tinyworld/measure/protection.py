"""Measure how well each protection preserves things, and how much of the edit it costs, by strength and size.

    python -m tinyworld.measure.protection --count 40 --out runs/protection
    python -m tinyworld.measure.protection --arms none blended:0.5 relit:0.25 relit:0.5 edges:1 --out runs/protection

    python -m tinyworld.measure.protection --domain roads --profile PATH --out runs/roads/protection

Each scene has one edit (of weather or time; on roads also of surface or season), as a faultless language model writes
it. Each arm (a protection and its strength) renders the edit once, with its null arm. The report has these rates:

    kept            the thing's mask by the profile's segmenter has an IoU of at least 0.5 with the renderer's mask
    recognised      both oracles still recognise the thing (on roads, with such an IoU)
    of those there  the same, of the things that they recognise in the source image
    scene           both oracles read the edit's value
    inside          the mean colour within the mask moves at least half way to the renderer's counterfactual, if the
                    two differ

The arm `ceiling` is the renderer's counterfactual after a round trip through the autoencoder; no generator does better.
Images, contact sheets, one line of JSON per thing and `report.txt` go to `--out`. The command resumes after a restart.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from diffusion_service.protection import outline_contrast
from shared.profiles import load_profile
from tinyworld.datasets.round_trips import through_autoencoder
from tinyworld.domain.names import add_domain
from tinyworld.drawing.sheet import contact_sheet
from tinyworld.judges.protection.domain import HALF, Mask, ProtectedEdit, ProtectionDomain
from tinyworld.judges.protection.gallery import Gallery
from tinyworld.judges.protection.objects import OBJECTS
from tinyworld.judges.protection.roads import ROADS
from tinyworld.pictures.rendered_once import Pixels
from tinyworld.statistics.rates import wilson

ARMS = ("none", "blended:0.25", "blended:0.5", "blended:0.75", "relit:0.25", "relit:0.5", "relit:0.75", "edges:1")
RECORDS = "instances.jsonl"
SETTING = "setting.txt"
PROTECTION_DOMAINS: Mapping[str, ProtectionDomain] = {"objects": OBJECTS, "roads": ROADS}
HALF_WAY = 0.5  # share of the colour change, from which on the edit counts as present inside a mask
VISIBLE = 8.0  # grey levels; below this colour change, the renderer's edit is invisible within a mask
_SHEET = 8  # scenes on a contact sheet
_NAME = 25  # characters of a line's name


class Thing(BaseModel):
    """One thing of one image: a line of `instances.jsonl`. `inside` is its colour change (see `progress`).

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


def progress(request: ProtectedEdit, image: Pixels, mask: Mask) -> float | None:
    """Colour change within a mask, as a share of that in the renderer's counterfactual; None if that is invisible."""
    before, current, target = (
        picture[mask].mean(axis=0, dtype=np.float64) for picture in (request.source, image, request.truth)
    )
    way = target - before
    length = float(np.linalg.norm(way))
    return None if length < VISIBLE else float((current - before) @ way) / length**2


def judge_images(
    gallery: Gallery,
    domain: ProtectionDomain,
    request: ProtectedEdit,
    rendered_arms: Sequence[tuple[str, Pixels, Pixels | None]],
) -> Iterator[Thing]:
    """The judgement of each thing in each arm's image."""
    before, *readings = domain.read(
        [request] * (1 + len(rendered_arms)), [request.source, *(image for _, image, _ in rendered_arms)]
    )
    for (arm, image, null), reading in zip(rendered_arms, readings, strict=True):
        ious = gallery.ious(image, request.instances)
        for thing, iou, there, recognised in zip(
            request.instances, ious, before.recognised, reading.recognised, strict=True
        ):
            contrast = outline_contrast(image, thing.mask)
            usual = None if null is None else outline_contrast(null, thing.mask)
            inside = progress(request, image, thing.mask)
            yield Thing(
                scene=request.id,
                arm=arm,
                field=request.field,
                to_value=request.to_value,
                label=thing.label,
                size=domain.size(thing),
                share=round(thing.share, 5),
                iou=round(iou, 4),
                there=there,
                recognised=recognised,
                shown=reading.shown,
                inside=None if inside is None else round(inside, 3),
                seam=None if usual is None else round(contrast / max(usual, 0.1), 3),
            )


def report(things: Sequence[Thing], sizes: Iterable[str]) -> str:
    """The trade-off curve: a line per arm, class and size of thing; `sizes` in the order of their lines."""
    arms = list(dict.fromkeys(record.arm for record in things))
    scenes = len({record.scene for record in things})
    count = max(Counter(record.arm for record in things).values())
    lines = [f"{scenes} scenes, {count} things; rates with n and Wilson intervals"]
    rates = "".join(f"{name:<27}" for name in ("kept", "recognised", "of those there", "edit inside"))
    header = f"{'arm':<14} {'things':<{_NAME}} {rates}seam: median, 95 %"
    lines += ["", header]
    for arm in arms:
        of_arm = [record for record in things if record.arm == arm]
        groups = {"all": of_arm} | {f". {name}": [t for t in of_arm if t.size == name] for name in sizes}
        groups |= {f". {name}s": [t for t in of_arm if t.label == name] for name in sorted({t.label for t in of_arm})}
        lines += [_line(arm, name, things) for name, things in groups.items() if things]
    lines += ["", f"{'arm':<14} edit shown in the scene"]
    for arm in arms:
        by_scene = {record.scene: record for record in things if record.arm == arm}.values()
        fields = {"all": list(by_scene)} | {
            f: [t for t in by_scene if t.field == f] for f in sorted({t.field for t in by_scene})
        }
        cells = [f"{name} {_rate(things_of_field, lambda t: t.shown)}" for name, things_of_field in fields.items()]
        lines.append(f"{arm:<14} " + "; ".join(cells))
    return "\n".join(lines) + "\n"


def _line(arm: str, name: str, things: Sequence[Thing]) -> str:
    with_progress = [record for record in things if record.inside is not None]
    present = [record for record in things if record.there]
    seams = [record.seam for record in things if record.seam is not None]
    seam = f"{np.median(seams):.2f}, {np.quantile(seams, 0.95):.2f}" if seams else ""
    in_place = _rate(things, lambda record: record.iou >= HALF)
    return (
        f"{arm:<14} {name:<{_NAME}} {in_place:<26} {_rate(things, lambda record: record.recognised):<26} "
        f"{_rate(present, lambda record: record.recognised):<26} "
        f"{_rate(with_progress, lambda record: (record.inside or 0.0) >= HALF_WAY):<26} {seam}"
    )


def _rate(things: Sequence[Thing], test: Callable[[Thing], bool]) -> str:
    if not things:
        return "-"
    count = sum(test(record) for record in things)
    rate = wilson(count, len(things))
    return f"{count / len(things):.3f} ({len(things)}; {rate.low:.2f}-{rate.high:.2f})"


def sheet(
    edits: Sequence[ProtectedEdit], images: Mapping[tuple[str, str], Pixels], arms: Sequence[str], path: Path
) -> None:
    """Source, truth and every arm's image, a row per scene."""
    pictures = []
    for edit in edits:
        pictures += [(edit.source, f"{edit.field}"), (edit.truth, edit.to_value)]
        pictures += [(images[edit.id, arm], arm) for arm in arms]
    contact_sheet(pictures, 2 + len(arms), path, scale=1)


def main() -> None:
    """The command."""
    args = _arguments()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    domain = PROTECTION_DOMAINS[args.domain]
    domain.load_judges()
    gallery = Gallery(load_profile(args.profile), domain, args.controls)
    controls = ", ".join(f"{control.kind} {control.scale:g}" for control in gallery.controls)
    setting = f"{args.domain}, profile {args.profile}, controls: {controls}"
    keep_setting(args.out, setting)
    path = args.out / RECORDS
    things = [Thing.model_validate_json(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(record.scene, record.arm) for record in things}
    rows: list[ProtectedEdit] = []
    images: dict[tuple[str, str], Pixels] = {}
    with path.open("a") as lines:
        for request in domain.edits(args.count):
            missing_arms = [arm for arm in args.arms if (request.id, arm) not in done]
            rendered_arms: list[tuple[str, Pixels, Pixels | None]] = list(gallery.draw(request, missing_arms))
            if (request.id, "ceiling") not in done:
                rendered_arms.append(("ceiling", through_autoencoder(request.truth[None])[0], None))
            fresh = list(judge_images(gallery, domain, request, rendered_arms)) if rendered_arms else []
            lines.writelines(record.model_dump_json() + "\n" for record in fresh)
            lines.flush()
            things += fresh
            images |= {(request.id, arm): image for arm, image, _ in rendered_arms}
            rows += [request] if len(missing_arms) == len(args.arms) else []
            if len(rows) == _SHEET:
                sheet(rows, images, args.arms, args.out / f"sheet-{rows[0].id}.png")
                rows, images = [], {}
    text = f"{setting}\n{report(things, domain.sizes)}"
    (args.out / "report.txt").write_text(text)
    print(text)


def keep_setting(folder: Path, setting: str) -> None:
    """Record the setting of a folder's records. Raises SystemExit if the folder has another setting."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SETTING
    if path.exists() and path.read_text() != setting:
        raise SystemExit(f"{folder} holds records of {path.read_text()}; name another --out for {setting}")
    path.write_text(setting)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_domain(parser)
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
