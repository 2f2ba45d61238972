"""Matches the source images of two jobs by their pixels and ground truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.analysis.effects import Integers
from gateway.database.tables import Job, SourceImage
from shared.problems import InvalidInput


class MatchedSource(NamedTuple):
    """The columns of a source image that match it with another job's."""

    position: int
    digest: str | None
    ground_truth: str | None
    mask_digest: str | None
    group_name: str | None


@dataclass(frozen=True, slots=True)
class Matching:
    """The common numbers of n source images that two jobs share.

    `number`, `other_number`: by the job's own number of a source image, its common number or −1. `group` and
    `other_group`: the same for the number of its group. `position`, `other_position`: of the n images, in each job.
    `only_this`, `only_other`: readable images of one job alone. `relabelled`: images of both jobs whose ground truth
    differs.
    """

    number: Integers
    other_number: Integers
    group: Integers
    other_group: Integers
    position: list[int]
    other_position: list[int]
    only_this: int
    only_other: int
    relabelled: int


def match_jobs(session: Session, job: Job, other_job: Job) -> Matching:
    """The source images of two jobs with equal pixels and equal ground truth.

    Raises InvalidInput if there are none, or if the jobs put an image into different groups.
    """
    sources = _sources(session, job.id)
    others = sources if other_job.id == job.id else _sources(session, other_job.id)
    matching = match_sources(sources, others)
    if not matching.position and matching.relabelled:
        raise InvalidInput(
            f"jobs {job.id} and {other_job.id} have the same images with different ground truth, so they test "
            "different tasks; compare jobs with the same labels"
        )
    if not matching.position:
        raise InvalidInput(
            f"jobs {job.id} and {other_job.id} have no source image in common; compare jobs over the same images"
        )
    return matching


def _sources(session: Session, job_id: str) -> list[MatchedSource]:
    """The source images by position, in the order in which the analysis numbers them."""
    s = SourceImage
    columns = select(s.position, s.digest, s.ground_truth, s.mask_digest, s.group_name)
    return [MatchedSource(*row) for row in session.execute(columns.where(s.job_id == job_id).order_by(s.position))]


def match_sources(sources: Sequence[MatchedSource], others: Sequence[MatchedSource]) -> Matching:
    """Match source images: the first of several equal ones with the first equal one, the second with the second."""
    index_of = {key: index for index, key in enumerate(_with_occurrences(_keys(others)))}
    pairs = [
        (index, index_of[key])
        for index, key in enumerate(_with_occurrences(_keys(sources)))
        if key in index_of and sources[index].digest is not None
    ]
    pixels, other_pixels = (Counter(row.digest for row in rows if row.digest) for rows in (sources, others))
    both = (pixels & other_pixels).total()
    number, other_number, group, other_group = (
        np.full(len(rows), -1, np.int64) for rows in (sources, others, sources, others)
    )
    groups: dict[tuple[str | int, ...], int] = {}
    for common, (index, other_index) in enumerate(pairs):
        name = _group_name(sources[index], others[other_index])
        key: tuple[str | int, ...] = ("image", common) if name is None else ("group", name)
        number[index] = other_number[other_index] = common
        group[index] = other_group[other_index] = groups.setdefault(key, len(groups))
    return Matching(
        number=number,
        other_number=other_number,
        group=group,
        other_group=other_group,
        position=[sources[index].position for index, _ in pairs],
        other_position=[others[index].position for _, index in pairs],
        only_this=pixels.total() - both,
        only_other=other_pixels.total() - both,
        relabelled=both - len(pairs),
    )


_Key = tuple[str | None, str | None, str | None]


def _keys(sources: Sequence[MatchedSource]) -> list[_Key]:
    return [(row.digest, row.ground_truth, row.mask_digest) for row in sources]


def _with_occurrences(keys: Sequence[_Key]) -> list[tuple[_Key, int]]:
    """Each key with the number of equal ones before it."""
    counts = Counter[_Key]()
    numbered = []
    for key in keys:
        numbered.append((key, counts[key]))
        counts[key] += 1
    return numbered


def _group_name(source: MatchedSource, other: MatchedSource) -> str | None:
    """The group of an image, which either job may name. Raises InvalidInput if they name different ones."""
    names = {name for name in (source.group_name, other.group_name) if name is not None}
    if len(names) > 1:
        raise InvalidInput(
            f"the jobs put source image {source.position} into the groups {source.group_name!r} and "
            f"{other.group_name!r}; compare jobs with the same groups"
        )
    return names.pop() if names else None
