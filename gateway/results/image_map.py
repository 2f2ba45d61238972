"""A map of a job's counterfactuals: the scorer's recorded embeddings in the plane in which they differ most.

The image checks recorded the embeddings (`gateway.model_services.vectors`), so a map calls no service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from gateway.analysis.projection import principal_plane
from gateway.database.columns import StoredChange
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Counterfactual, Job, JobService, SourceImage
from gateway.methods.checks import LIKENESS
from gateway.model_services.vectors import recorded_tables
from gateway.results.counterfactuals import matching
from gateway.results.filters import Filters, flips_by_counterfactual
from gateway.results.recent import Recent
from shared.media.storage import ObjectStore
from shared.service.endpoints import Services

MOST_SOURCES = 400  # whose recorded calls a map reads
MOST_MAPS = 32  # that a process keeps
_EQUAL = 1e-9  # difference of two cosines of the same vectors

Of = Literal["images", "changes"]


@dataclass(frozen=True, slots=True)
class JobMap:
    """Places of counterfactuals by id, x and y on one scale, and the share of the variance that they hold (0 … 1).

    `positions` of the source images: all of the job's, or a random sample of its `sources`.
    """

    places: dict[str, tuple[float, float]]
    share: float
    positions: list[int]
    sources: int


class MappedEdit(NamedTuple):
    """An edit on a map, and the file name of its source image. `flipped`: whether a model changed its prediction on it.

    `flipped` is None if no model predicted it.
    """

    id: str
    changes: list[StoredChange]
    source_name: str
    flipped: bool | None


class _ScoredEdit(NamedTuple):
    id: str
    source: str
    likeness: float | None


class JobMaps:
    """The maps of the jobs that were looked at last. A map is computed again after each change of its job."""

    def __init__(self) -> None:
        self._maps: Recent[JobMap] = Recent(MOST_MAPS)

    def find(self, sessions: Sessions, store: ObjectStore, job_id: str, of: Of) -> JobMap:
        """The map of a job: of its images, or of the changes (counterfactual minus source) of its images."""
        with reading(sessions) as session:
            changes = session.get_one(Job, job_id).events
        return self._maps.find((job_id, changes, of), lambda: load_map(sessions, store, job_id, of))


def load_map(sessions: Sessions, store: ObjectStore, job_id: str, of: Of, most: int = MOST_SOURCES) -> JobMap:
    """The map of a job, from at most `most` source images, sampled by their digests."""
    with reading(sessions) as session:
        owner = session.get_one(Job, job_id).owner_id
        revisions = session.scalars(
            select(JobService.revision).where(JobService.job_id == job_id, JobService.service == Services.embed.service)
        ).all()
        positions, sources = _sample(session, job_id, most)
        edits = _edits(session, job_id, positions)
    vectors = _vectors(sessions, store, owner, edits, revisions, of)
    plane = principal_plane(np.array(list(vectors.values())) if vectors else np.zeros((0, 0)))
    places = {id: (float(x), float(y)) for id, (x, y) in zip(vectors, plane.points, strict=True)}
    return JobMap(places, plane.share, positions, sources)


def mapped_edits(session: Session, job_id: str, filters: Filters, job_map: JobMap) -> list[MappedEdit]:
    """The edits of a map that match the filters; `flipped` of the filters' model, or of any model."""
    # Another name, because a filter asks for the source image, too.
    c, s, flips = Counterfactual, aliased(SourceImage), flips_by_counterfactual(job_id, filters.model)
    rows = session.execute(
        matching(job_id, filters)
        .with_only_columns(c.id, c.changes, c.position, s.file_name, flips.c.flipped)
        .join(s, c.source_image_id == s.id)
        .outerjoin(flips, flips.c.counterfactual_id == c.id)
        .where(c.position.in_(job_map.positions))
    )
    return [
        MappedEdit(id, changes, name or f"image {position}", None if flipped is None else bool(flipped))
        for id, changes, position, name, flipped in rows
        if id in job_map.places
    ]


def _sample(session: Session, job_id: str, most: int) -> tuple[list[int], int]:
    s = SourceImage
    readable = (s.job_id == job_id, s.digest.is_not(None))
    positions = session.scalars(select(s.position).where(*readable).order_by(s.digest, s.position).limit(most))
    return sorted(positions), session.scalar(select(func.count()).where(*readable)) or 0


def _edits(session: Session, job_id: str, positions: Sequence[int]) -> list[_ScoredEdit]:
    c, s = Counterfactual, SourceImage
    rows = session.execute(
        select(c.id, s.digest, c.scores[LIKENESS].as_float())
        .join(s, c.source_image_id == s.id)
        .where(c.job_id == job_id, c.arm == "edit", c.image_digest.is_not(None), c.position.in_(positions))
        .order_by(c.position, c.method, c.ordinal)
    )
    return [_ScoredEdit(*row) for row in rows]


def _vectors(
    sessions: Sessions, store: ObjectStore, owner: str, edits: Sequence[_ScoredEdit], revisions: Sequence[str], of: Of
) -> dict[str, NDArray[np.float64]]:
    """The vectors of the edits whose images were embedded, by id.

    A recorded reply does not name its images. The cosine with the source image, which is a stored score, tells which
    vector is an edit's.
    """
    likenesses: dict[str, list[_ScoredEdit]] = {}
    for edit in edits:
        if edit.likeness is not None:
            likenesses.setdefault(edit.source, []).append(edit)
    vectors: dict[str, NDArray[np.float64]] = {}
    for digest, table in recorded_tables(sessions, store, owner, list(likenesses), revisions):
        cosines = table @ table[0]
        for edit in likenesses[digest]:
            apart = np.abs(cosines[1:] - edit.likeness)
            if edit.id not in vectors and len(apart) and apart.min() <= _EQUAL:
                image = table[1 + int(apart.argmin())]
                vectors[edit.id] = image if of == "images" else image - table[0]
    return {edit.id: vectors[edit.id] for edit in edits if edit.id in vectors}
