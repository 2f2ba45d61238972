"""LANCE's Table 3 by hand labels: success of caption edits by type, precision and recall of the filter of texts.

The CSV file does not show what the filter decided, so that people label blindly.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from shared.characters import csv_cell
from shared.problems import InvalidInput
from shared.schemas.effects import Rate
from shared.schemas.results import CounterfactualView
from shared.words.wording import percent

COLUMNS = ("edit", "type", "label", "caption", "new_caption", "success", "filter")
_Z = 1.959964  # of a 95 % interval
_ANSWERS = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class LabelledEdit:
    """A caption edit: whether the filter refused it, whether it should have, and whether it is the edit asked for."""

    factor: str
    refused: bool
    should_refuse: bool
    success: bool


def caption_edits(views: Iterable[CounterfactualView], per_factor: int) -> list[CounterfactualView]:
    """The first edits of each type in the order of their ids, which are digests and hence random.

    Edits of one change that have a new caption, each caption once.
    """
    chosen: defaultdict[str, list[CounterfactualView]] = defaultdict(list)
    seen = set[tuple[str, str, str]]()
    for view in sorted(views, key=lambda view: view.id):
        key = (view.source.id, view.caption, view.new_caption)
        if len(view.changes) != 1 or not view.new_caption or key in seen:
            continue
        seen.add(key)
        chosen[view.changes[0].factor].append(view)
    return [view for factor in sorted(chosen) for view in chosen[factor][:per_factor]]


def captions_csv(edits: Sequence[CounterfactualView]) -> str:
    """A line for each edit, with empty columns `success` and `filter` for people to fill in with yes or no."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for view in edits:
        texts = (view.source.ground_truth or "", view.caption, view.new_caption)
        writer.writerow([view.id, view.changes[0].factor, *map(csv_cell, texts), "", ""])
    return file.getvalue()


def read_labels(text: str, views: Iterable[CounterfactualView]) -> list[LabelledEdit]:
    """The labelled lines of the file; lines without labels are left out. Raises InvalidInput that names a line."""
    edits = {view.id: view for view in views}
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if missing := {"edit", "success", "filter"} - set(reader.fieldnames or ()):
        raise InvalidInput(
            f"the file of labels has no column {min(missing)!r}; fill in the one that this command wrote"
        )
    labelled = []
    for row in reader:
        answers = [(row[name] or "").strip().lower() for name in ("success", "filter")]
        if answers == ["", ""]:
            continue
        if row["edit"] not in edits:
            raise InvalidInput(f"line {reader.line_num}: the job has no edit {str(row['edit'])[:50]!r}")
        if not set(answers) <= set(_ANSWERS):
            raise InvalidInput(f"line {reader.line_num}: fill in both `success` and `filter` with yes or no")
        view = edits[row["edit"]]
        refused = view.image is None and not view.verdict.accepted
        success, should_refuse = (_ANSWERS[answer] for answer in answers)
        labelled.append(LabelledEdit(view.changes[0].factor, refused, should_refuse, success))
    if not labelled:
        raise InvalidInput("the file has no labels; fill in `success` and `filter` with yes or no")
    return labelled


def figures(edits: Sequence[LabelledEdit]) -> dict[str, Rate]:
    """Success of the edits; the filter's precision and recall, and the shares of all that it gets wrong."""
    refused = [edit for edit in edits if edit.refused]
    wrong = [edit for edit in edits if edit.should_refuse]
    return {
        "edit success": _rate([edit.success for edit in edits]),
        "filter precision": _rate([edit.should_refuse for edit in refused]),
        "filter recall": _rate([edit.refused for edit in wrong]),
        "false positives": _rate([edit.refused and not edit.should_refuse for edit in edits]),
        "false negatives": _rate([edit.should_refuse and not edit.refused for edit in edits]),
    }


def by_type(edits: Sequence[LabelledEdit]) -> Mapping[str, Mapping[str, Rate]]:
    """The figures of each type of edit, then of all."""
    types = sorted({edit.factor for edit in edits})
    parts = {name: figures([edit for edit in edits if edit.factor == name]) for name in types}
    return {**parts, "overall": figures(edits)}


def label_table(edits: Sequence[LabelledEdit]) -> Table:
    """The figures as LANCE prints them: a column for each type, with n and 95 % intervals."""
    parts = by_type(edits)
    table = Table("", *parts, box=None)
    for name in parts["overall"]:
        table.add_row(name, *(_cell(rates[name]) for rates in parts.values()))
    return table


def _cell(rate: Rate) -> str:
    if rate.value is None:
        return "–"
    return f"{percent(rate.value)} ({percent(rate.low)} to {percent(rate.high)}; n = {rate.n})"


def _rate(hits: Sequence[bool]) -> Rate:
    """A share with Wilson's 95 % interval."""
    count, n = sum(hits), len(hits)
    if not n:
        return Rate(count=0, n=0, value=None, low=0, high=1, sources=0)
    share, square = count / n, _Z**2 / n
    middle, half = share + square / 2, _Z * math.sqrt(share * (1 - share) / n + square / (4 * n))
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    return Rate(count=count, n=n, value=share, low=max(0.0, low), high=min(1.0, high), sources=n)
