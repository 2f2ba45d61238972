"""Counters in a job's row, which give its progress without reading its images and counterfactuals.

`Job.counts` holds, of source images: `images`, `labelled` (those with ground truth), `done`, `failed`, `cancelled`; and
of the counterfactuals of each method: `METHOD/proposed`, `METHOD/rendered`, `METHOD/accepted`, `METHOD/null`,
`METHOD/sham` and `METHOD/rejected/CHECK`. A missing counter is 0. `add_event` changes them in the statement that
numbers the event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Text, cast, func, select
from sqlalchemy.orm import Session

from gateway.database.tables import Counterfactual, Job, SourceImage


def edit_counts(method: str, arm: str, check: str, rendered: int, number: int = 1) -> Counter[str]:
    """Counters of `number` counterfactuals, `rendered` of them with an image; `check` refused them, or ""."""
    if arm != "edit":
        return Counter({f"{method}/{arm}": number})
    fate = f"{method}/rejected/{check}" if check else f"{method}/accepted"
    return Counter({f"{method}/proposed": number, f"{method}/rendered": rendered, fate: number})


def total(counts: Iterable[Counter[str]]) -> Counter[str]:
    """The sum of counters."""
    sums: Counter[str] = Counter()
    for count in counts:
        sums.update(count)
    return sums


def count_rows(session: Session, job_id: str) -> Counter[str]:
    """All counters of a job, from its rows. For a job of copied rows; reads the whole job."""
    s, c = SourceImage, Counterfactual
    images = select(s.state, func.count(), func.count(s.ground_truth), func.count(s.mask_classes))
    edits = select(c.method, c.arm, c.check, func.count(c.image_digest), func.count())
    counts: Counter[str] = Counter()
    for state, number, labels, places in session.execute(images.where(s.job_id == job_id).group_by(s.state)):
        counts.update({"images": number, "labelled": labels + places, state: number})
    for key in ("pending", "leased"):
        del counts[key]
    rows = session.execute(edits.where(c.job_id == job_id).group_by(c.method, c.arm, c.check))
    return counts + total(edit_counts(*row) for row in rows)


def sum_of(session: Session, counts: Mapping[str, int]) -> ColumnElement[Any]:
    """SQL: the column `Job.counts` with these numbers added."""
    values = {name: func.coalesce(Job.counts[name].as_integer(), 0) + number for name, number in counts.items()}
    if session.get_bind().dialect.name == "sqlite":
        paths = [part for name, value in values.items() for part in (f'$."{name}"', value)]
        return func.json_set(Job.counts, *paths)
    pairs = [part for name, value in values.items() for part in (cast(name, Text), value)]
    return Job.counts.op("||")(func.jsonb_build_object(*pairs))
