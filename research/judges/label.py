"""Label generated images by hand, blind to oracles, checks and to whether an edit was requested.

    python -m research.judges.label sheets runs/measured --count 120 --out runs/to-label
    # look at runs/to-label/sheet-*.png and fill in runs/to-label/answers.txt
    python -m research.judges.label keep runs/to-label --name keep-1 --by "initials"
    python -m research.judges.label errors

Source and image are shown side by side, with two questions: is there one complete object of the source's class, at its
position in the source; and does the image show the requested value. `keep` joins the answers with the verdicts of
oracles and checks on the same images and writes `research/labels/NAME.jsonl.gz`, which is committed; `errors` prints
the oracles' errors. It works on any folder with `counterfactuals.jsonl` (`research.judges.records`).
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from research.judges.records import Record, read_picture, records
from research.pictures.rendered_once import Pixels
from research.pictures.sheet import contact_sheet
from research.statistics.rates import rate_text
from research.system.packed import read_text, write_text
from shared.chunks import chunks

LABELS = Path(__file__).parent.parent / "labels"
_PER_SHEET = 24
_ANSWER = re.compile(r"^(\d+)\b.*?:\s*([yn?])\s*([yn?])\s*$")
_MEANING = {"y": True, "n": False, "?": None}


class Label(BaseModel):
    """A person's answers on one image, None for "cannot say", with the verdicts of oracles and checks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str  # SHA-256 of the pixels
    by: str
    arm: str
    label: str
    field: str
    value: str
    class_kept: bool | None
    edit_shown: bool | None
    oracles_kept: bool
    oracles_shown: bool
    accepted: bool
    weights: str = ""  # which generator drew it


class SheetImage(BaseModel):
    """One numbered image of the sheets, with the folder and id of its record."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int
    folder: Path
    id: str


def shipped_labels() -> list[Label]:
    """All labels in the repository."""
    return [
        Label.model_validate_json(line)
        for path in sorted(LABELS.glob("*.jsonl.gz"))
        for line in read_text(path).splitlines()
    ]


def errors(labels: Sequence[Label]) -> dict[str, dict[bool, tuple[int, int]]]:
    """Question → verdict of oracles or checks → (images on which people agree, images that people could judge).

    For the checks, only edits count, because they do not refuse null arms.
    """
    edits = [label for label in labels if label.arm == "edit"]
    answers: dict[str, list[tuple[bool, bool | None]]] = {
        "oracles, class kept": [(label.oracles_kept, label.class_kept) for label in labels],
        "oracles, edit shown": [(label.oracles_shown, label.edit_shown) for label in labels],
        "checks, class kept and edit shown": [(label.accepted, image_valid(label)) for label in edits],
    }
    table: dict[str, dict[bool, tuple[int, int]]] = {}
    for question, pairs in answers.items():
        table[question] = {}
        for verdict in (True, False):
            judged_by_people = [person for automatic, person in pairs if automatic is verdict and person is not None]
            table[question][verdict] = (sum(person is verdict for person in judged_by_people), len(judged_by_people))
    return table


def image_valid(label: Label) -> bool | None:
    """Whether the class is kept and the edit shown; None if the labeller could not say."""
    if label.class_kept is None or label.edit_shown is None:
        return False if False in (label.class_kept, label.edit_shown) else None
    return label.class_kept and label.edit_shown


def error_lines(labels: Sequence[Label]) -> list[str]:
    """Sentences on the oracles' error on generated images, per question."""
    if not labels:
        return ["nobody has labelled images yet (python -m research.judges.label): the oracles' error is not known"]
    return [
        f"{question}: of those called {word}, people agree on {rate_text(*table[verdict])}"
        for question, table in errors(labels).items()
        for verdict, word in ((True, "right"), (False, "wrong"))
    ]


def write_sheets(folders: Sequence[Path], count: int, seed: int, out: Path) -> None:
    """Numbered contact sheets of a random sample of the folders' images, and the file to fill in."""
    candidates = [(folder, record) for folder in folders for record in records(folder) if record.image]
    if not candidates:
        sys.exit("there are no images in these folders; run python -m research.measure.counterfactuals first")
    order = np.random.default_rng(seed).permutation(len(candidates))[:count]
    out.mkdir(parents=True, exist_ok=True)
    questions, lines = [], ["# number, class, field and value, then two letters: class kept, value shown (y, n or ?)"]
    pictures: list[tuple[Pixels, str]] = []
    for number, place in enumerate(order):
        folder, record = candidates[int(place)]
        questions.append(SheetImage(number=number, folder=folder.absolute(), id=record.id))
        lines.append(f"{number:03d} {record.label}, {record.field} {record.to_value}: ")
        pictures += [
            (read_picture(folder / record.source), f"{number:03d} source: {record.label}"),
            (read_picture(folder / record.image), f"{number:03d} {record.field}: {record.to_value}?"),
        ]
    for sheet, chunk in enumerate(chunks(pictures, 2 * _PER_SHEET)):
        contact_sheet(chunk, 8, out / f"sheet-{sheet:02d}.png", scale=2)
    (out / "questions.jsonl").write_text("".join(question.model_dump_json() + "\n" for question in questions))
    (out / "answers.txt").write_text("\n".join(lines) + "\n")


def read_answers(text: str) -> dict[int, tuple[bool | None, bool | None]]:
    """Number → (class kept, value shown). Raises ValueError for an answer other than y, n and ?."""
    answers = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _ANSWER.match(line)
        if match is None:
            raise ValueError(f"this line wants two of y, n and ? after its colon: {line!r}")
        answers[int(match[1])] = (_MEANING[match[2]], _MEANING[match[3]])
    return answers


def join(out: Path, by: str) -> list[Label]:
    """The answers of a folder of sheets, with the verdicts of oracles and checks."""
    answers = read_answers((out / "answers.txt").read_text())
    questions = [SheetImage.model_validate_json(line) for line in (out / "questions.jsonl").read_text().splitlines()]
    records_of_folders = {
        folder: {record.id: record for record in records(folder)}
        for folder in {question.folder for question in questions}
    }
    return [
        _label(question.folder, records_of_folders[question.folder][question.id], answers[question.number], by)
        for question in questions
        if question.number in answers
    ]


def _label(folder: Path, record: Record, answer: tuple[bool | None, bool | None], by: str) -> Label:
    return Label(
        image=hashlib.sha256(read_picture(folder / record.image).tobytes()).hexdigest(),
        by=by,
        arm=record.arm,
        label=record.label,
        field=record.field,
        value=record.to_value,
        class_kept=answer[0],
        edit_shown=answer[1],
        oracles_kept=record.kept,
        oracles_shown=record.shown,
        accepted=record.accepted,
        weights=record.weights,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sheets = commands.add_parser("sheets", help="draw a blind sample")
    sheets.add_argument("folders", nargs="+", type=Path)
    sheets.add_argument("--count", type=int, default=120)
    sheets.add_argument("--seed", type=int, default=0)
    sheets.add_argument("--out", type=Path, required=True)
    keep = commands.add_parser("keep", help="put the answers among the repository's labels")
    keep.add_argument("out", type=Path)
    keep.add_argument("--name", required=True)
    keep.add_argument("--by", required=True, help="who looked")
    commands.add_parser("errors", help="how far the oracles are to be believed")
    args = parser.parse_args()
    if args.command == "sheets":
        write_sheets(args.folders, args.count, args.seed, args.out)
    elif args.command == "keep":
        LABELS.mkdir(exist_ok=True)
        path = LABELS / f"{args.name}.jsonl.gz"
        lines = [label.model_dump_json() + "\n" for label in join(args.out, args.by)]
        write_text(path, "".join(lines))
        print(f"{path}: {len(lines)} labels")
    else:
        print("\n".join(error_lines(shipped_labels())))


if __name__ == "__main__":
    main()
