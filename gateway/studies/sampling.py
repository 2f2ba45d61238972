"""Which pairs of images the raters of a study see: sampled edits, control items and attention checks.

Edits are taken in the order of their ids, which are digests: a random order, and that of the sample of reviews
(`gateway.results.reviewed_edits`), so that the study's consensus extends that sample. Control items have an answer
that is known beforehand: a null arm keeps its label, the null arm of an image without the class does not.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session, aliased

from gateway.database.tables import Counterfactual, Image, Job, SourceImage, StudyItem
from gateway.results.pairing import is_arm_of
from shared.problems import InvalidInput
from shared.schemas.studies import ItemKind, StudyRequest
from shared.seeds import derive_seed

CANDIDATES = 200  # edits among which source images for control items are looked for


def sample_items(session: Session, job: Job, study_id: str, request: StudyRequest) -> list[StudyItem]:
    """The items of a new study. Raises InvalidInput if the job has no edits or control items of the requested kind."""
    names = [method.name for method in job.methods]
    if unknown := sorted(set(request.methods or ()) - set(names)):
        raise InvalidInput(f"the job has no method {unknown[0]!r}; its methods are {', '.join(names)}")
    edits = [
        edit
        for name in request.methods or names
        for edit in session.scalars(_edits(job, request, name).limit(request.per_method))
    ]
    if not edits:
        raise InvalidInput(f"the job has no {request.sample} edits of {', '.join(request.methods or names)}")
    items = [_item(study_id, "edit", edit, edit.image_digest) for edit in edits]
    nulls = list(islice(_nulls(session, job, edits), request.controls))
    originals = {edit.source_image_id for edit in [*edits, *(edit for edit, _ in nulls)]}
    broken = list(islice(_broken(session, job, study_id, edits, originals), request.controls // 2))
    null_items = [_item(study_id, "null", edit, digest) for edit, digest in nulls[: request.controls - len(broken)]]
    controls = [*null_items, *broken]
    if request.controls and not controls:
        raise InvalidInput("the job has no accepted null arm for control items; set controls to 0")
    order = sorted(edits, key=lambda edit: derive_seed("attention", study_id, edit.id))
    unseen = [
        edit
        for name in request.methods or names
        for edit in session.scalars(_edits(job, request, name).offset(request.per_method).limit(request.attention))
    ]
    attention = [_item(study_id, "attention", e, e.image_digest) for e in [*unseen, *order][: request.attention]]
    return [*items, *controls, *attention]


def _item(study_id: str, kind: ItemKind, edit: Counterfactual, digest: str | None) -> StudyItem:
    return StudyItem(
        id=secrets.token_hex(8), study_id=study_id, kind=kind, counterfactual_id=edit.id, shown_digest=digest
    )


def _edits(job: Job, request: StudyRequest, method: str) -> Select[Counterfactual]:
    c = Counterfactual
    edits = select(c).where(c.job_id == job.id, c.method == method, c.arm == "edit", c.image_digest.is_not(None))
    return (edits.where(c.accepted) if request.sample == "accepted" else edits).order_by(c.id)


def _nulls(session: Session, job: Job, edits: Sequence[Counterfactual]) -> Iterator[tuple[Counterfactual, str]]:
    """Edits of different source images, with the accepted null arms to show as if they were these edits."""
    null = aliased(Counterfactual)
    edit = Counterfactual
    arms = (
        select(edit, null.image_digest)
        .join(null, is_arm_of(null, edit))
        .where(edit.job_id == job.id, edit.arm == "edit", edit.method.in_({row.method for row in edits}))
        .where(null.arm == "null", null.accepted, null.image_digest.is_not(None))
        .order_by(edit.id.desc())  # from the other end, so that few pairs are seen twice
        .limit(CANDIDATES)
    )
    used: set[str] = set()
    for row, digest in session.execute(arms):
        if row.source_image_id not in used:
            used.add(row.source_image_id)
            yield row, str(digest)


def _broken(
    session: Session, job: Job, study_id: str, edits: Sequence[Counterfactual], shown_sources: Collection[str]
) -> Iterator[StudyItem]:
    """Null arms of source images that lack a class of the edit's source image, shown as if they were the edit's image.

    They are renderings, as edits are: a rater could tell a source image by its sharpness. Preferred are those of the
    edit's method and of the original's size, then those of source images of which no item shows anything.
    """
    rows = list(session.execute(_labelled_nulls(job, {edit.method for edit in edits})))
    sources = {source.id: source for source, *_ in rows}
    sizes = {source.id: (width, height) for source, _, _, width, height in rows}
    used, shown = set[str](), set[str]()
    for edit in edits[-CANDIDATES:]:
        source = sources.get(edit.source_image_id)
        if source is None or source.id in used:
            continue
        ranked = sorted(
            (
                (method != edit.method, (width, height) != sizes[source.id], other.id in shown_sources),
                derive_seed("broken", study_id, edit.id, digest),
                digest,
            )
            for other, method, digest, width, height in rows
            if digest not in shown and _lacks_class(other, source)
        )
        if ranked:
            digest = ranked[0][-1]
            used.add(source.id)
            shown.add(digest)
            yield _item(study_id, "broken", edit, digest)


def _labelled_nulls(job: Job, methods: Collection[str]) -> Select[SourceImage, str, str, int, int]:
    """Source images with ground truth, and method, digest, width and height of each of their accepted null arms."""
    s, null = SourceImage, Counterfactual
    nulls = (
        select(s, null.method, Image.digest, Image.width, Image.height)
        .join(null, null.source_image_id == s.id)
        .join(Image, null.image_digest == Image.digest)
        .where(null.job_id == job.id, null.arm == "null", null.accepted, null.method.in_(methods))
    )
    return nulls.where(or_(s.ground_truth.is_not(None), s.mask_digest.is_not(None))).order_by(null.id)


def _lacks_class(image: SourceImage, source: SourceImage) -> bool:
    """Whether a class of the source image is surely absent from another image. Raters see the names of classes."""
    if source.mask_digest is None:
        return image.ground_truth not in (None, source.ground_truth) and image.mask_digest is None
    return image.mask_classes is not None and not set(source.mask_classes or ()) <= set(image.mask_classes)
