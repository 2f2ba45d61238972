"""Label generated images by looking, blind to what oracles and checks say and to whether an edit was asked for.

    python -m tinyworld.judges.label sheets runs/measured --count 120 --out runs/to-label
    # look at runs/to-label/sheet-*.png and fill in runs/to-label/answers.txt
    python -m tinyworld.judges.label keep runs/to-label --name keep-1 --by "initials"
    python -m tinyworld.judges.label errors

Source and image stand side by side, with two questions: is there one whole object of the source's class, where the
source has it; and does the picture show the value that is asked for. `keep` joins the answers with what oracles and
checks said of the same images and writes `tinyworld/labels/NAME.jsonl`, which is committed; `errors` prints how far the
oracles are to be believed. Works on any folder with `counterfactuals.jsonl` (`measured.py`).
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict

from gateway.analysis.certainty import wilson
from tinyworld.measure.records import Record, records
from tinyworld.objects.contact_sheet import contact_sheet
from tinyworld.objects.pictures import Pixels

LABELS = Path(__file__).parent.parent / "labels"
_PER_SHEET = 24
_ANSWER = re.compile(r"^(\d+)\b.*?:\s*([yn?])\s*([yn?])\s*$")
_MEANING = {"y": True, "n": False, "?": None}


class Label(BaseModel):
    """A person's answers on one image, None for "cannot say", and what oracles and checks had said of it."""

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


class Question(BaseModel):
    """One numbered image of the sheets: where its record is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int
    folder: Path
    id: str


def shipped_labels() -> list[Label]:
    """All labels in the repository."""
    return [
        Label.model_validate_json(line)
        for path in sorted(LABELS.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def errors(labels: Sequence[Label]) -> dict[str, dict[bool, tuple[int, int]]]:
    """Question → what oracles or checks say → how many of such images people agree on, of those that they could judge.

    The checks are asked only about edits: they refuse no null arm.
    """
    edits = [one for one in labels if one.arm == "edit"]
    answers: dict[str, list[tuple[bool, bool | None]]] = {
        "oracles, class kept": [(one.oracles_kept, one.class_kept) for one in labels],
        "oracles, edit shown": [(one.oracles_shown, one.edit_shown) for one in labels],
        "checks, class kept and edit shown": [(one.accepted, _both(one)) for one in edits],
    }
    table: dict[str, dict[bool, tuple[int, int]]] = {}
    for question, pairs in answers.items():
        table[question] = {}
        for said in (True, False):
            known = [person for automatic, person in pairs if automatic is said and person is not None]
            table[question][said] = (sum(person is said for person in known), len(known))
    return table


def _both(one: Label) -> bool | None:
    if one.class_kept is None or one.edit_shown is None:
        return False if False in (one.class_kept, one.edit_shown) else None
    return one.class_kept and one.edit_shown


def error_lines(labels: Sequence[Label]) -> list[str]:
    """The oracles' error on generated images, per question, in words."""
    if not labels:
        return ["nobody has labelled images yet (python -m tinyworld.judges.label): the oracles' error is not known"]
    return [
        f"{question}: of those called {word}, people agree on {in_words(*table[said])}"
        for question, table in errors(labels).items()
        for said, word in ((True, "right"), (False, "wrong"))
    ]


def in_words(count: int, n: int) -> str:
    """A rate as "93.8% (30 of 32; 80% to 98%)", with its Wilson interval."""
    rate = wilson(count, n)
    if rate.value is None:
        return "none"
    return f"{rate.value:.1%} ({count} of {n}; {rate.low:.0%} to {rate.high:.0%})"


def write_sheets(folders: Sequence[Path], count: int, seed: int, out: Path) -> None:
    """Numbered contact sheets of a random sample of the folders' images, and the file to fill in."""
    found = [(folder, one) for folder in folders for one in records(folder) if one.image]
    if not found:
        sys.exit("there are no images in these folders; run python -m tinyworld.measure.counterfactuals first")
    order = np.random.default_rng(seed).permutation(len(found))[:count]
    out.mkdir(parents=True, exist_ok=True)
    questions, lines = [], ["# number, class, field and value, then two letters: class kept, value shown (y, n or ?)"]
    pictures: list[tuple[Pixels, str]] = []
    for number, place in enumerate(order):
        folder, one = found[int(place)]
        questions.append(Question(number=number, folder=folder.absolute(), id=one.id))
        lines.append(f"{number:03d} {one.label}, {one.field} {one.to_value}: ")
        pictures += [
            (_opened(folder / one.source), f"{number:03d} source: {one.label}"),
            (_opened(folder / one.image), f"{number:03d} {one.field}: {one.to_value}?"),
        ]
    for start in range(0, len(pictures), 2 * _PER_SHEET):
        path = out / f"sheet-{start // (2 * _PER_SHEET):02d}.png"
        contact_sheet(pictures[start : start + 2 * _PER_SHEET], 8, path, scale=2)
    (out / "questions.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in questions))
    (out / "answers.txt").write_text("\n".join(lines) + "\n")


def read_answers(text: str) -> dict[int, tuple[bool | None, bool | None]]:
    """Number → (class kept, value shown). Raises ValueError for a line that says neither y, n nor ?."""
    answers = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _ANSWER.match(line)
        if match is None:
            raise ValueError(f"this line wants two of y, n and ? after its colon: {line!r}")
        answers[int(match[1])] = (_MEANING[match[2]], _MEANING[match[3]])
    return answers


def joined(out: Path, by: str) -> list[Label]:
    """The answers of a folder of sheets, with what oracles and checks had said."""
    answers = read_answers((out / "answers.txt").read_text())
    questions = [Question.model_validate_json(line) for line in (out / "questions.jsonl").read_text().splitlines()]
    known = {folder: {one.id: one for one in records(folder)} for folder in {one.folder for one in questions}}
    return [
        _label(question.folder, known[question.folder][question.id], answers[question.number], by)
        for question in questions
        if question.number in answers
    ]


def _label(folder: Path, one: Record, answer: tuple[bool | None, bool | None], by: str) -> Label:
    return Label(
        image=hashlib.sha256(_opened(folder / one.image).tobytes()).hexdigest(),
        by=by,
        arm=one.arm,
        label=one.label,
        field=one.field,
        value=one.to_value,
        class_kept=answer[0],
        edit_shown=answer[1],
        oracles_kept=one.kept,
        oracles_shown=one.shown,
        accepted=one.accepted,
        weights=one.weights,
    )


def _opened(path: Path) -> Pixels:
    return np.asarray(Image.open(path).convert("RGB"), np.uint8)


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
        path = LABELS / f"{args.name}.jsonl"
        path.write_text("".join(one.model_dump_json() + "\n" for one in joined(args.out, args.by)))
        print(f"{path}: {len(path.read_text().splitlines())} labels")
    else:
        print("\n".join(error_lines(shipped_labels())))


if __name__ == "__main__":
    main()
