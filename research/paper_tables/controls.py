"""Compare kinds of control on drawn driving scenes, as readers of DILLEMA ask: edges, depth or segmentation?

    python -m research.paper_tables.controls --count 120 --out runs/controls

Each scene has one edit (of time, weather, surface or season in turn) with the caption of a faultless language model.
It is rendered once under every control, with the same seed, without protected classes and with the profile's defaults
for everything else; so is its null arm. The renderer's own counterfactual is judged beside them.

`structure`     mean IoU of the classes that the checks' segmenter finds in the image with the renderer's mask
`things`        vehicles and pedestrians of 30 or more pixels of which that segmenter finds most pixels
`edit shown`    the scorer finds the image nearer to the new caption than to the old one
`accepted`      by the profile's checks, at its thresholds, which were set under the profile's default controls

`--controls` names ControlNets of the profile, "canny+segmentation" both at once, and "canny:0" none (its weight is 0).
A profile of your own with `[diffusion.controlnets.depth]` and `[diffusion.depth]` compares depth as well. Records go to
`--out`; with the same options the command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from evaluator_service.models_under_test.kinds.segmentation import ImageSegmenter
from gateway.analysis.certainty import LEVEL, clustered_rate, mean_interval, mean_overlap
from research.calibrate.checks.roads import Checks
from research.judges.protection.domain import FIRST, ProtectedEdit
from research.judges.protection.gallery import Gallery, parameters
from research.judges.protection.roads import ROADS, road_edits
from research.judges.segmentation import class_ious, instances
from research.paper_tables.printing import NOTHING, grid, rate
from research.pictures.sheet import contact_sheet
from shared.profiles.profile import Profile, load_profile
from shared.schemas.effects import Rate
from shared.seeds import derive_seed
from tinyworld.drawing.canvas import Image
from tinyworld.roads.render import Rendering, render
from tinyworld.roads.world import CLASSES, sample_scene

CONTROLS = ("canny", "segmentation", "canny+segmentation", "canny:0")
DRAWN = "drawn"  # in place of a control: the renderer's counterfactual
RECORDS = "controls.jsonl"
_SHEET = 12  # scenes on the contact sheet


class ControlRecord(BaseModel):
    """One judged image. `structure` is in 0 … 1; `margin`: cosine with the new caption less that with the old."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scene: str
    field: str
    control: str
    arm: str
    structure: float
    things: list[bool]
    margin: float
    accepted: bool
    check: str


class Judge:
    """The profile's checks, and the segmenter of its checks as a judge of structure."""

    def __init__(self, profile: Profile) -> None:
        self._checks = Checks(profile)
        assert profile.evaluator.segmenter is not None  # `Checks` refuses it
        self._segmenter = ImageSegmenter(profile.evaluator.segmenter, device="cpu")
        self._thresholds = parameters(profile, ()).thresholds

    def records(
        self, gallery: Gallery, request: ProtectedEdit, drawn: Rendering, control: str, images: Mapping[str, Image]
    ) -> list[ControlRecord]:
        """A record of the image of each arm."""
        pictures = list(images.values())
        verdicts = self._checks.verdicts(gallery, request, drawn, pictures, self._thresholds)
        maps = [self._classes(label_map) for label_map in self._segmenter.run(pictures)]
        return [
            ControlRecord(
                scene=request.id,
                field=request.field,
                control=control,
                arm=arm,
                structure=class_ious(classes[None], drawn.classes[None])["mean"],
                things=[thing.detected for thing in instances(classes, drawn)],
                margin=round(scores["caption"], 4),
                accepted=verdict.accepted,
                check=verdict.check,
            )
            for arm, classes, (verdict, scores) in zip(images, maps, verdicts, strict=True)
        ]

    def _classes(self, label_map: Image) -> Image:
        """Indices into the world's classes, of those of the segmenter; other classes are void."""
        names = self._segmenter.classes
        table = np.array([CLASSES.index(name) if name in CLASSES else 0 for name in names], np.uint8)
        return table[label_map]


def measure(profile: Profile, controls: Sequence[str], count: int, folder: Path) -> list[ControlRecord]:
    """The records of all scenes, those of an earlier run included; each scene is written when it is complete."""
    path = folder / RECORDS
    folder.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    done = [ControlRecord.model_validate_json(line) for line in lines]
    unprotected = replace(ROADS, protected=())
    galleries = {control: Gallery(profile, unprotected, control.split("+")) for control in controls}
    judge, complete, sheet = Judge(profile), {record.scene for record in done}, []
    for number, request in enumerate(road_edits(count)):
        if request.id in complete:
            continue
        rendering = render(sample_scene("final-test", FIRST + number))
        first = next(iter(galleries.values()))
        fresh = judge.records(first, request, rendering, DRAWN, {"edit": request.truth, "null": request.source})
        pictures = [(request.source, f"{request.id} source"), (request.truth, f"{request.field}={request.to_value}")]
        for control, gallery in galleries.items():
            ((_, edit, null),) = gallery.draw(request, ["none"])
            fresh += judge.records(gallery, request, rendering, control, {"edit": edit, "null": null})
            pictures.append((edit, control))
        sheet += pictures if number < _SHEET else []
        with path.open("a") as file:
            file.writelines(record.model_dump_json() + "\n" for record in fresh)
        done += fresh
        print(f"{number + 1} of {count} scenes", flush=True)
    if sheet:
        contact_sheet(sheet, 2 + len(controls), folder / "sheet.png")
    return done


def table(records: Sequence[ControlRecord]) -> str:
    """A column for each control, a row for each figure, with 95 % intervals over scenes."""
    controls = sorted(dict.fromkeys(record.control for record in records), key=DRAWN.__eq__)  # it comes last
    columns = [[record for record in records if record.control == control] for control in controls]
    body = [[name, *cells] for name, cells in _lines(columns)]
    scenes = len({record.scene for record in records})
    return f"{scenes} scenes\n\n" + grid(["", *controls], body)


def _lines(columns: Sequence[Sequence[ControlRecord]]) -> Iterable[tuple[str, list[str]]]:
    edits = [[record for record in column if record.arm == "edit"] for column in columns]
    nulls = [[record for record in column if record.arm == "null"] for column in columns]
    yield "structure, mean IoU", [_structure(column) for column in edits]
    yield "… less that of the first control, points", [_difference(column, edits[0]) for column in edits]
    yield "… null arms", [_structure(column) for column in nulls]
    yield "things found", [rate(_things(column)) for column in edits]
    yield "edit shown", [rate(_share(column, [record.margin > 0 for record in column])) for column in edits]
    yield "… null arms", [rate(_share(column, [record.margin > 0 for record in column])) for column in nulls]
    yield "accepted", [rate(_share(column, [record.accepted for record in column])) for column in edits]
    for field in dict.fromkeys(record.field for record in edits[0]):
        parts = [[record for record in column if record.field == field] for column in edits]
        yield f"accepted, {field}", [rate(_share(part, [record.accepted for record in part])) for part in parts]


def _structure(records: Sequence[ControlRecord]) -> str:
    scores = np.array([record.structure for record in records], np.float64)
    mean = mean_overlap(scores, np.arange(len(scores)), derive_seed("controls", len(scores)))
    return NOTHING if mean.value is None else f"{mean.value:.3f} ({mean.low:.3f}–{mean.high:.3f})"


def _difference(records: Sequence[ControlRecord], others: Sequence[ControlRecord]) -> str:
    """The mean difference of structure on the same scenes, with its interval."""
    reference = {record.scene: record.structure for record in others}
    pairs = [record.structure - reference[record.scene] for record in records if record.scene in reference]
    differences = np.array(pairs, np.float64)
    if not differences.any():
        return NOTHING
    interval = mean_interval(differences, LEVEL, derive_seed("controls", "difference"))
    return f"{100 * differences.mean():+.1f} ({100 * interval.low:+.1f} to {100 * interval.high:+.1f})"


def _things(records: Sequence[ControlRecord]) -> Rate:
    pairs = [(place, found) for place, record in enumerate(records) for found in record.things]
    return clustered_rate(np.array([found for _, found in pairs], np.bool_), np.array([place for place, _ in pairs]))


def _share(records: Sequence[ControlRecord], hits: Sequence[bool]) -> Rate:
    return clustered_rate(np.array(hits, np.bool_), np.arange(len(records)))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="scenes")
    parser.add_argument("--controls", nargs="+", default=CONTROLS)
    parser.add_argument("--profile", default="tiny-roads", help="a shipped profile's name, or a profile's file")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    print(table(measure(load_profile(options.profile), options.controls, options.count, options.out)))


if __name__ == "__main__":
    main()
