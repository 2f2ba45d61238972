"""The sample of a job whose images and captions measure realism: originals, accepted counterfactuals, null arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session, aliased

from gateway.analysis.effects import Floats, Integers
from gateway.analysis.realism import frechet_distance, kernel_estimate
from gateway.database.tables import Counterfactual, Job, SourceImage
from gateway.results.pairing import is_arm_of
from shared.schemas.effects import Estimate
from shared.seeds import derive_seed

SAMPLE = 500  # source images of a method; each costs an embedding of up to three images
LEAST_FOR_FID = 2_048  # as many as Inception's features have dimensions; FID is biased below


class RealismPair(NamedTuple):
    """An accepted counterfactual with its original and its null arm, by digest; one of each source image.

    `null` is None where the null arm fails a check, or the method has none. `group`: the source image's, or its own.
    """

    group: str
    original: str
    counterfactual: str
    null: str | None
    caption: str
    new_caption: str

    def digests(self) -> list[str]:
        """The images, the original first."""
        return [self.original, self.counterfactual, *([] if self.null is None else [self.null])]


def load_pairs(session: Session, job_id: str, most: int = SAMPLE) -> dict[str, list[RealismPair]]:
    """At most `most` pairs of each method of a job, each of another source image.

    Source images and edits come in the order of their digests, which depend on no outcome and on no job, so both
    are random samples.
    """
    c, s, null = Counterfactual, SourceImage, aliased(Counterfactual)
    pairs_of_null = and_(is_arm_of(null, c), null.arm == "null", null.image_digest.is_not(None), c.null_check == "")
    edit = func.row_number().over(partition_by=(c.source_image_id, c.method), order_by=c.image_digest).label("edit")
    edits = (
        select(
            c.method, s.id, s.group_name, s.digest.label("original"), c.image_digest,
            null.image_digest.label("null_digest"), c.caption, c.new_caption, edit,
        )
        .join(s, c.source_image_id == s.id)
        .outerjoin(null, pairs_of_null)
        .where(c.job_id == job_id, c.arm == "edit", c.accepted, c.image_digest.is_not(None), s.digest.is_not(None))
        .subquery()
    )  # fmt: skip
    place = func.row_number().over(partition_by=edits.c.method, order_by=(edits.c.original, edits.c.id)).label("place")
    first = select(edits, place).where(edits.c.edit == 1).subquery()
    pairs: dict[str, list[RealismPair]] = {method.name: [] for method in session.get_one(Job, job_id).methods}
    for row in session.execute(select(first).where(first.c.place <= most).order_by(first.c.method, first.c.place)):
        group = f"image {row.id}" if row.group_name is None else f"group {row.group_name}"
        pairs[row.method].append(
            RealismPair(group, row.original, row.image_digest, row.null_digest, row.caption, row.new_caption)
        )
    return pairs


def distances(
    pairs: Sequence[RealismPair], vectors: Mapping[str, Floats], seed: int
) -> tuple[Estimate | None, Estimate | None]:
    """KID between originals and counterfactuals, and between originals and null arms (`kernel_estimate`).

    `vectors`: unit vectors by digest. None for fewer than three groups.
    """
    with_null = [pair for pair in pairs if pair.null is not None]
    return (
        _distance(pairs, [pair.counterfactual for pair in pairs], vectors, derive_seed(seed, "counterfactuals")),
        _distance(with_null, [pair.null or "" for pair in with_null], vectors, derive_seed(seed, "null arms")),
    )


def frechet_distances(
    pairs: Sequence[RealismPair], vectors: Mapping[str, Floats], least: int = LEAST_FOR_FID
) -> tuple[float | None, float | None]:
    """FID between originals and counterfactuals, and between originals and null arms; None below `least` images."""
    sides = (
        [(pair.original, pair.counterfactual) for pair in pairs],
        [(pair.original, pair.null) for pair in pairs if pair.null is not None],
    )
    counterfactuals, nulls = (
        frechet_distance(*(np.stack([vectors[name] for name in names]) for names in zip(*side, strict=True)))
        if len(side) >= least
        else None
        for side in sides
    )
    return counterfactuals, nulls


def _distance(
    pairs: Sequence[RealismPair], images: Sequence[str], vectors: Mapping[str, Floats], seed: int
) -> Estimate | None:
    if not pairs:
        return None
    groups: Integers = np.unique([pair.group for pair in pairs], return_inverse=True)[1]
    real, generated = (np.stack([vectors[name] for name in names]) for names in ([p.original for p in pairs], images))
    return kernel_estimate(real, groups, generated, groups, seed)
