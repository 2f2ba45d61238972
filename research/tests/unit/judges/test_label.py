"""Labelling by hand: the sheets are blind, answers are parsed strictly, errors are counted per answer."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image

from research.judges.label import Label, error_lines, errors, join, read_answers, shipped_labels, write_sheets
from research.judges.records import RECORDS, Record
from research.measure.counterfactual_report import report


def record(number: int, arm: Literal["edit", "null"] = "edit", **changes: object) -> Record:
    values: dict[str, object] = {
        "id": f"{number:05d}",
        "arm": arm,
        "source": "source.png",
        "image": f"{number}.png",
        "label": "bus",
        "field": "time",
        "factor": "weather",
        "from_value": "day",
        "to_value": "night",
        "caption": "A bus by day.",
        "new_caption": "A bus at night.",
        "withheld": False,
        "accepted": True,
        "check": "",
        "scores": {"label": 0.9},
        "kept": True,
        "shown": arm == "edit",
        "others": (),
        "predicted": {"model": ("bus", "bus")},
        "weights": "0123",
    }
    return Record.model_validate(values | changes)


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A folder as a measuring command leaves it: nine edits and three null arms."""
    folder = tmp_path / "measured"
    folder.mkdir()
    done = [record(number, "null" if number % 4 == 0 else "edit", kept=number != 5) for number in range(12)]
    for number, row in enumerate(done):
        Image.fromarray(np.full((128, 128, 3), number, np.uint8)).save(folder / row.image)
    Image.fromarray(np.zeros((128, 128, 3), np.uint8)).save(folder / "source.png")
    (folder / RECORDS).write_text("".join(row.model_dump_json() + "\n" for row in done))
    return folder


def test_records_of_older_files_are_read() -> None:
    assert record(0, known=("label", "time")) == record(0, readable_fields=("label", "time"))


def test_the_sheets_and_the_form_tell_neither_the_answers_nor_the_arm(measured: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheets"
    write_sheets([measured], 12, 0, out)
    form = (out / "answers.txt").read_text()
    for telling in ("null", "edit", "accepted", "True"):
        assert telling not in form
    assert form.count("bus, time night: ") == 12
    assert sorted(path.name for path in out.glob("*.png")) == ["sheet-00.png"]


def test_answers_are_joined_with_the_oracles_judgements(measured: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheets"
    write_sheets([measured], 10, 3, out)
    form = (out / "answers.txt").read_text()
    (out / "answers.txt").write_text(form.replace("night: ", "night: y n"))
    labels = join(out, "somebody")
    assert len(labels) == 10
    assert len({label.image for label in labels}) == 10
    assert {(label.class_kept, label.edit_shown, label.by) for label in labels} == {(True, False, "somebody")}
    table = errors(labels)
    kept_by_oracles = sum(label.oracles_kept for label in labels)
    assert table["oracles, class kept"] == {True: (kept_by_oracles, kept_by_oracles), False: (0, 10 - kept_by_oracles)}
    edits = sum(label.arm == "edit" for label in labels)
    assert table["checks, class kept and edit shown"] == {True: (0, edits), False: (0, 0)}, "null arms are not asked"
    assert "people agree" in error_lines(labels)[0]


def test_an_unanswered_line_is_refused() -> None:
    assert read_answers("# form\n003 bus, time night: y ?\n") == {3: (True, None)}
    with pytest.raises(ValueError, match="two of y, n and"):
        read_answers("003 bus, time night: \n")


def test_undecided_labels_count_neither_way() -> None:
    label = Label(
        image="0", by="x", arm="edit", label="bus", field="time", value="night", class_kept=None, edit_shown=True,
        oracles_kept=True, oracles_shown=True, accepted=True,
    )  # fmt: skip
    assert errors([label])["oracles, class kept"][True] == (0, 0)
    assert errors([label])["oracles, edit shown"][True] == (1, 1)
    assert errors([label])["checks, class kept and edit shown"][True] == (0, 0)
    lost = label.model_copy(update={"edit_shown": False})
    assert errors([lost])["checks, class kept and edit shown"][True] == (0, 1)


def test_shipped_labels_can_be_read_and_are_of_different_images() -> None:
    labels = shipped_labels()
    assert len({(label.image, label.by, label.field) for label in labels}) == len(labels)


def test_the_report_parts_arms_and_combinations() -> None:
    done = [
        *(
            record(number, accepted=number < 6, check="" if number < 6 else "label", kept=number != 0)
            for number in range(8)
        ),
        record(8, withheld=True, shown=False),
        record(9, predicted={"model": ("bus", "car")}),
        record(10, "null"),
    ]
    text = report(done, {"region": "keep"})
    assert text.startswith("10 counterfactuals")
    assert "== combinations withheld from it (1)" in text
    assert "== null arms (1)" in text
    everything = next(line for line in text.splitlines() if line.startswith("all "))
    assert "80.0% (8 of 10;" in everything, "yield"
    assert "87.5% (7 of 8;" in everything, "label kept among accepted"
    assert "100.0% (1 of 1;" in everything, "kept among accepted and flipped"


def test_what_the_null_arm_lost_is_not_charged_to_the_edit() -> None:
    edits = [
        record(0, source="0", kept=False, others=("colour",), readable_fields=("label", "colour", "size", "time")),
        record(1, source="1", kept=False, others=("size",), readable_fields=("label", "colour", "size")),
    ]
    nulls = [
        record(0, "null", source="0", kept=False, others=("colour",), readable_fields=("label", "colour", "size")),
        record(1, "null", source="1", others=(), readable_fields=("label", "colour", "size")),
    ]
    (line,) = [line for line in report(edits + nulls, {}).split("same source\n")[1].splitlines() if line[:3] == "all"]
    assert "(0 of 1;" in line.split("|")[0], "source 0 lost its class in the null arm already"
    assert "(2 of 3;" in line.split("|")[1], "so did it its colour; time is what was edited"
