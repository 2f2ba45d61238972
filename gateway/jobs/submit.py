"""Turns a request into a stored job: plan, images, one transaction, and a wake-up message after it.

A dry run makes the same checks and returns the plan; it writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gateway.context import Context, read_stored
from gateway.database.sessions import reading
from gateway.intake.archives import Member
from gateway.intake.intake import (
    MANIFEST,
    WITHOUT_LABELS,
    Intake,
    group,
    relabel,
    relabel_boxes,
    take_in,
    take_one,
)
from gateway.intake.mask_files import MaskShelf, SentMasks
from gateway.intake.masks import OBJECT_READER, MaskReader, mask_reader
from gateway.intake.sources import LISTED, KeptImage, NamedFile, SourceFile, is_labelled, read_file, truths_of
from gateway.jobs import jobs
from gateway.jobs.backgrounds import check_compositions, with_backgrounds
from gateway.jobs.choices import Plan, plan
from gateway.jobs.designs import with_design, with_design_kind
from gateway.jobs.domain import SampledImages, outside_domain, small_copy
from gateway.jobs.model_choice import class_lists
from gateway.jobs.plans import PlannedJob, describe_plan
from gateway.jobs.rounds import one_of_each_group, planned_rounds
from gateway.jobs.sequences import PlannedImage
from gateway.jobs.task_description import protected_classes
from gateway.kinds import KINDS
from gateway.methods.counterfactual import Background, Factor, TaskDescription
from gateway.methods.proposed_values import ProposedValues, propose_values
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.models_under_test import models
from gateway.storage import images
from shared.media.manifests import ANNOUNCE_QUESTIONS
from shared.media.storage import image_key
from shared.media.testsets import UNWANTED, MaskKind, TestSet, distinct, images_to_look_at, label_images
from shared.problems import InvalidInput, quote
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionRequest
from shared.schemas.jobs import ImageFailure, JobDetail, JobSpec, ManifestImage
from shared.schemas.plans import JobPlan
from shared.service.endpoints import Services

CAPTIONED = 6  # images, for the proposal of values
REPEATED_GROUP = "another image of its group is used, since an adaptive job takes one of each"
OF_REQUEST = "labels are those that the request has for each image"


@dataclass(frozen=True, slots=True)
class Submission:
    """A parsed request. The images are files, or a manifest of uploaded images.

    With a manifest, `files` are some of its images that are not uploaded, for a dry run to look at. `by_name`: the
    labels of the manifest's images are found as those of files are, by their names.
    """

    spec: JobSpec
    files: Sequence[NamedFile] = ()
    masks: Sequence[NamedFile] = ()
    uploaded: Sequence[ManifestImage] | None = None
    by_name: bool = False
    manifest: bytes | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class ReadImages:
    """The test set of a dry run; `copies`: small images of some, by digest, None if they are in the store."""

    intake: Intake
    copies: Mapping[str, bytes] | None


def submit(context: Context, owner: str, submission: Submission) -> JobDetail:
    """Create the job, or return the one that the same idempotency key created.

    A refused request stores only images, which belong to no owner. Raises InvalidInput, Malformed, TooLarge,
    Conflict; NotReady when the evaluator cannot list the models under test.
    """
    job_plan = _plan(context, owner, submission.spec)
    intake = _sources(context, owner, submission, job_plan)
    order = _prepare(context, owner, submission, job_plan, ReadImages(intake, None), uploaded=True)
    with context.sessions.begin() as session:
        images.record_images(session, owner, [source.image for source in order.sources if source.image is not None])
        images.record_masks(session, owner, [source.mask for source in order.sources if source.mask is not None])
        job_id, _ = jobs.create(session, owner, order)
    context.wake()
    with reading(context.sessions) as session:
        return jobs.show(session, owner, job_id)


def plan_submission(context: Context, owner: str, submission: Submission, read: ReadImages | None = None) -> JobPlan:
    """The plan of the job that `submit` would create. Writes nothing, and refuses what `submit` refuses.

    Images of a manifest that are not uploaded yet are the exception: they are counted, not refused. `read`: what
    `read_images` gave, if it was called before.
    """
    job_plan = _plan(context, owner, submission.spec)
    if read is None:
        read = _existing_images(context, owner, submission, job_plan.classes)
    order = _prepare(context, owner, submission, job_plan, read, uploaded=False)
    job = PlannedJob(
        task_description=order.spec.task_description,
        kind=order.plan.kind,
        methods=order.plan.methods,
        models=[model.name for model in order.plan.models],
        classes=order.plan.classes,
        profile=order.profile,
        seed=order.spec.seed,
        design=order.spec.design or "free",
        chosen_by=order.plan.proposal and order.plan.proposal.source,
        budget=order.spec.budget,
        test_set=[*order.test_set],
        outside_domain=order.outside_domain,
        calibrations=[*context.profile.calibration.values()],
        asked={model.name: model.asked for model in order.plan.models if model.asked is not None},
    )
    usable = [_planned_image(source) for source in order.sources if not source.failure]
    return describe_plan(job, usable, context.settings.working_side, _failures(order.sources)[: jobs.MAX_FAILURES])


def _prepare(
    context: Context, owner: str, submission: Submission, job_plan: Plan, read: ReadImages, uploaded: bool
) -> jobs.Order:
    """The job to create, after every check of a request that needs its images. `uploaded`: all of them must be there.

    Raises as `submit`.
    """
    spec = submission.spec
    if spec.parent is not None:
        with reading(context.sessions) as session:
            jobs.find(session, owner, spec.parent)
    spec = with_design_kind(spec, job_plan.methods, context.profile.defaults.design)
    intake = _label(read.intake, submission, job_plan)
    if spec.design == "adaptive":
        intake = _one_of_each_group(intake, spec.seed)
    sources = intake.sources
    job_plan = replace(job_plan, classes=intake.test_set.classes or job_plan.classes)
    usable = sum(not source.failure for source in sources)
    readable = _readable(context, sources, read.copies)
    outside = outside_domain(context, job_plan.methods, spec.object_masks, spec.outside_domain, *readable)
    job_plan = with_backgrounds(job_plan, sources, spec.seed, partial(_find, context, owner), uploaded=uploaded)
    propose = partial(_propose, context, owner, spec, job_plan, sources, *readable, uploaded=uploaded)
    job_plan = with_design(job_plan, spec, propose, usable)
    spec, screening = planned_rounds(spec, job_plan, sources)
    profile = context.profile.profile.name
    return jobs.Order(spec, job_plan, profile, sources, submission.idempotency_key, screening, _lines(intake), outside)


def _propose(
    context: Context,
    owner: str,
    spec: JobSpec,
    job_plan: Plan,
    sources: Sequence[SourceFile],
    digests: Collection[str],
    read: Callable[[str], bytes],
    factors: Sequence[Factor],
    *,
    uploaded: bool,
) -> ProposedValues:
    """Values of these factors for the job, from its task and captions of the first images to look at.

    The calls of a job are recorded for the first image, so that its repetition makes none; those of a dry run are not.
    """
    sample = images_to_look_at(digests)[:CAPTIONED]
    services: Services = context.services
    if uploaded:
        shelf = ImageShelf(context.store, context.sessions, owner)
        services = RecordedServices(
            context.services, context.sessions, shelf, owner, source_digest=next(iter(sample), None)
        )
    captions: list[str] = []
    if sample:
        request = CaptionRequest(images=[ImagePayload(png=small_copy(read(digest))) for digest in sample])
        captions = [" ".join(caption.split()) for caption in services.caption(request).captions]
    classes = job_plan.classes or sorted({label for source in sources for label in truths_of(source)})
    task = TaskDescription(
        spec.task_description,
        protected_classes(spec, classes),
        protected_characteristics=spec.protected_characteristics,
    )
    protect = [label for method in job_plan.methods for label in getattr(method.parameters, "protect", ())]
    declared = context.profile.defaults.values
    return propose_values(services, task, captions, factors, spec.seed, declared, protect)


def read_images(context: Context, owner: str, submission: Submission) -> ReadImages:
    """The images of a dry run with their own labels and masks, which no model was compared with. Writes nothing.

    Raises as `submit`, but not for a wrong choice of methods or models.
    """
    try:
        classes = _plan(context, owner, submission.spec).classes
    except InvalidInput:
        classes = list(submission.spec.classes or ())
    return _existing_images(context, owner, submission, classes)


def _lines(intake: Intake) -> list[str]:
    """What the test set is, one line each; see `shared.media.testsets`."""
    usable = [source for source in intake.sources if not source.failure]
    return intake.test_set.lines(len(usable), sum(map(is_labelled, usable)))


def _planned_image(source: SourceFile) -> PlannedImage:
    side = None if source.image is None else max(source.image.width, source.image.height)
    questions = len(source.questions or (None,))
    return PlannedImage(source.name, truths_of(source), source.group, side, is_labelled(source), questions)


def _failures(sources: Sequence[SourceFile]) -> list[ImageFailure]:
    return [
        ImageFailure(position=position, name=source.name, reason=source.failure)
        for position, source in enumerate(sources)
        if source.failure
    ]


def _digests(sources: Sequence[SourceFile]) -> list[str]:
    return [source.image.digest for source in sources if source.image is not None]


def _read_image(context: Context, digest: str) -> bytes:
    return read_stored(context, image_key(digest))


def _readable(
    context: Context, sources: Sequence[SourceFile], copies: Mapping[str, bytes] | None
) -> tuple[Collection[str], Callable[[str], bytes]]:
    """The images to look at: those in the store, or a dry run's copies of those sent."""
    if copies is None:
        return _digests(sources), partial(_read_image, context)
    return copies, copies.__getitem__


def _plan(context: Context, owner: str, spec: JobSpec) -> Plan:
    names = context.profile.defaults.models if spec.models is None else spec.models
    named = bool(names or spec.reference_models)
    job_plan = plan(spec, context.profile, models.all_models(context, owner) if named else [])
    check_compositions(job_plan, context.profile, spec.object_masks)
    return job_plan


def _find(context: Context, owner: str, backgrounds: Sequence[Background]) -> dict[str, KeptImage]:
    """The owner's images and masks by any of their digests, protected from housekeeping for the grace period."""
    masked = sorted({background.mask for background in backgrounds if background.mask is not None})
    with context.sessions.begin() as session:
        stored_images = images.find_all(session, owner, sorted({background.digest for background in backgrounds}))
        stored_files = stored_images | images.find_masks(session, owner, masked, False)
        images.protect(session, sorted({image.digest for image in stored_files.values()}))
    return stored_files


def _sources(context: Context, owner: str, submission: Submission, job_plan: Plan) -> Intake:
    _refuse_loose_truths(submission)
    place = images.ProtectedStore(context.sessions, context.store)
    entries, reader = submission.uploaded, _reader(submission.spec)
    if entries is None:
        return _uploaded_sources(context, submission, job_plan.classes, place)
    with context.sessions.begin() as session:
        sources = images.from_manifest(session, owner, entries)
        masks = {} if reader is None else images.masks_of_manifest(session, owner, entries, reader.coloured)
    return Intake(_with_masks(context, entries, sources, masks, reader, place), TestSet(labels_from=OF_REQUEST))


def _existing_images(context: Context, owner: str, submission: Submission, classes: Sequence[str]) -> ReadImages:
    _refuse_loose_truths(submission)
    entries, reader = submission.uploaded, _reader(submission.spec)
    place = SampledImages()
    if entries is None:
        return ReadImages(_uploaded_sources(context, submission, classes, place), place.copies)
    test_set = TestSet(labels_from=OF_REQUEST)
    if submission.by_name:
        known, table = {*classes, *submission.spec.label_map}, submission.manifest
        names = [entry.name for entry in entries]
        rows = label_images(
            test_set,
            names,
            known,
            None if table is None else (MANIFEST, table),
            _mask_kind(submission),
            questions=submission.spec.questions is not None,
        )
        entries = [
            entry.model_copy(update={name: getattr(row, name) for name in ("label", "group", "boxes", "questions")})
            for entry, row in zip(entries, rows, strict=True)
        ]
    mask_digests = list({entry.mask for entry in entries if entry.mask is not None})
    with reading(context.sessions) as session:
        uploaded = images.find_all(session, owner, list({entry.digest for entry in entries}))
        masks = {} if reader is None else images.find_masks(session, owner, mask_digests, reader.coloured)
    existing = [uploaded.get(entry.digest) if entry.mask is None or entry.mask in masks else None for entry in entries]
    sources = [
        SourceFile(
            entry.name,
            entry.label,
            image,
            group=entry.group,
            upload=entry.digest,
            boxes=entry.true_boxes,
            questions=entry.true_questions,
        )
        for entry, image in zip(entries, existing, strict=True)
    ]
    sources = _with_masks(context, entries, sources, masks, reader, place)
    for file in submission.files:
        take_one(read_file(file, context.limits), place, context.limits)
    return ReadImages(Intake(sources, test_set), place.copies if submission.files else None)


def _with_masks(
    context: Context,
    entries: Sequence[ManifestImage],
    sources: list[SourceFile],
    masks: Mapping[str, KeptImage],
    reader: MaskReader | None,
    place: images.ProtectedStore | SampledImages,
) -> list[SourceFile]:
    """The source images of a JSON manifest with their masks from the object store."""
    if reader is None:
        return sources
    shelf = MaskShelf(reader, place, context.limits)
    for digest, mask in masks.items():
        shelf.take(Member(digest, read_stored(context, image_key(mask.digest))))
    return shelf.pair(sources, [entry.mask if entry.mask in masks else None for entry in entries])


def _uploaded_sources(
    context: Context, submission: Submission, classes: Sequence[str], place: images.ProtectedStore | SampledImages
) -> Intake:
    spec = submission.spec
    labels = {*classes, *spec.label_map}
    reader = _reader(spec)
    masks = None if reader is None else SentMasks(reader, submission.masks, spec.object_masks)
    boxes, questions = spec.boxes is not None, spec.questions is not None
    return take_in(submission.files, submission.manifest, labels, place, context.limits, masks, boxes, questions)


def _mask_kind(submission: Submission) -> MaskKind:
    if submission.spec.masks is not None or submission.spec.boxes is not None:
        return "truth"
    return "objects" if submission.spec.object_masks else "none"


def _reader(spec: JobSpec) -> MaskReader | None:
    if spec.object_masks:
        return OBJECT_READER
    return None if spec.masks is None else mask_reader(spec.masks, spec.label_map)


def _refuse_loose_truths(submission: Submission) -> None:
    """Refuse masks without the spec's `masks`, `masks` without masks, boxes and questions likewise.

    It does so before any image is read.
    """
    entries = submission.uploaded or []
    has_boxes = any(entry.boxes is not None for entry in entries)
    has_questions = any(entry.questions for entry in entries)
    if has_questions and submission.spec.questions is None:
        raise InvalidInput(f"there are questions, {ANNOUNCE_QUESTIONS}")
    if submission.spec.questions is not None and entries and not (has_questions or submission.by_name):
        raise InvalidInput("the spec announces questions, but no image has any; give each its `questions`")
    if has_boxes and submission.spec.boxes is None:
        raise InvalidInput("there are boxes, but the spec does not say how to count them; give `boxes` in it")
    if submission.spec.boxes is not None and entries and not (has_boxes or submission.by_name):
        raise InvalidInput("the spec announces boxes, but no image has any; give each its `boxes`, [] for no object")
    if submission.spec.boxes is not None and any(entry.label for entry in entries):
        raise InvalidInput("the images have labels, but the ground truth of this job is boxes; leave out one of them")
    has_masks = any(entry.mask for entry in entries)
    if submission.spec.masks is None and not submission.spec.object_masks:
        if submission.masks or has_masks:
            raise InvalidInput("there are masks, but the spec does not say what they mean; give `masks` in it")
        return
    if entries and not has_masks:
        raise InvalidInput(
            "the spec announces masks, but no image names its mask: upload each with PUT /images/{digest}?mask=true, "
            "and give its digest as `mask` beside that of its image"
        )
    if submission.spec.masks is not None and any(entry.label for entry in entries):
        raise InvalidInput("the images have labels, but the ground truth of this job is masks; leave out one of them")


def _without_classes(source: SourceFile) -> SourceFile:
    """The source with its mask as that of an object, which is not a ground truth."""
    return source if source.mask is None else replace(source, mask=replace(source.mask, classes=()))


def _label(intake: Intake, submission: Submission, job_plan: Plan) -> Intake:
    """The source images with their groups, and with labels that all models know; of equal ones, one."""
    sources, test_set = _with_labels(intake, submission.spec, job_plan)
    identities, labels = [_identity(source) for source in sources], [_comparable(source) for source in sources]
    names = [source.name or (identity or "")[:12] for source, identity in zip(sources, identities, strict=True)]
    return Intake([sources[position] for position in distinct(test_set, names, identities, labels)], test_set)


def _one_of_each_group(intake: Intake, seed: int) -> Intake:
    """The test set without the images whose group has another one in the job."""
    sources = one_of_each_group(intake.sources, seed)
    kept = set(map(id, sources))
    others = {source.name or source.upload[:12]: REPEATED_GROUP for source in intake.sources if id(source) not in kept}
    return Intake(sources, replace(intake.test_set, left_out={**intake.test_set.left_out, **others}))


def _identity(source: SourceFile) -> str | None:
    """The digests of an image and its mask, which equal ones have in common; None for an image that failed."""
    digest = source.upload if source.image is None else source.image.digest
    return digest + ("" if source.mask is None else source.mask.digest) or None


def _comparable(source: SourceFile) -> str | None:
    """What differs between equal images with other ground truths."""
    places = source.boxes if source.questions is None else source.questions
    return source.label if places is None else repr(places)


def _with_labels(intake: Intake, spec: JobSpec, job_plan: Plan) -> tuple[list[SourceFile], TestSet]:
    """The source images with their groups, and with labels that all models know."""
    sources, test_set = intake.sources, intake.test_set
    if spec.ground_truth == "none":  # first, so that folders which look like classes can be groups
        sources = [replace(source, label=None) for source in sources]
    sources = group(sources, spec.group_by)
    if spec.object_masks:
        sources = [_without_classes(source) for source in sources]
    if spec.ground_truth == "none" or spec.masks is not None:
        labels_from = UNWANTED if spec.masks is None else "the ground truth is the masks"
        sources = [replace(source, label=None) for source in sources]
        return sources, replace(test_set, labels_from=labels_from)
    lists = class_lists(job_plan.models)
    lists = {"`classes`": spec.classes, **lists} if spec.classes else lists
    if spec.boxes is not None:
        return _with_box_labels(sources, test_set, spec, lists)
    if spec.questions is not None:
        sources = [replace(source, label=None) for source in sources]
        labels = sorted({question.label for source in sources for question in source.questions or ()})
        return sources, replace(test_set, classes=labels)
    kind = KINDS[job_plan.kind]
    if kind.localised and any(source.label is not None for source in sources):
        names = ", ".join(repr(model.name) for model in job_plan.models)
        raise InvalidInput(
            f"the ground truth is a label for each image, but {names} {kind.does}: send {kind.truths}, choose "
            f"classifiers, or {WITHOUT_LABELS} to test whether predictions stay the same"
        )
    sources, note = relabel(sources, spec.label_map, lists)
    return sources, replace(test_set, labels_from=test_set.labels_from + note)


def _with_box_labels(
    sources: list[SourceFile], test_set: TestSet, spec: JobSpec, lists: Mapping[str, Sequence[str]]
) -> tuple[list[SourceFile], TestSet]:
    """The source images with boxes of classes that all models know, and the classes of the job in the test set.

    These are the spec's; boxes of other classes are then left out. Without any, they are those that were annotated:
    what a model says of other classes is not judged.
    """
    annotated = test_set.classes or [box.label for source in sources for box in source.boxes or ()]
    names = {label: spec.label_map.get(label, label) for label in annotated}
    others = [label for label, name in names.items() if spec.classes and name not in spec.classes]
    left = ""
    if spec.classes:
        sources = [
            source
            if source.boxes is None
            else replace(source, boxes=tuple(box for box in source.boxes if box.label not in others))
            for source in sources
        ]
        left = f"; boxes of other classes are left out: {quote(others, LISTED)}" if others else ""
    sources, note = relabel_boxes(sources, spec.label_map, lists)
    used = {box.label for source in sources for box in source.boxes or ()}
    known = [name for name in names.values() if name in used or all(name in classes for classes in lists.values())]
    classes = list(spec.classes or dict.fromkeys([*known, *sorted(used)]))
    return sources, replace(test_set, labels_from=test_set.labels_from + left + note, classes=classes)
