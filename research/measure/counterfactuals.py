"""Measure a method's counterfactuals by the oracles, and which of them its checks accept.

    python -m research.measure.counterfactuals --count 1000 --out runs/keep
    python -m research.measure.counterfactuals --method lance --count 1000 --out runs/lance

Each counterfactual has its own source, a scene of `--split`, and one edit. The edits cycle through the
fields (name one twice for twice as many), with the caption of a faultless language model (`lance-r` samples its words
itself). Each is rendered, checked and judged as in a job with the shipped profile. DILLEMA renders a null arm for every
tenth source, the other methods for each; `reconstruction` renders null arms only and is compared with the originals.
Images, contact sheets, one line of JSON per image and `report.txt` go to `--out`. With the same options, the command
resumes. `--again` renders nothing; the current oracles judge the images of `--out` again.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from PIL import Image

from evaluator_service.models_under_test.kinds.classification import ImageClassifier
from gateway.methods.counterfactual import Edit
from research.judges.editors import EDITORS, Draw, EditorResult, drawing, parameters_of
from research.judges.oracles.objects import in_place, is_kept, judge
from research.judges.records import RECORDS, Record, read_picture, records
from research.judges.trials import source_picture
from research.measure.counterfactual_report import report
from research.objects.pictures import render_pair
from research.pictures.rendered_once import Pixels
from research.pictures.sheet import contact_sheet
from shared.profiles.profile import Profile, load_profile
from tinyworld.domain.scenes import Split
from tinyworld.objects.captions import read
from tinyworld.objects.proposals import FIELDS, Proposal, proposal
from tinyworld.objects.world import EDIT_FACTOR, FACTOR_VALUES, Scene, sample_scene, scene_factors, withheld

FIRST = 60_000  # the first final-test scene; the model cards use other scenes
NULL_EVERY = 10  # scenes, for editors whose null arms cost as much as an edit
OTHER_FACTOR = "other"  # the field of an edit that changes no field of the scene
_SHEET = 24  # counterfactuals on a contact sheet
Readings = Mapping[str, str | None]


def edits_in_turn(first: int, count: int, fields: Sequence[str], split: Split = "final-test") -> Iterator[Proposal]:
    """`count` edits, cycling through the fields, each of the next scene that shows the field."""
    index = first
    for number in range(count):
        field = fields[number % len(fields)]
        while True:
            scene = sample_scene(split, index)
            index += 1
            if edit := proposal(scene, field, np.random.default_rng((0xED, scene.geometry_seed))):
                yield edit
                break


class Measurement:
    """Draws, checks and judges edits, a batch at a time."""

    def __init__(self, method: str, profile: Profile, draw: Draw, folder: Path) -> None:
        self._method = method
        self._draw = draw
        self._models = {
            name: ImageClassifier(weights, device="cpu")
            for name, weights in profile.evaluator.models_under_test.items()
        }
        self._folder = folder
        self._revision = profile.diffusion.base.info("diffusion").revision
        (folder / "images").mkdir(parents=True, exist_ok=True)

    def batch(self, first: int, proposals: Sequence[Proposal]) -> list[Record]:
        """The records of some edits, numbered from `first`, and of the null arms among them."""
        numbered = dict(enumerate(proposals, first))
        results = self._draw(list(numbered.items()))
        images = [result.image for result in results if result.image is not None]
        before = judge([source_picture(edit.scene) for edit in proposals])
        read_before = dict(zip(numbered, before, strict=True))
        read_after = iter(judge(images))
        scenes = [numbered[result.number].scene for result in results if result.image is not None]
        placed = iter(in_place(images, [render_pair(scene)[1] == 1 for scene in scenes]))
        judged = []
        for result in results:
            after = None if result.image is None else (next(read_after), next(placed))
            judged.append(self._record(numbered[result.number].scene, result, read_before[result.number], after))
        return judged

    def _record(
        self, scene: Scene, result: EditorResult, before: Readings, after: tuple[Readings, bool] | None
    ) -> Record:
        name = f"{result.number:05d}{'' if result.kind == 'edit' else 'n'}"
        field, to_value = field_and_value(result.edit)
        expected = _expected_scene(scene, field, to_value, result.kind == "edit")
        verdict = (
            OracleVerdict(False, False, ())
            if after is None
            else oracle_verdict(scene, field, to_value, result.kind == "edit", *after)
        )
        return Record(
            id=name,
            arm=result.kind,
            source=self._save(f"{name[:5]}-source", result.source),
            image="" if result.image is None else self._save(name, result.image),
            label=scene.label,
            field=field,
            factor=result.edit.changes[0].factor,
            from_value=result.edit.changes[0].from_value if field == OTHER_FACTOR else str(getattr(scene, field)),
            to_value=to_value,
            caption=result.edit.caption,
            new_caption=result.edit.new_caption,
            withheld=withheld(expected),
            accepted=result.verdict.accepted,
            check=result.verdict.check,
            scores={check: round(score, 4) for check, score in result.scores.items()},
            **verdict._asdict(),
            readable_fields=readable_fields(scene, before),
            predicted={} if result.image is None else self._predict(result.source, result.image),
            weights=self._revision,
            method=self._method,
            evaluations=result.evaluations,
            attention=None if result.attention is None else round(result.attention, 4),
        )

    def _predict(self, source: Pixels, image: Pixels) -> dict[str, tuple[str, str]]:
        named = {}
        for name, model in self._models.items():
            before, after = (model.classes[int(row.argmax())] for row in model.run([source, image]))
            named[name] = (before, after)
        return named

    def _save(self, name: str, image: Pixels) -> str:
        path = f"images/{name}.png"
        Image.fromarray(image).save(self._folder / path)
        return path


def read_again(folder: Path, done: Sequence[Record], proposals: Sequence[Proposal]) -> list[Record]:
    """The records with the current oracles' readings; `proposals` are those of `edits_in_turn`, in order."""
    with_image = [record for record in done if record.image]
    scenes = [proposals[int(record.id[:5])].scene for record in with_image]
    images = [read_picture(folder / record.image) for record in with_image]
    placed = in_place(images, [render_pair(scene)[1] == 1 for scene in scenes])
    before = judge([source_picture(scene) for scene in scenes])
    fresh = {}
    for record, scene, was, now, located in zip(with_image, scenes, before, judge(images), placed, strict=True):
        verdict = oracle_verdict(scene, record.field, record.to_value, record.arm == "edit", now, located)
        fresh[record.id] = record.model_copy(
            update={**verdict._asdict(), "readable_fields": readable_fields(scene, was)}
        )
    return [fresh.get(record.id, record) for record in done]


class OracleVerdict(NamedTuple):
    """The oracles' verdict on an image, as a record stores it."""

    kept: bool
    shown: bool
    others: tuple[str, ...]


def oracle_verdict(
    scene: Scene, field: str, value: str, edited: bool, read_now: Readings, is_present: bool
) -> OracleVerdict:
    """`edited`: whether the image should show the scene's `field` as `value`, or the scene as it is."""
    expected = _expected_scene(scene, field, value, edited)
    return OracleVerdict(
        is_kept(scene, read_now, "label") and is_present,
        field != OTHER_FACTOR and is_kept(_expected_scene(scene, field, value, True), read_now, field),
        tuple(
            name
            for name in scene_factors(expected)
            if name not in (field if edited else "", "label") and not is_kept(expected, read_now, name)
        ),
    )


def _expected_scene(scene: Scene, field: str, value: str, edited: bool) -> Scene:
    return scene.changed(**{field: value}) if edited and field not in (OTHER_FACTOR, "label") else scene


def readable_fields(scene: Scene, read_before: Readings) -> tuple[str, ...]:
    return tuple(name for name in scene_factors(scene) if is_kept(scene, read_before, name))


def field_and_value(edit: Edit) -> tuple[str, str]:
    """The one field of the scene that an edit of its caption changes, and the new value, as the captions say them."""
    before, after = read(edit.caption), read(edit.new_caption)
    changed = [name for name, value in after.items() if before.get(name) != value]
    if len(changed) != 1 or not set(before) <= set(after) or changed[0] not in FACTOR_VALUES:
        return OTHER_FACTOR, edit.changes[0].to_value
    return changed[0], after[changed[0]]


def sheets(folder: Path, done: Sequence[Record]) -> list[Path]:
    """Contact sheets, source beside counterfactual: one per field, and the worst twenty of the accepted ones."""
    edits = [record for record in done if record.image and (record.arm == "edit" or record.method == "reconstruction")]
    chosen = {
        field: [record for record in edits if record.field == field][:_SHEET]
        for field in (*EDIT_FACTOR, "label", OTHER_FACTOR)
    }
    chosen["worst"] = sorted((record for record in edits if record.accepted), key=_badness, reverse=True)[:20]
    written = []
    for name, chosen_values in chosen.items():
        if not chosen_values:
            continue
        pictures = []
        for record in chosen_values:
            pictures.append((read_picture(folder / record.source), f"{record.label}: {record.from_value}"))
            marks = (
                f"{'' if record.kept else ' LOST'}{'' if record.shown else ' UNSHOWN'}{'' if record.accepted else ' x'}"
            )
            pictures.append((read_picture(folder / record.image), f"{record.to_value}{marks}"))
        written.append(folder / f"sheet-{name}.png")
        contact_sheet(pictures, 8, written[-1])
    return written


def _badness(record: Record) -> tuple[bool, bool, int, float]:
    """Sort key: class lost, edit not shown, most other changes, lowest score of the class check."""
    return not record.kept, not record.shown, len(record.changed_besides), -record.scores.get("label", 1.0)


def main() -> None:
    """The command."""
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes it started end, too
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    profile = load_profile(args.profile)
    parameters = json.loads(args.parameters)
    proposals = list(edits_in_turn(args.first, args.count, args.fields, args.split))
    try:
        settings = parameters_of(EDITORS[args.method], profile, parameters)
        done = records(args.out)
        if args.again:
            done = read_again(args.out, done, proposals)
            (args.out / RECORDS).write_text("".join(record.model_dump_json() + "\n" for record in done))
        elif next_edit(done) < len(proposals):
            with drawing(args.method, args.profile, parameters, NULL_EVERY) as draw:
                done += draw_records(Measurement(args.method, profile, draw, args.out), done, proposals, args)
    except ValueError as error:
        sys.exit(str(error))
    text = report(done, {"method": args.method} | {k: v for k, v in settings.items() if k != "thresholds"})
    (args.out / "report.txt").write_text(text)
    print(text)
    print("look at", *(path.name for path in sheets(args.out, done)), "in", args.out)


def draw_records(
    measurement: Measurement, done: Sequence[Record], proposals: Sequence[Proposal], args: argparse.Namespace
) -> list[Record]:
    """The records of the edits that are still to be rendered, written as they come."""
    fresh: list[Record] = []
    with (args.out / RECORDS).open("a") as lines:
        for place in range(next_edit(done), len(proposals), args.batch):
            batch = measurement.batch(place, proposals[place : place + args.batch])
            lines.writelines(record.model_dump_json() + "\n" for record in batch)
            lines.flush()
            fresh += batch
            print(
                f"{len(done) + len(fresh)} images, {min(place + args.batch, len(proposals))} of {len(proposals)} edits"
            )
    return fresh


def next_edit(done: Sequence[Record]) -> int:
    """The number of the first edit that has no record."""
    return 1 + max((int(record.id[:5]) for record in done), default=-1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=tuple(EDITORS), default="dillema")
    parser.add_argument("--count", type=int, default=1_000, help="edits to render")
    parser.add_argument(
        "--split",
        choices=("final-test", "calibration"),
        default="final-test",
        help="scenes; errors of the checks for a profile are measured on calibration ones",
    )
    parser.add_argument("--first", type=int, default=FIRST, help="the first scene of the split")
    parser.add_argument("--fields", nargs="+", choices=tuple(EDIT_FACTOR), default=FIELDS)
    parser.add_argument("--parameters", default="{}", help="of the method, as JSON; they override the profile's")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--profile", default="tiny")
    parser.add_argument("--again", action="store_true", help="only let the oracles read the images of --out again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
