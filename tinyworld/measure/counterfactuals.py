"""How good the counterfactuals of a method's editor are, as the oracles see them, and what its checks let through.

    python -m tinyworld.measure.counterfactuals --count 1000 --out runs/keep
    python -m tinyworld.measure.counterfactuals --method lance --count 1000 --out runs/lance

Each counterfactual has a source of its own, a scene of the split "final-test", and one edit, of one field in turn, with
the caption that a faultless language model would write (`lance-r` draws its words itself). It is rendered, checked and
judged as in a job with the shipped profile. DILLEMA draws a null arm for every tenth source, the others for each;
`reconstruction` draws nothing else, and is held against the originals. Images, contact sheets, one line of JSON per
image and `report.txt` go to `--out`; started again with the same options, it goes on where it stopped. `--again` draws
nothing and lets the oracles, which may have learnt since, read the images of `--out` once more.
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

from evaluator_service.models_under_test.classification import ImageClassifier
from gateway.methods.counterfactual import Edit
from shared.profiles import Profile, load_profile
from tinyworld.judges.editors import EDITORS, Draw, Made, drawing, parameters_of
from tinyworld.judges.oracles import in_place, judge, kept
from tinyworld.judges.trials import FIELDS, Proposal, proposal, source_picture
from tinyworld.measure.counterfactual_report import report
from tinyworld.measure.records import RECORDS, Record, records
from tinyworld.objects.captions import read
from tinyworld.objects.contact_sheet import contact_sheet
from tinyworld.objects.factors import scene_factors
from tinyworld.objects.pictures import Pixels, rendered
from tinyworld.objects.world import EDIT_FACTOR, FACTOR_VALUES, Scene, Split, sample_scene, withheld

FIRST = 60_000  # final-test scenes from here on; the cards' figures rest on others
NULL_EVERY = 10  # scenes, for editors whose null arms cost as much as an edit
OTHER = "other"  # the field of an edit that changes none of the scene's
_SHEET = 24  # counterfactuals on a contact sheet
Judged = Mapping[str, str | None]


def asked(first: int, count: int, fields: Sequence[str], split: Split = "final-test") -> Iterator[Proposal]:
    """`count` edits, the fields in turn, each of the next scene that shows the field."""
    index = first
    for number in range(count):
        field = fields[number % len(fields)]
        while True:
            scene = sample_scene(split, index)
            index += 1
            if found := proposal(scene, field, np.random.default_rng((0xED, scene.geometry_seed))):
                yield found
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
        made = self._draw(list(numbered.items()))
        images = [one.image for one in made if one.image is not None]
        before = judge([source_picture(one.scene) for one in proposals])
        read_before = dict(zip(numbered, before, strict=True))
        read_after = iter(judge(images))
        scenes = [numbered[one.number].scene for one in made if one.image is not None]
        placed = iter(in_place(images, [rendered(scene)[1] == 1 for scene in scenes]))
        done = []
        for one in made:
            seen = None if one.image is None else (next(read_after), next(placed))
            done.append(self._record(numbered[one.number].scene, one, read_before[one.number], seen))
        return done

    def _record(self, scene: Scene, one: Made, before: Judged, seen: tuple[Judged, bool] | None) -> Record:
        name = f"{one.number:05d}{'' if one.kind == 'edit' else 'n'}"
        field, to_value = field_and_value(one.edit)
        wanted = _wanted(scene, field, to_value, one.kind == "edit")
        found = Seen(False, False, ()) if seen is None else seen_of(scene, field, to_value, one.kind == "edit", *seen)
        return Record(
            id=name,
            arm=one.kind,
            source=self._saved(f"{name[:5]}-source", one.source),
            image="" if one.image is None else self._saved(name, one.image),
            label=scene.label,
            field=field,
            factor=one.edit.changes[0].factor,
            from_value=one.edit.changes[0].from_value if field == OTHER else str(getattr(scene, field)),
            to_value=to_value,
            caption=one.edit.caption,
            new_caption=one.edit.new_caption,
            withheld=withheld(wanted),
            accepted=one.verdict.accepted,
            check=one.verdict.check,
            scores={check: round(score, 4) for check, score in one.scores.items()},
            **found._asdict(),
            known=known_of(scene, before),
            predicted={} if one.image is None else self._predicted(one.source, one.image),
            weights=self._revision,
            method=self._method,
            evaluations=one.evaluations,
            attention=None if one.attention is None else round(one.attention, 4),
        )

    def _predicted(self, source: Pixels, image: Pixels) -> dict[str, tuple[str, str]]:
        named = {}
        for name, model in self._models.items():
            before, after = (model.classes[int(row.argmax())] for row in model.probabilities([source, image]))
            named[name] = (before, after)
        return named

    def _saved(self, name: str, image: Pixels) -> str:
        path = f"images/{name}.png"
        Image.fromarray(image).save(self._folder / path)
        return path


def read_again(folder: Path, done: Sequence[Record], proposals: Sequence[Proposal]) -> list[Record]:
    """The records with what the oracles of today read in the images; `proposals` are those of `asked`, in order."""
    shown = [one for one in done if one.image]
    scenes = [proposals[int(one.id[:5])].scene for one in shown]
    images = [_opened(folder / one.image) for one in shown]
    placed = in_place(images, [rendered(scene)[1] == 1 for scene in scenes])
    before = judge([source_picture(scene) for scene in scenes])
    fresh = {}
    for one, scene, was, now, there in zip(shown, scenes, before, judge(images), placed, strict=True):
        seen = seen_of(scene, one.field, one.to_value, one.arm == "edit", now, there)
        fresh[one.id] = one.model_copy(update={**seen._asdict(), "known": known_of(scene, was)})
    return [fresh.get(one.id, one) for one in done]


class Seen(NamedTuple):
    """What a record says of the oracles' readings."""

    kept: bool
    shown: bool
    others: tuple[str, ...]


def seen_of(scene: Scene, field: str, value: str, edited: bool, read_now: Judged, there: bool) -> Seen:
    """`edited`: whether the image should show the scene's `field` as `value`, or the scene as it is."""
    wanted = _wanted(scene, field, value, edited)
    return Seen(
        kept(scene, read_now, "label") and there,
        field != OTHER and kept(_wanted(scene, field, value, True), read_now, field),
        tuple(
            name
            for name in scene_factors(wanted)
            if name not in (field if edited else "", "label") and not kept(wanted, read_now, name)
        ),
    )


def _wanted(scene: Scene, field: str, value: str, edited: bool) -> Scene:
    return scene.changed(**{field: value}) if edited and field not in (OTHER, "label") else scene


def known_of(scene: Scene, read_before: Judged) -> tuple[str, ...]:
    return tuple(name for name in scene_factors(scene) if kept(scene, read_before, name))


def field_and_value(edit: Edit) -> tuple[str, str]:
    """The one field of the scene that an edit of its caption changes, and the new value, as the captions say them."""
    before, after = read(edit.caption), read(edit.new_caption)
    changed = [name for name, value in after.items() if before.get(name) != value]
    if len(changed) != 1 or not set(before) <= set(after) or changed[0] not in FACTOR_VALUES:
        return OTHER, edit.changes[0].to_value
    return changed[0], after[changed[0]]


def sheets(folder: Path, done: Sequence[Record]) -> list[Path]:
    """Contact sheets, source beside counterfactual: one per field, and the worst twenty of the accepted ones."""
    edits = [one for one in done if one.image and (one.arm == "edit" or one.method == "reconstruction")]
    chosen = {field: [one for one in edits if one.field == field][:_SHEET] for field in (*EDIT_FACTOR, "label", OTHER)}
    chosen["worst"] = sorted((one for one in edits if one.accepted), key=_badness, reverse=True)[:20]
    written = []
    for name, some in chosen.items():
        if not some:
            continue
        pictures = []
        for one in some:
            pictures.append((_opened(folder / one.source), f"{one.label}: {one.from_value}"))
            marks = f"{'' if one.kept else ' LOST'}{'' if one.shown else ' UNSHOWN'}{'' if one.accepted else ' x'}"
            pictures.append((_opened(folder / one.image), f"{one.to_value}{marks}"))
        written.append(folder / f"sheet-{name}.png")
        contact_sheet(pictures, 8, written[-1])
    return written


def _badness(one: Record) -> tuple[bool, bool, int, float]:
    """Class lost, edit not shown, most else changed, then what the check of the class likes least."""
    return not one.kept, not one.shown, len(one.changed_besides), -one.scores.get("label", 1.0)


def _opened(path: Path) -> Pixels:
    return np.asarray(Image.open(path).convert("RGB"), np.uint8)


def main() -> None:
    """The command."""
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes it started end, too
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    profile = load_profile(args.profile)
    given = json.loads(args.parameters)
    proposals = list(asked(FIRST, args.count, args.fields))
    try:
        settings = parameters_of(EDITORS[args.method], profile, given)
        done = records(args.out)
        if args.again:
            done = read_again(args.out, done, proposals)
            (args.out / RECORDS).write_text("".join(one.model_dump_json() + "\n" for one in done))
        elif _next(done) < len(proposals):
            with drawing(args.method, args.profile, given, NULL_EVERY) as draw:
                done += drawn(Measurement(args.method, profile, draw, args.out), done, proposals, args)
    except ValueError as error:
        sys.exit(str(error))
    text = report(done, {"method": args.method} | {k: v for k, v in settings.items() if k != "thresholds"})
    (args.out / "report.txt").write_text(text)
    print(text)
    print("look at", *(path.name for path in sheets(args.out, done)), "in", args.out)


def drawn(
    measurement: Measurement, done: Sequence[Record], proposals: Sequence[Proposal], args: argparse.Namespace
) -> list[Record]:
    """The records of the edits that are still to be rendered, written as they come."""
    fresh: list[Record] = []
    with (args.out / RECORDS).open("a") as lines:
        for place in range(_next(done), len(proposals), args.batch):
            made = measurement.batch(place, proposals[place : place + args.batch])
            lines.writelines(one.model_dump_json() + "\n" for one in made)
            lines.flush()
            fresh += made
            print(
                f"{len(done) + len(fresh)} images, {min(place + args.batch, len(proposals))} of {len(proposals)} edits"
            )
    return fresh


def _next(done: Sequence[Record]) -> int:
    return 1 + max((int(one.id[:5]) for one in done), default=-1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=tuple(EDITORS), default="dillema")
    parser.add_argument("--count", type=int, default=1_000, help="edits to render")
    parser.add_argument("--fields", nargs="+", choices=tuple(EDIT_FACTOR), default=FIELDS)
    parser.add_argument("--parameters", default="{}", help="of the method, as JSON; they override the profile's")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--profile", default="tiny")
    parser.add_argument("--again", action="store_true", help="only let the oracles read the images of --out again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
