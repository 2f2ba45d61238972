"""Measure the editor that follows instructions on driving scenes, by the oracles and the oracle segmenters.

    python -m research.measure.instruct --domain roads --count 1000 --out runs/roads/instruct-measured

Each final-test scene gets one edit of a look that the oracles read, the looks in turn, and a null arm: the same source
under a sham instruction. The rates are of all images, before any check:

    things kept        both segmenters detect a thing in its place, of the things that they detect in the source
    edit shown         both oracles read the edit's value
    others unchanged   both read every other look that they read correctly on the source

Images, one line of JSON per image, contact sheet and `report.txt` go to `--out`. The command resumes after a restart.
The judges are trained on demand (research/docs/roads.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import cv2
import torch
from PIL import Image
from pydantic import BaseModel, ConfigDict

from research.datasets.instructed_pictures import WORDINGS
from research.judges.oracles.roads import READ, judge, load_oracles
from research.judges.protection.domain import FIRST, EditReading, ProtectedEdit
from research.judges.protection.roads import protected_edit, read_roads
from research.judges.records import read_picture
from research.judges.segmentation import load_segmenters
from research.measure.instruct.objects import EVALUATIONS, SHAM, editor_of
from research.networks.instructed_unet import INSTRUCT
from research.pictures.rendered_once import Pixels
from research.pictures.sheet import contact_sheet
from research.statistics.rates import rate_text
from research.system.folders import weights_of
from research.train.instructed_editor import InstructedEditor
from shared.chunks import chunks
from shared.seeds import derive_seed
from tinyworld.domain.names import add_domain
from tinyworld.roads.world import sample_scene

Arm = Literal["edit", "null"]
ARMS: tuple[Arm, Arm] = ("edit", "null")
RECORDS = "edits.jsonl"
_SHEET = 24  # edits on the contact sheet
Readings = Mapping[str, str | None]


class RoadRecord(BaseModel):
    """One image: a line of `edits.jsonl`. `kept` of `there` things kept their place; `changed_besides`: other looks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    arm: Arm
    field: str
    to_value: str
    instruction: str
    there: int
    kept: int
    shown: bool
    changed_besides: tuple[str, ...]
    evaluations: int


def request_of(number: int) -> tuple[ProtectedEdit, str]:
    """Edit number `number` with the renderer's truth, and its instruction; the same in every run."""
    scene = sample_scene("final-test", FIRST + number)
    request = protected_edit(f"{number:05d}", scene, list(READ)[number % len(READ)])
    seed = derive_seed("instruction", scene.geometry_seed)
    return request, WORDINGS["roads"].instruction(scene, request.field, request.to_value, seed)


def record_of(
    request: ProtectedEdit,
    arm: Arm,
    instruction: str,
    looks: tuple[Readings, Readings],
    things: tuple[EditReading, EditReading],
    evaluations: int,
) -> RoadRecord:
    """The record of an image; `looks` and `things` are the judges' readings of the source and of the image."""
    before, after = looks
    there = [now for was, now in zip(things[0].recognised, things[1].recognised, strict=True) if was]
    others = [name for name in READ if name != request.field and before[name] == request.facts[name]]
    return RoadRecord(
        id=request.id,
        arm=arm,
        field=request.field,
        to_value=request.to_value,
        instruction=instruction,
        there=len(there),
        kept=sum(there),
        shown=things[1].shown,
        changed_besides=tuple(name for name in others if after[name] != request.facts[name]),
        evaluations=evaluations,
    )


def measure_edits(editor: InstructedEditor, numbers: Sequence[int], folder: Path) -> Iterator[RoadRecord]:
    """Draw, judge and save both arms of some edits."""
    requests, instructions = zip(*map(request_of, numbers), strict=True)
    sources: list[Pixels] = [request.source for request in requests]
    images: dict[Arm, list[Pixels]] = {
        "edit": list(editor.edit(sources, instructions)),
        "null": list(editor.edit(sources, [SHAM] * len(sources))),
    }
    for request in requests:
        Image.fromarray(request.source).save(folder / f"{request.id}-source.png")
    before = list(zip(judge(sources), read_roads(requests, sources), strict=True))
    for arm in ARMS:
        after = zip(judge(images[arm]), read_roads(requests, images[arm]), strict=True)
        rows = zip(requests, instructions, before, after, images[arm], strict=True)
        for request, instruction, (looks, things), (new_looks, new_things), image in rows:
            Image.fromarray(image).save(folder / f"{request.id}-{arm}.png")
            text = instruction if arm == "edit" else SHAM
            yield record_of(request, arm, text, (looks, new_looks), (things, new_things), EVALUATIONS)


def report(done: Sequence[RoadRecord]) -> str:
    """The rates of all edits, by look, and of the null arms."""
    edits, nulls = ([record for record in done if record.arm == arm] for arm in ARMS)
    lines = [f"{len(edits)} edits, one source each: things kept | edit shown | others unchanged"]
    for name in ("all", *READ):
        some = [record for record in edits if name in ("all", record.field)]
        lines.append(f"{name:<12} {len(some):>4}  {_rates(some)}")
    lines += ["", f"null arms     {_rates(nulls)}  (shown: by chance)"]
    lines += ["", f"network evaluations per image: {max((record.evaluations for record in done), default=0)}", ""]
    return "\n".join(lines)


def _rates(some: Sequence[RoadRecord]) -> str:
    return " | ".join(
        (
            rate_text(sum(record.kept for record in some), sum(record.there for record in some)),
            rate_text(sum(record.shown for record in some), len(some)),
            rate_text(sum(not record.changed_besides for record in some), len(some)),
        )
    )


def main() -> None:
    """The command for `--domain roads`."""
    args = _arguments()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    load_oracles()
    load_segmenters()
    editor = editor_of(args.weights, "roads")
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / RECORDS
    done = [RoadRecord.model_validate_json(line) for line in path.read_text().splitlines()] if path.exists() else []
    with path.open("a") as lines:
        for numbers in chunks(range(len(done) // len(ARMS), args.count), args.batch):
            batch = list(measure_edits(editor, numbers, args.out))
            lines.writelines(record.model_dump_json() + "\n" for record in batch)
            lines.flush()
            done += batch
            print(f"{numbers[-1] + 1} of {args.count} edits", flush=True)
    (args.out / "report.txt").write_text(report(done))
    print(report(done))
    _write_sheet(args.out, [record for record in done if record.arm == "edit"][:_SHEET])


def _write_sheet(folder: Path, edits: Sequence[RoadRecord]) -> None:
    pictures = []
    for record in edits:
        texts = {"source": record.field, "null": "sham", "edit": record.instruction}
        pictures += [(read_picture(folder / f"{record.id}-{name}.png"), text) for name, text in texts.items()]
    if pictures:
        contact_sheet(pictures, 9, folder / "sheet.png")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_domain(parser)
    parser.add_argument("--count", type=int, default=1_000, help="edits to draw")
    parser.add_argument("--weights", type=Path, default=weights_of("roads") / "diffusion" / INSTRUCT)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    if args.count < 1:
        sys.exit("--count must be 1 or more")
    return args
