"""How good the shipped generator's counterfactuals are, as the oracles see them, and what the checks let through.

    python -m tinyworld.measure_counterfactuals --count 1000 --out runs/measured

Each counterfactual has a source of its own, a scene of the split "final-test", and one edit, of one field in turn, with
the caption that a faultless language model would write. It is rendered, checked and judged as in a DILLEMA job with the
shipped profile. Every tenth source gets a null arm besides. Images, contact sheets, one line of JSON per image and
`report.txt` go to `--out`; started again with the same options, it goes on where it stopped. `--again` draws nothing
and lets the oracles, which may have learnt since, read the images of `--out` once more.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import cv2
import numpy as np
import torch
from PIL import Image

from evaluator_service.models_under_test.classification import ImageClassifier
from gateway.methods.dillema import DillemaParameters
from shared.profiles import Profile, load_profile
from shared.seeds import derive_seed
from tinyworld.contact_sheet import contact_sheet
from tinyworld.counterfactual_report import report
from tinyworld.factors import scene_factors
from tinyworld.measured import RECORDS, Record, records
from tinyworld.oracles import in_place, judge, kept
from tinyworld.pictures import Pixels, rendered
from tinyworld.trials import FIELDS, Drawing, Proposal, Studio, proposal, source_picture
from tinyworld.world import EDIT_FACTOR, Scene, Split, sample_scene, withheld

FIRST = 60_000  # final-test scenes from here on; the cards' figures rest on others
_NULL_EVERY = 10
_SHEET = 24  # counterfactuals on a contact sheet


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

    def __init__(self, profile: Profile, parameters: DillemaParameters, folder: Path) -> None:
        self._studio = Studio(profile, parameters)
        self._models = {
            name: ImageClassifier(weights, device="cpu")
            for name, weights in profile.evaluator.models_under_test.items()
        }
        self._folder = folder
        self._revision = profile.diffusion.base.info("diffusion").revision
        (folder / "images").mkdir(parents=True, exist_ok=True)

    def batch(self, first: int, edits: Sequence[Proposal]) -> list[Record]:
        """The records of some edits, numbered from `first`, and of the null arms that fall due among them."""
        arms: list[tuple[str, Literal["edit", "null"], Proposal]] = []
        for number, edit in enumerate(edits, first):
            arms.append((f"{number:05d}", "edit", edit))
            if number % _NULL_EVERY == 0:
                arms.append((f"{number:05d}n", "null", edit))
        sources = [source_picture(edit.scene) for _, _, edit in arms]
        drawings = [
            Drawing(
                source,
                edit.edit.new_caption if arm == "edit" else edit.edit.caption,
                edit.edit,
                derive_seed("measured", edit.scene.geometry_seed),
            )
            for (_, arm, edit), source in zip(arms, sources, strict=True)
        ]
        images = self._studio.draw(drawings)
        made = [(*arm, s, i) for arm, s, i in zip(arms, sources, images, strict=True) if i is not None]
        return self._records(made)

    def _records(self, made: list[tuple[str, Literal["edit", "null"], Proposal, Pixels, Pixels]]) -> list[Record]:
        images = [image for *_, image in made]
        judged = judge(images)
        placed = in_place(images, [rendered(edit.scene)[1] == 1 for _, _, edit, _, _ in made])
        named = {
            name: [
                tuple(model.classes[int(row.argmax())] for row in model.probabilities([source, image]))
                for *_, source, image in made
            ]
            for name, model in self._models.items()
        }
        done = []
        for place, (name, arm, edit, source, image) in enumerate(made):
            seen = _seen(edit, arm == "edit", judged[place], placed[place])
            ((verdict, scores),) = self._studio.check(
                edit.scene, source, [image], [edit.edit if arm == "edit" else None]
            )
            done.append(
                Record(
                    id=name,
                    arm=arm,
                    source=self._saved(f"{name[:5]}-source", source),
                    image=self._saved(name, image),
                    label=edit.scene.label,
                    field=edit.field,
                    factor=edit.factor,
                    from_value=str(getattr(edit.scene, edit.field)),
                    to_value=str(getattr(edit.wanted, edit.field)),
                    caption=edit.edit.caption,
                    new_caption=edit.edit.new_caption,
                    withheld=withheld(edit.wanted if arm == "edit" else edit.scene),
                    accepted=verdict.accepted,
                    check=verdict.check,
                    scores={check: round(score, 4) for check, score in scores.items()},
                    kept=seen.kept,
                    shown=seen.shown,
                    others=seen.others,
                    predicted={model: pairs[place] for model, pairs in named.items()},
                    weights=self._revision,
                )
            )
        return done

    def _saved(self, name: str, image: Pixels) -> str:
        path = f"images/{name}.png"
        Image.fromarray(image).save(self._folder / path)
        return path


def read_again(folder: Path, done: Sequence[Record], edits: Sequence[Proposal]) -> list[Record]:
    """The records with what the oracles of today read in the images; `edits` are those of `asked`, in order."""
    images = [_opened(folder / one.image) for one in done]
    own = [edits[int(one.id[:5])] for one in done]
    placed = in_place(images, [rendered(edit.scene)[1] == 1 for edit in own])
    return [
        one.model_copy(update=_seen(edit, one.arm == "edit", read, there)._asdict())
        for one, edit, read, there in zip(done, own, judge(images), placed, strict=True)
    ]


class _Seen(NamedTuple):
    """What a record says of the oracles' readings."""

    kept: bool
    shown: bool
    others: tuple[str, ...]


def _seen(edit: Proposal, edited: bool, read: dict[str, str | None], there: bool) -> _Seen:
    wanted = edit.wanted if edited else edit.scene
    return _Seen(
        kept(wanted, read, "label") and there,
        kept(edit.wanted, read, edit.field),
        _changed_besides(wanted, read, edit.field if edited else ""),
    )


def _changed_besides(wanted: Scene, judged: dict[str, str | None], field: str) -> tuple[str, ...]:
    return tuple(
        name for name in scene_factors(wanted) if name not in (field, "label") and not kept(wanted, judged, name)
    )


def sheets(folder: Path, done: Sequence[Record]) -> list[Path]:
    """Contact sheets, source beside counterfactual: one per field, and the worst twenty of the accepted ones."""
    edits = [one for one in done if one.arm == "edit"]
    chosen = {field: [one for one in edits if one.field == field][:_SHEET] for field in EDIT_FACTOR}
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
    return not one.kept, not one.shown, len(one.others), -one.scores.get("label", 1.0)


def _opened(path: Path) -> Pixels:
    return np.asarray(Image.open(path).convert("RGB"), np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000, help="edits to render")
    parser.add_argument("--region", choices=("keep", "full"), default="keep")
    parser.add_argument("--fields", nargs="+", choices=tuple(EDIT_FACTOR), default=FIELDS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--profile", default="tiny")
    parser.add_argument("--again", action="store_true", help="only let the oracles read the images of --out again")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    profile = load_profile(args.profile)
    parameters = DillemaParameters.model_validate(
        {
            **profile.methods.get("dillema", {}),
            "control_region": args.region,
            "thresholds": {check: dict(limits) for check, limits in profile.thresholds.items()},
        }
    )
    edits = list(asked(FIRST, args.count, args.fields))
    done = records(args.out)
    if args.again:
        done = read_again(args.out, done, edits)
        (args.out / RECORDS).write_text("".join(one.model_dump_json() + "\n" for one in done))
    else:
        done += drawn(Measurement(profile, parameters, args.out), done, edits, args)
    text = report(done, {"region": args.region, "steps": parameters.steps, "guidance": parameters.guidance})
    (args.out / "report.txt").write_text(text)
    print(text)
    print("look at", *(path.name for path in sheets(args.out, done)), "in", args.out)


def drawn(
    measurement: Measurement, done: Sequence[Record], edits: Sequence[Proposal], args: argparse.Namespace
) -> list[Record]:
    """The records of the edits that are still to be rendered, written as they come."""
    fresh: list[Record] = []
    start = 1 + max((int(one.id[:5]) for one in done), default=-1)
    with (args.out / RECORDS).open("a") as lines:
        for place in range(start, len(edits), args.batch):
            made = measurement.batch(place, edits[place : place + args.batch])
            lines.writelines(one.model_dump_json() + "\n" for one in made)
            lines.flush()
            fresh += made
            print(f"{len(done) + len(fresh)} images of {len(edits)} edits", flush=True)
    return fresh


if __name__ == "__main__":
    main()
