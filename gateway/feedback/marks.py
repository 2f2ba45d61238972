"""Marks of own images: what there is to mark for the findings of a job's report, and how people marked it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.sessions import upsert
from gateway.database.table_base import utc_now
from gateway.database.tables import OwnImageMark, Report, SourceImage
from gateway.feedback.reviews import majority
from gateway.jobs import jobs
from shared.chunks import chunks
from shared.problems import InvalidInput, NotFound
from shared.schemas.own_images import (
    LONGEST_MARKED_VALUE,
    ImageToMark,
    MarkRequest,
    MarkView,
    OwnImagesView,
    ShownMark,
    ValueToMark,
)

_MOST_DIGESTS = 500  # of a query


class Value(NamedTuple):
    """A value of a factor, such as night of weather."""

    factor: str
    name: str


class Marked(NamedTuple):
    """What a mark is about: an image, by digest, and a value of a factor."""

    image: str
    factor: str
    value: str


class NextMark(NamedTuple):
    """The next image for a reviewer and its value (None if none is left), with their mark of it if they have one.

    `before`: the image and value that they marked last. `marked` and `total` count the images of the value.
    """

    value: Value | None
    image: str | None
    mark: MarkView | None
    before: tuple[Value, str] | None
    marked: int
    total: int


def listing(session: Session, owner: str, job_id: str) -> OwnImagesView:
    """What to mark for the findings of a job's report, with all marks. Raises NotFound."""
    jobs.find(session, owner, job_id)
    marks: defaultdict[tuple[Value, str], list[MarkView]] = defaultdict(list)
    rows = select(OwnImageMark).where(OwnImageMark.job_id == job_id)
    for row in session.scalars(rows.order_by(OwnImageMark.marked_at, OwnImageMark.reviewer)):
        marks[Value(row.factor, row.value), row.image_digest].append(_view(row))
    to_mark = _to_mark(session, job_id)
    digests = {
        value: list(dict.fromkeys([*images, *(image for of, image in marks if of == value)]))
        for value, (_, images) in to_mark.items()
    }
    names = _file_names(session, job_id, {digest for listed in digests.values() for digest in listed})
    values = []
    for value, (classes, _) in to_mark.items():
        listed = [
            ImageToMark(image=image, file_name=names[image], marks=marks[value, image]) for image in digests[value]
        ]
        values.append(ValueToMark(factor=value.factor, value=value.name, classes=classes, images=listed))
    return OwnImagesView(job=job_id, values=values)


def load_marks(session: Session, job_id: str) -> dict[Marked, ShownMark]:
    """The majority mark of each image among sure reviewers; `unsure` for a tie, and if all were unsure."""
    votes: defaultdict[Marked, list[bool]] = defaultdict(list)
    for row in session.scalars(select(OwnImageMark).where(OwnImageMark.job_id == job_id)):
        sure = votes[Marked(row.image_digest, row.factor, row.value)]
        if row.shows != "unsure":
            sure.append(row.shows == "yes")
    words: dict[bool | None, ShownMark] = {True: "yes", False: "no", None: "unsure"}
    return {marked: words[majority(sure)] for marked, sure in votes.items()}


def record(session: Session, owner: str, reviewer: str, job_id: str, image: str, request: MarkRequest) -> MarkView:
    """Store a reviewer's mark of a source image. Replaces their earlier mark of it for the same value.

    Raises NotFound, and InvalidInput for a value that no finding of the report is compared by.
    """
    jobs.find(session, owner, job_id)
    if image not in _file_names(session, job_id, {image}):
        raise NotFound(f"job {job_id} has no source image {image}")
    values = _to_mark(session, job_id)
    if (request.factor, request.value) not in values:
        known = ", ".join(f"{value.name} ({value.factor})" for value in values) or "none yet"
        raise InvalidInput(
            f"no finding of this job is compared with own images by {request.value} ({request.factor}); "
            f"those to mark are: {known}"
        )
    key = {
        "job_id": job_id,
        "image_digest": image,
        "factor": request.factor,
        "value": request.value,
        "reviewer": reviewer,
    }
    columns = {"shows": request.shows, "marked_at": utc_now()}
    upsert(session, OwnImageMark, key, columns)
    return _view(session.get_one(OwnImageMark, tuple(key.values()), populate_existing=True))


def next_mark(view: OwnImagesView, reviewer: str, chosen: Value | None = None, image: str | None = None) -> NextMark:
    """The next image that a reviewer has not marked, of all values or of the `chosen` one; or the `image` of it."""
    values = [value for value in view.values if chosen in (None, (value.factor, value.value))]
    images = [shown for value in view.values for shown in value.images]
    marks = [mark for shown in images for mark in shown.marks if mark.reviewer == reviewer]
    last = max(marks, key=lambda mark: mark.marked_at, default=None)
    before = None if last is None else (Value(last.factor, last.value), last.image)
    for value in values:
        shown = next(_candidates(value.images, reviewer, image), None)
        if shown is not None:
            mark = next((mark for mark in shown.marks if mark.reviewer == reviewer), None)
            marked = sum(_is_marked(other, reviewer) for other in value.images)
            return NextMark(Value(value.factor, value.value), shown.image, mark, before, marked, len(value.images))
    return NextMark(None, None, None, before, len(marks), len(marks))


def _candidates(images: Iterable[ImageToMark], reviewer: str, digest: str | None) -> Iterator[ImageToMark]:
    """The image with this digest; without a digest, those that the reviewer has not marked."""
    if digest is not None:
        return (image for image in images if image.image == digest)
    return (image for image in images if not _is_marked(image, reviewer))


def _is_marked(image: ImageToMark, reviewer: str) -> bool:
    return any(mark.reviewer == reviewer for mark in image.marks)


def _to_mark(session: Session, job_id: str) -> dict[Value, tuple[list[str], list[str]]]:
    """The classes with findings of each value, and the digests of the images to mark; of the job's report."""
    report = session.get(Report, job_id)
    by_value: dict[Value, tuple[dict[str, None], set[str]]] = {}
    for figures in report.results.results if report else ():
        for effect in figures.findings:
            own, cell = effect.corroboration, effect.cell
            if own is not None and own.to_mark and len(cell.value) <= LONGEST_MARKED_VALUE:
                classes, images = by_value.setdefault(Value(cell.factor, cell.value), ({}, set()))
                classes[cell.label] = None
                images |= set(own.to_mark)
    return {value: (list(classes), sorted(images)) for value, (classes, images) in by_value.items()}


def _file_names(session: Session, job_id: str, digests: set[str]) -> dict[str, str]:
    """The file names of those source images of a job that have these digests."""
    s = SourceImage
    names: dict[str, str] = {}
    for chunk in chunks(sorted(digests), _MOST_DIGESTS):
        rows = session.execute(select(s.digest, s.file_name).where(s.job_id == job_id, s.digest.in_(chunk)))
        names |= {digest: name for digest, name in rows if digest is not None}
    return names


def _view(row: OwnImageMark) -> MarkView:
    return MarkView(
        image=row.image_digest,
        factor=row.factor,
        value=row.value,
        shows=row.shows,
        reviewer=row.reviewer,
        marked_at=row.marked_at,
    )
