"""Marks of own images: what there is to mark for the findings of a job's report, and how people marked it.

The item of such an answer is a digest of image, factor and value, which are in its content. Equal images of a job
share their marks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.tables import Answer, Report, SourceImage
from gateway.feedback.answers import Turn, is_answer, store_answer
from gateway.feedback.reviews import majority
from gateway.jobs import jobs
from shared.chunks import chunks
from shared.problems import InvalidInput, NotFound
from shared.schemas.base import JsonObject
from shared.schemas.own_images import (
    LONGEST_MARKED_VALUE,
    ImageToMark,
    MarkRequest,
    MarkView,
    OwnImagesView,
    ShownMark,
    ValueToMark,
)
from shared.seeds import derive_digest

_MOST_DIGESTS = 500  # of a query


Value = tuple[str, str]  # a factor and a value of it, such as weather and night


class Marked(NamedTuple):
    """What a mark is about: an image, by digest, and a value of a factor."""

    image: str
    factor: str
    value: str


def listing(session: Session, owner: str, job_id: str) -> OwnImagesView:
    """What to mark for the findings of a job's report, with all marks. Raises NotFound."""
    jobs.find(session, owner, job_id)
    marks, to_mark = _by_image(session, job_id), _to_mark(session, job_id)
    digests = {
        value: list(dict.fromkeys([*images, *(marked.image for marked in marks if marked[1:] == value)]))
        for value, (_, images) in to_mark.items()
    }
    names = _file_names(session, job_id, {digest for listed in digests.values() for digest in listed})
    values = []
    for value, (classes, _) in to_mark.items():
        listed = [
            ImageToMark(image=image, file_name=names[image], marks=marks.get(Marked(image, *value), []))
            for image in digests[value]
        ]
        values.append(ValueToMark(factor=value[0], value=value[1], classes=classes, images=listed))
    return OwnImagesView(job=job_id, values=values)


def load_marks(session: Session, job_id: str) -> dict[Marked, ShownMark]:
    """The majority mark of each image among sure reviewers; `unsure` for a tie, and if all were unsure."""
    words: dict[bool | None, ShownMark] = {True: "yes", False: "no", None: "unsure"}
    return {
        marked: words[majority([mark.shows == "yes" for mark in marks if mark.shows != "unsure"])]
        for marked, marks in _by_image(session, job_id).items()
    }


def record(session: Session, owner: str, reviewer: str, job_id: str, image: str, request: MarkRequest) -> MarkView:
    """Store a reviewer's mark of a source image. Replaces their earlier mark of it for the same value.

    Raises NotFound, and InvalidInput for a value that no finding of the report is compared by.
    """
    jobs.find(session, owner, job_id)
    if image not in _file_names(session, job_id, {image}):
        raise NotFound(f"job {job_id} has no source image {image}")
    values = _to_mark(session, job_id)
    if (request.factor, request.value) not in values:
        known = ", ".join(f"{value} ({factor})" for factor, value in values) or "none yet"
        raise InvalidInput(
            f"no finding of this job is compared with own images by {request.value} ({request.factor}); "
            f"those to mark are: {known}"
        )
    item = derive_digest("own image", image, request.factor, request.value).hex()
    content: JsonObject = {**request.model_dump(), "image": image}
    return _view(store_answer(session, job_id, "mark", item, reviewer, content))


def next_mark(
    view: OwnImagesView, reviewer: str, chosen: Value | None = None, image: str | None = None
) -> tuple[Turn[Marked], MarkView | None]:
    """The next image that a reviewer has not marked, of all values or of the `chosen` one; or the `image` of it.

    With their mark of it if they have one. The numbers are of the images of the value.
    """
    images = [shown for value in view.values for shown in value.images]
    marks = [mark for shown in images for mark in shown.marks if mark.reviewer == reviewer]
    last = max(marks, key=lambda mark: mark.marked_at, default=None)
    before = None if last is None else Marked(last.image, last.factor, last.value)
    for value in (value for value in view.values if chosen in (None, (value.factor, value.value))):
        shown = next(_candidates(value.images, reviewer, image), None)
        if shown is not None:
            mark = next((mark for mark in shown.marks if mark.reviewer == reviewer), None)
            marked = sum(_is_marked(other, reviewer) for other in value.images)
            return Turn(Marked(shown.image, value.factor, value.value), before, marked, len(value.images)), mark
    return Turn(None, before, len(marks), len(marks)), None


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
                classes, images = by_value.setdefault((cell.factor, cell.value), ({}, set()))
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


def _by_image(session: Session, job_id: str) -> dict[Marked, list[MarkView]]:
    """All marks of a job, those of an image and value in the order of time."""
    marks: defaultdict[Marked, list[MarkView]] = defaultdict(list)
    rows = select(Answer).where(is_answer(job_id, "mark")).order_by(Answer.answered_at, Answer.author)
    for mark in map(_view, session.scalars(rows)):
        marks[Marked(mark.image, mark.factor, mark.value)].append(mark)
    return marks


def _view(row: Answer) -> MarkView:
    return MarkView.model_validate({**row.content, "reviewer": row.author, "marked_at": row.answered_at})
