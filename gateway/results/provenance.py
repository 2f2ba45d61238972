"""Provenance that travels inside the files of generated images: their XMP packet."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import exists, or_, select
from sqlalchemy.orm import Session

from gateway.database.columns import ID_PREFIX
from gateway.database.tables import OF_SUITES, Counterfactual, Job, SourceImage, Suite
from gateway.methods import GENERATED, METHODS
from shared import __version__
from shared.media.xmp import xmp_packet
from shared.schemas.exports import DigitalSource

CREATOR = f"Contrafact {__version__}"


def digital_source_of(job: Job, method: str) -> DigitalSource:
    """IPTC's term for the images of a job's method; for methods that this version lacks, that of generated images.

    Rows of a suite have methods that its jobs do not run; these have the term that the method has by itself.
    """
    if method not in METHODS:
        return GENERATED
    own = (chosen.digital_source for chosen in job.methods if chosen.name == method)
    return next(own, METHODS[method].digital_source)


def packet_of(source: DigitalSource, job: str, counterfactual: str, arm: str, method: str, source_digest: str) -> bytes:
    """The XMP packet of a generated image: its term, job, id and arm of its row, method, and its source's digest."""
    properties = {
        "Job": job,
        "Counterfactual": counterfactual,
        "Arm": arm,
        "Method": method,
        "SourceDigest": source_digest,
    }
    return xmp_packet(source, CREATOR, properties)


def packets_of_job(session: Session, job: str, digests: Collection[str]) -> dict[str, bytes]:
    """The XMP packets of a job's generated images by digest. Digests that are source images of the job are left out.

    Of several counterfactuals with the same pixels, the packet names the one with the first id.
    """
    c = Counterfactual
    sources = select(SourceImage.digest).where(SourceImage.job_id == job, SourceImage.digest.is_not(None))
    generated = (
        select(c.image_digest, c.id, c.arm, c.method, SourceImage.digest)
        .join(SourceImage, c.source_image_id == SourceImage.id)
        .where(c.job_id == job, c.image_digest.in_(digests), c.image_digest.not_in(sources))
        .order_by(c.id.desc())
    )
    of_job = session.get_one(Job, job)
    return {
        image: packet_of(digital_source_of(of_job, method), job, id, _arm(arm), method, source or "")
        for image, id, arm, method, source in session.execute(generated)
        if image is not None
    }


def packet_of_image(session: Session, owner: str, digest: str) -> bytes | None:
    """The XMP packet of an image by digest, if a job of the owner generated it and none has it as a source image.

    Of several counterfactuals with these pixels, the packet names the one with the first id. Copies of suites come
    last, and are named as the rows of the rendering job that they were copied from.
    """
    c, job = Counterfactual, Job
    sources_of_job = select(SourceImage.id).join(job, SourceImage.job_id == job.id)
    is_source = exists(sources_of_job.where(job.owner_id == owner, SourceImage.digest == digest))
    generated = (
        select(c.job_id, Suite.made_from, c.id, c.arm, c.method, SourceImage.digest)
        .join(SourceImage, c.source_image_id == SourceImage.id)
        .join(job, c.job_id == job.id)
        .outerjoin(Suite, or_(Suite.id == job.id, Suite.id == job.parent_id))
        .where(job.owner_id == owner, c.image_digest == digest, ~is_source)
        .order_by(job.purpose.in_(OF_SUITES), c.id)
        .limit(1)
    )
    row = session.execute(generated).one_or_none()
    if row is None:
        return None
    job_id, made_from, counterfactual, arm, method, source = row
    term = digital_source_of(session.get_one(Job, job_id), method)
    if made_from is not None:
        job_id, counterfactual = made_from, counterfactual[ID_PREFIX + 1 :]
    return packet_of(term, job_id, counterfactual, _arm(arm), method, source or "")


def _arm(arm: str) -> str:
    return "counterfactual" if arm == "edit" else f"{arm}_arm"
