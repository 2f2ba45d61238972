"""From what a user sends to a stored job: plan, take the images in, one transaction, and the wake-up after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway import images, jobs
from gateway.catalogue import Plan, plan
from gateway.database import reading
from gateway.intake import NamedFile, SourceFile, relabel, take_in
from gateway.parts import Parts
from shared.schemas.jobs import JobDetail, JobSpec, ManifestImage


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as it came: the images are files, or a manifest of uploaded ones."""

    spec: JobSpec
    files: Sequence[NamedFile] = ()
    uploaded: Sequence[ManifestImage] | None = None
    manifest: bytes | None = None
    idempotency_key: str | None = None


def submit(parts: Parts, owner: str, submission: Submission) -> JobDetail:
    """Make the job, or find the one that the same idempotency key made.

    Nothing is stored of a request that is refused but images, which belong to nobody then. Raises InvalidInput,
    Malformed, TooLarge, Conflict; NotReady when the models under test cannot be asked for.
    """
    spec = submission.spec
    chosen = _plan(parts, spec)
    sources = _labelled(_sources(parts, owner, submission, chosen), spec, chosen)
    order = jobs.Order(spec, chosen, parts.profile.profile.name, sources, submission.idempotency_key)
    with parts.sessions.begin() as session:
        images.remember(session, owner, [source.image for source in sources if source.image is not None])
        job_id, _ = jobs.create(session, owner, order)
    parts.wake()
    with reading(parts.sessions) as session:
        return jobs.show(session, owner, job_id)


def _plan(parts: Parts, spec: JobSpec) -> Plan:
    wanted = parts.profile.defaults.models if spec.models is None else spec.models
    return plan(spec, parts.profile, parts.services.models().models if wanted else [])


def _sources(parts: Parts, owner: str, submission: Submission, chosen: Plan) -> list[SourceFile]:
    if submission.uploaded is not None:
        with parts.sessions.begin() as session:
            return images.from_manifest(session, owner, submission.uploaded)
    known = {*chosen.classes, *submission.spec.label_map}
    return take_in(
        submission.files, submission.manifest, known, images.ImagePlace(parts.sessions, parts.store), parts.limits
    )


def _labelled(sources: Sequence[SourceFile], spec: JobSpec, chosen: Plan) -> list[SourceFile]:
    if spec.ground_truth == "none":
        return [replace(source, label=None) for source in sources]
    lists = {f"model under test {model.name!r}": model.classes for model in chosen.models}
    return relabel(sources, spec.label_map, {"`classes`": spec.classes, **lists} if spec.classes else lists)
