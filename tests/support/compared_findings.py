"""A drawn job whose report compares a finding with own images. Chosen vectors stand for those of the scorer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import select

from gateway.database.sessions import Sessions, reading
from gateway.database.tables import SourceImage
from gateway.report.build import store_report, write_report
from gateway.results.corroboration import Vectors, with_corroboration
from gateway.results.job_rows import JobRows
from gateway.results.own_images import load_own_images
from shared.media.storage import ObjectStore
from shared.schemas.results import JobResults

NIGHT, DAY = np.array([1.0, 0.0]), np.array([0.0, 1.0])


def digests_of(sessions: Sessions, job_id: str = "drawn", label: str = "bus") -> dict[str, str]:
    """The digest of each source image of a class, by file name."""
    s = SourceImage
    with reading(sessions) as session:
        rows = session.execute(select(s.file_name, s.digest).where(s.job_id == job_id, s.ground_truth == label))
        return {name: digest or "" for name, digest in rows}


def write_compared_report(
    sessions: Sessions, store: ObjectStore, chosen: Sequence[str], job_id: str = "drawn"
) -> JobResults:
    """The report of a drawn job whose scorer chose the images with these digests as night."""

    def complete(_: JobRows, results: JobResults) -> JobResults:
        with reading(sessions) as session:
            images = load_own_images(session, job_id, results)
        assert images is not None, "the job has a finding"
        by_digest = {digest: NIGHT if digest in chosen else DAY for digest in images.digests()}
        by_text = {text: NIGHT if "night" in text else DAY for text in images.texts()}
        return with_corroboration(results, images, Vectors(by_digest, by_text, 1.0))

    key = f"reports/{job_id}/compared.html"
    results = write_report(sessions, store, job_id, key, [], complete=complete)
    with sessions.begin() as session:
        store_report(session, job_id, key, results)
    return results
