"""Create a job of full size without the work: filled by SQL with copies of real rows.

The last images (`ROWS_LEFT`) stay pending and are new, so that leases, statements, report and pages are measured on a
job of that size. Copies have ids of their own and are all accepted; images, labels and figures are the first job's,
repeated.
"""

from __future__ import annotations

import hashlib
import sys

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions
from gateway.database.tables import Job, SourceImage
from research.scale.images import name, pictures
from research.scale.site import Site
from shared.schemas.jobs import JobRequest, JobSpec, ManifestImage
from tests.support.job_counts import store_counts

ROWS_LEFT = 200
_AT_ONCE = 10_000
_SOURCES = """
INSERT INTO source_images (id, job_id, position, digest, file_name, ground_truth, state, failure, attempts, lost_leases,
    updated_at, generated, turn)
SELECT md5(CAST(:large AS text) || n), :large, n, s.digest, s.file_name, s.ground_truth, 'pending', '', 0, 0, now(),
    s.generated, s.turn
FROM generate_series(0, :rows - 1) n JOIN source_images s ON s.job_id = :small AND s.position = n % :images
"""
_COPIES = (
    "UPDATE source_images SET state = 'done' WHERE job_id = :large AND position >= :first AND position < :last",
    """
    INSERT INTO counterfactuals (id, job_id, source_image_id, position, method, ordinal, arm, null_ordinal, seed,
        changes, factor, from_value, to_value, caption, new_caption, image_digest, control_digest, accepted, "check",
        reason, scores, lineage)
    SELECT md5(s.id || c.id), s.job_id, s.id, s.position, c.method, c.ordinal, c.arm, c.null_ordinal, c.seed, c.changes,
        c.factor, c.from_value, c.to_value, c.caption, c.new_caption, c.image_digest, c.control_digest, true, '', '',
        c.scores, c.lineage
    FROM source_images s JOIN counterfactuals c ON c.job_id = :small AND c.position = s.position % :images
    WHERE s.job_id = :large AND s.position >= :first AND s.position < :last
    """,
    """
    INSERT INTO predictions (id, job_id, source_image_id, counterfactual_id, model, predicted, probability,
        flipped, scores, detail)
    SELECT md5(s.id || p.id), s.job_id, s.id, md5(s.id || p.counterfactual_id), p.model, p.predicted, p.probability,
        p.flipped, p.scores, p.detail
    FROM source_images s JOIN source_images o ON o.job_id = :small AND o.position = s.position % :images
        JOIN predictions p ON p.source_image_id = o.id
    WHERE s.job_id = :large AND s.position >= :first AND s.position < :last
    """,
    """
    INSERT INTO events (job_id, sequence, kind, payload, created_at)
    SELECT s.job_id, s.position + 2, 'image', jsonb_build_object('state', 'done', 'position', s.position), now()
    FROM source_images s WHERE s.job_id = :large AND s.position >= :first AND s.position < :last
    """,
    "UPDATE jobs SET events = :last + 1 WHERE id = :large",
)


def make_large_job(site: Site, spec: JobSpec, small: str, images: int, rows: int, left: int = ROWS_LEFT) -> str:
    """Make a job of `rows` images while no worker runs; its id. Goes on where it was stopped.

    The gateway gets the last `left` images, since it counts equal ones once; copies are put before them.
    """
    for program in site.workers:
        program.stop(120)
    new = [upload(site, data) for _, data in pictures(10_000_000, left)]
    entries = [ManifestImage(digest=digest, label=name(n).split("/")[0], name=name(n)) for n, digest in enumerate(new)]
    body = JobRequest(**spec.model_dump(exclude_unset=True), images=entries).model_dump_json(exclude_unset=True)
    headers = {"Content-Type": "application/json", "Idempotency-Key": f"rows {rows} of {images}"}
    reply = site.http.post("/jobs", content=body, headers=headers)
    reply.raise_for_status()
    job, copies = str(reply.json()["id"]), rows - left
    with site.sessions.begin() as session:
        made = session.scalar(select(func.count()).where(SourceImage.job_id == job))
        if made == left:
            place = SourceImage.position
            session.execute(update(SourceImage).where(SourceImage.job_id == job).values({place: place + copies}))
            add_sources(session, small, job, images, copies)
    fill(site.sessions, small, job, images, copies)
    for program in site.workers:
        program.start()
    for program in site.workers:
        program.wait()
    return job


def add_sources(session: Session, small: str, large: str, images: int, rows: int) -> None:
    """Add `rows` pending source images to job `large`, those of job `small` again and again."""
    session.execute(text(_SOURCES), {"small": small, "large": large, "images": images, "rows": rows})


def fill(sessions: Sessions, small: str, large: str, images: int, copies: int) -> None:
    """Make the first `copies` images of job `large` done, like the first `images` of job `small`, again and again."""
    with sessions() as session:
        events = session.get_one(Job, large).events
    for first in range(events - 1, copies, _AT_ONCE):
        last = min(first + _AT_ONCE, copies)
        values = {"small": small, "large": large, "images": images, "first": first, "last": last}
        with sessions.begin() as session:
            session.execute(text("SET LOCAL session_replication_role = replica"))  # what they refer to is there
            for statement in _COPIES:
                session.execute(text(statement), values)
        print(f"{last:,} of {copies:,} images filled in", file=sys.stderr, flush=True)
    with sessions.begin() as session:
        store_counts(session, large)
    with sessions.kw["bind"].connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))  # as autovacuum does some time after so many rows


def upload(site: Site, data: bytes) -> str:
    """Upload one image; its digest."""
    digest = hashlib.sha256(data).hexdigest()
    site.http.put(f"/images/{digest}", content=data).raise_for_status()
    return digest
