"""Human studies of a job: made, shown and deleted, and which pairs of images their raters see.

Edits are taken in the order of their ids, which are digests: a random order, and that of the sample of reviews
(`gateway.feedback.reviews`), so that the study's consensus extends that sample. Control items have an answer that is
known beforehand: a null arm keeps its label, the null arm of an image without the class does not.
"""

from __future__ import annotations

import secrets
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from sqlalchemy import Select, delete, or_, select
from sqlalchemy.orm import Session, aliased

from gateway.database.tables import (
    Counterfactual,
    Image,
    Job,
    Prediction,
    SourceImage,
    Study,
    StudyItem,
    StudyRater,
    has_class,
)
from gateway.feedback.ratings import load_ratings
from gateway.jobs import jobs
from shared.problems import Conflict, InvalidInput, NotFound
from shared.schemas.studies import ItemKind, StudiesListing, StudyRequest, StudyView
from shared.seeds import derive_seed

MAX_STUDIES = 100  # of one job
CANDIDATES = 200  # edits among which source images for control items are looked for


def create(session: Session, owner: str, job_id: str, request: StudyRequest) -> str:
    """Sample the items of a study and return its id. Raises NotFound, Conflict while the job runs, InvalidInput."""
    job = jobs.find(session, owner, job_id)
    if job.state == "running":
        raise Conflict("the job is running; make a study when it is done, or cancel it first")
    if len(_ids(session, job_id)) >= MAX_STUDIES:
        raise InvalidInput(f"the job has {MAX_STUDIES} studies; delete one first")
    study_id = uuid.uuid4().hex
    items = _sample_items(session, job, study_id, request)
    session.add(Study(id=study_id, job_id=job_id, request=request))
    session.flush()
    session.add_all(items)
    return study_id


def find(session: Session, owner: str, study_id: str) -> Study:
    """The owner's study. Raises NotFound."""
    studies = select(Study).join(Job, Study.job_id == Job.id).where(Study.id == study_id)
    study = session.scalar(studies.where(Job.owner_id == owner, Job.deleted_at.is_(None)))
    if study is None:
        raise NotFound(f"there is no study {study_id!r}; GET /jobs/JOB/studies lists those of a job")
    return study


def show(session: Session, owner: str, study_id: str) -> StudyView:
    """A study with its progress. Raises NotFound."""
    study = find(session, owner, study_id)
    ratings = load_ratings(session, study)
    kinds = Counter(item.kind for item in ratings.items.values())
    answered = {rater: len(answers) for rater, answers in ratings.answers.items()}
    of_study = select(StudyRater).where(StudyRater.study_id == study_id, StudyRater.token_hash.is_not(None))
    invited = session.scalars(of_study).all()
    return StudyView(
        id=study.id,
        job=study.job_id,
        request=study.request,
        items=kinds.pop("edit"),
        control_items=dict(kinds),
        checks=sorted(item.id for item in ratings.items.values() if item.kind != "edit"),
        invited=len(invited),
        finished=sum(answered[rater.id] >= len(rater.items) for rater in invited),
        answered=sum(answered.values()),
        complete=len(ratings.complete),
        created_at=study.created_at,
    )


def listing(session: Session, owner: str, job_id: str) -> StudiesListing:
    """The studies of a job, newest first. Raises NotFound."""
    jobs.find(session, owner, job_id)
    return StudiesListing(studies=[show(session, owner, study_id) for study_id in _ids(session, job_id)])


def remove(session: Session, owner: str, study_id: str) -> None:
    """Delete a study with its answers, and the reviews that its consensus gave. Raises NotFound."""
    find(session, owner, study_id)
    # Raters first: a rater who answers locks their own row, then the study's.
    session.execute(delete(StudyRater).where(StudyRater.study_id == study_id))
    session.execute(delete(Study).where(Study.id == study_id))


def _ids(session: Session, job_id: str) -> Sequence[str]:
    newest = Study.created_at.desc(), Study.id
    return session.scalars(select(Study.id).where(Study.job_id == job_id).order_by(*newest)).all()


def _sample_items(session: Session, job: Job, study_id: str, request: StudyRequest) -> list[StudyItem]:
    """The items of a new study. Raises InvalidInput if the job has no edits or control items of the requested kind."""
    names = [method.name for method in job.methods]
    if unknown := sorted(set(request.methods or ()) - set(names)):
        raise InvalidInput(f"the job has no method {unknown[0]!r}; its methods are {', '.join(names)}")
    edits = [edit for name in request.methods or names for edit in _sampled(session, job, request, name)]
    if not edits:
        shown = f" whose images show {request.element!r}" if request.element else ""
        shown += f" that {request.model!r} gets wrong" if request.model else ""
        raise InvalidInput(f"the job has no {request.sample} edits of {', '.join(request.methods or names)}{shown}")
    items = [_item(study_id, "edit", edit, edit.image_digest) for edit in edits]
    nulls = list(islice(_nulls(session, job, edits, request.element), request.controls))
    originals = {edit.source_image_id for edit in [*edits, *(edit for edit, _ in nulls)]}
    broken = list(islice(_broken(session, job, study_id, edits, originals, request.element), request.controls // 2))
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


def _sampled(session: Session, job: Job, request: StudyRequest, method: str) -> Iterator[Counterfactual]:
    """The first edits of a method, or of each of its factors, in the order of their ids."""
    edits = _edits(job, request, method)
    if request.per_factor is None:
        yield from session.scalars(edits.limit(request.per_method))
        return
    factors = edits.with_only_columns(Counterfactual.factor).order_by(None).distinct()
    for factor in sorted(filter(None, session.scalars(factors))):  # an edit of several factors has none
        yield from session.scalars(edits.where(Counterfactual.factor == factor).limit(request.per_factor))


def _edits(job: Job, request: StudyRequest, method: str) -> Select[Counterfactual]:
    c = Counterfactual
    edits = select(c).where(c.job_id == job.id, c.method == method, c.arm == "edit", c.image_digest.is_not(None))
    if request.element is not None:
        edits = edits.join(SourceImage, c.source_image_id == SourceImage.id).where(has_class(request.element))
    if request.sample != "rendered":
        edits = edits.where(c.accepted)
    if request.sample == "misclassified":
        p, truth = Prediction, SourceImage
        wrong = select(p.id).join(truth, p.source_image_id == truth.id).where(p.counterfactual_id == c.id)
        wrong = wrong.where(p.predicted != truth.ground_truth, p.model.not_in(job.stored_spec.reference_models))
        wrong = wrong if request.model is None else wrong.where(p.model == request.model)
        edits = edits.where(wrong.correlate(c).exists())
    return edits.order_by(c.id)


def _nulls(
    session: Session, job: Job, edits: Sequence[Counterfactual], element: str | None
) -> Iterator[tuple[Counterfactual, str]]:
    """Edits of different source images, with the accepted null arms to show as if they were these edits."""
    null = aliased(Counterfactual)
    edit = Counterfactual
    arms = (
        select(edit, null.image_digest)
        .join(null, null.source_image_id == edit.source_image_id)
        .where(edit.job_id == job.id, edit.arm == "edit", edit.method.in_({row.method for row in edits}))
        .where(null.arm == "null", null.method == edit.method, null.ordinal == edit.null_ordinal)
        .where(null.accepted, null.image_digest.is_not(None))
        .order_by(edit.id.desc())  # from the other end, so that few pairs are seen twice
        .limit(CANDIDATES)
    )
    if element is not None:  # an image without it would not keep it
        arms = arms.where(edit.source_image_id.in_(select(SourceImage.id).where(has_class(element))))
    used: set[str] = set()
    for row, digest in session.execute(arms):
        if row.source_image_id not in used:
            used.add(row.source_image_id)
            yield row, str(digest)


def _broken(
    session: Session,
    job: Job,
    study_id: str,
    edits: Sequence[Counterfactual],
    shown_sources: Collection[str],
    element: str | None,
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
            if digest not in shown and _lacks_class(other, source, element)
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


def _lacks_class(image: SourceImage, source: SourceImage, element: str | None) -> bool:
    """Whether `element`, or any class of the source image, is surely absent from another image."""
    if element is not None and source.mask_digest is not None:
        return image.mask_classes is not None and element not in image.mask_classes
    if source.mask_digest is None:
        return image.ground_truth not in (None, source.ground_truth) and image.mask_digest is None
    return image.mask_classes is not None and not set(source.mask_classes or ()) <= set(image.mask_classes)
