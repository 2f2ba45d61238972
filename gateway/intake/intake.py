"""Turns uploads, archives and manifests into checked source images. No database, no HTTP.

    file or member ──decode, under limits──► canonical PNG in the object store ──► SourceFile(digest, label)
                   └─ not usable ──────────► SourceFile(failure), a failed source image; the others go on

What is an image, what is left out, and where labels come from, `shared.media.testsets` decides. Masks are matched by
stem or by the manifest (`gateway.intake.masks`); an image with an unusable mask fails. In an archive that Contrafact
exported, the originals are the source images and the manifest has their labels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from pydantic import ValidationError

from gateway.intake.archive_members import ArchiveLimits
from gateway.intake.archives import Member, members
from gateway.intake.mask_files import MaskShelf, SentMasks, images_beside_masks
from gateway.intake.masks import is_mask
from gateway.intake.sources import (
    LISTED,
    SEND_IMAGES,
    ImageStore,
    IntakeLimits,
    NamedFile,
    SourceFile,
    keep_image,
    read_file,
    refuse_if_unusable,
)
from shared.media.archives import is_archive
from shared.media.box_formats import BoxedImage, boxes_of, is_box_file, on_image
from shared.media.class_names import names_of_labels, normal_form
from shared.media.instance_masks import read_instances
from shared.media.manifests import ManifestRow
from shared.media.testsets import (
    HEAD_BYTES,
    HIDDEN,
    MANIFEST_NAMES,
    MAX_TABLE_BYTES,
    MaskKind,
    TestSet,
    is_hidden,
    is_manifest,
    label_images,
    part_of,
)
from shared.problems import InvalidInput, TooLarge, quote
from shared.schemas.boxes import TrueBox
from shared.schemas.exports import MASKS, NOTE_NAME, ORIGINALS, ExportNote
from shared.schemas.jobs import MAX_CLASSES
from shared.schemas.masks import MAX_LABEL_CHARACTERS

# What a refusal advises to a client; the job form has words of its own for them (`gateway.web.form_fields`).
MAP_LABELS = "Map them with `label_map`"
MANIFEST = "the manifest"  # the name of one that is sent beside the images
NO_QUESTION = "there is no question about it"
QUESTIONS_IN_MANIFEST = (
    'give a manifest with a line for each, such as {"file": "a.png", "question": "…", "answer": "…"}'
)
WITHOUT_LABELS = 'send `"ground_truth": "none"`'


class Intake(NamedTuple):
    """The source images of a job, and what else its test set has."""

    sources: list[SourceFile]
    test_set: TestSet


@dataclass(slots=True)
class _Aside:
    """The other files of a test set, and the folder of originals in an archive that Contrafact exported, else ""."""

    test_set: TestSet = field(default_factory=TestSet)
    originals: str = ""
    box_files: dict[str, bytes] | None = None  # None: the ground truth is no boxes

    def hide(self, name: str) -> None:
        """Leave a hidden file out."""
        self.test_set.left_out[name] = HIDDEN


def take_in(
    files: Sequence[NamedFile],
    manifest: bytes | None,
    known_classes: Collection[str],
    store: ImageStore,
    limits: IntakeLimits,
    masks: SentMasks | None = None,
    boxes: bool = False,
    questions: bool = False,
) -> Intake:
    """The source images of a job, in the order of the files, or of the archive's members if an archive was sent.

    `known_classes` helps to tell class folders from others. With `masks`, files in a folder `masks` are masks, and
    folders are classes only if the masks are not the ground truth. With `boxes`, the ground truth is read from the
    files of `shared.media.box_formats`, or the manifest; with `questions`, from a table. Raises InvalidInput if no
    image is usable, and the errors of archive, boxes and manifest.
    """
    archive, aside = _archive_of(files), _Aside(box_files={} if boxes else None)
    shelf = None if masks is None else MaskShelf(masks.reader, store, limits)
    incoming = _members_of(files, archive, limits, masks is not None or boxes, aside)
    if masks is not None and shelf is not None:
        shelf.take_all(read_file(file, limits) for file in masks.files)
        incoming = shelf.take_out(incoming, aside.test_set.left_out)
    sources = [take_one(member, store, limits) for member in incoming]
    if aside.originals:  # the note may come last
        sources = [source for source in sources if source.name.startswith(aside.originals)]
        aside.test_set.left_out.clear()
    if archive is not None and (masks is not None or boxes):
        everything, sources = sources, images_beside_masks(sources)
        if boxes:
            names = {source.name for source in everything} - {source.name for source in sources}
            aside.test_set.left_out |= dict.fromkeys(sorted(names), "not in the folder images")
    _refuse_unusable(sources, aside, limits, archive is not None)
    return Intake(_with_truths(sources, aside, manifest, known_classes, masks, shelf, questions), aside.test_set)


def _refuse_unusable(sources: Sequence[SourceFile], aside: _Aside, limits: IntakeLimits, archive: bool) -> None:
    if aside.originals and not sources:
        raise InvalidInput("this export holds no originals; export the job with its originals to test them again")
    if len(sources) > limits.images:
        raise TooLarge(f"{len(sources):,} images are more than the {limits.images:,} of one job; send several jobs")
    left_out = {name: why for name, why in aside.test_set.left_out.items() if why != HIDDEN or not archive}
    if not sources and left_out:
        reasons = "; ".join(f"{name!r}: {why}" for name, why in list(left_out.items())[:LISTED])
        raise InvalidInput(f"none of the {len(left_out)} files can be used: {reasons}; {SEND_IMAGES}")
    refuse_if_unusable(sources)


def _with_truths(
    sources: Sequence[SourceFile],
    aside: _Aside,
    manifest: bytes | None,
    known_classes: Collection[str],
    masks: SentMasks | None,
    shelf: MaskShelf | None,
    questions: bool,
) -> list[SourceFile]:
    """The sources with their groups, and with labels or masks."""
    kind: MaskKind = "none" if masks is None else "objects" if masks.labelled else "truth"
    kind = kind if aside.box_files is None else "truth"
    table = None if manifest is None else (MANIFEST, manifest)
    names = [source.name for source in sources]
    rows = label_images(aside.test_set, names, known_classes, table, kind, questions=questions)
    sources = [replace(source, group=row.group) for source, row in zip(sources, rows, strict=True)]
    if questions:
        return _with_questions(sources, rows, aside.test_set)
    if aside.box_files is not None:
        return _with_boxes(sources, rows, aside.box_files, aside.test_set)
    if masks is None or masks.labelled:
        sources = [replace(source, label=row.label) for source, row in zip(sources, rows, strict=True)]
    if masks is None or shelf is None:
        return sources
    if aside.originals:
        shelf.keep_only(aside.originals.removesuffix(ORIGINALS) + MASKS + ORIGINALS)
    return shelf.assign_to(sources, rows, masks.labelled)


def _with_questions(sources: Sequence[SourceFile], rows: Sequence[ManifestRow], test_set: TestSet) -> list[SourceFile]:
    """The sources with the questions of the manifest; an image without any fails. Raises InvalidInput without any."""
    if not any(row.questions for row in rows):
        raise InvalidInput(f"the spec announces questions, but no image has any: {QUESTIONS_IN_MANIFEST}")
    test_set.labels_from = test_set.labels_from or "questions are read from the manifest"
    return [
        replace(source, questions=tuple(row.questions))
        if row.questions
        else replace(source, image=None, failure=source.failure or NO_QUESTION)
        for source, row in zip(sources, rows, strict=True)
    ]


def _with_boxes(
    sources: Sequence[SourceFile], rows: Sequence[ManifestRow], files: Mapping[str, bytes], test_set: TestSet
) -> list[SourceFile]:
    """The sources with the boxes of the manifest, or else of the other files. Raises InvalidInput without boxes."""
    if any(row.label for row in rows):
        raise InvalidInput("the manifest has labels, but the ground truth of this job is boxes; leave out one of them")
    names = [source.name for source in sources]
    boxed = [None if row.boxes is None else BoxedImage(row.file, tuple(row.boxes)) for row in rows]
    if any(image is not None for image in boxed):
        test_set.classes = list(dict.fromkeys(box.label for image in boxed if image for box in image.boxes))
        test_set.labels_from = "boxes are read from the manifest"
    else:
        boxed, read = boxes_of(files, names, read_instances)
        if not any(boxed):
            files_of_boxes = quote([image.file for image in read.images])
            raise InvalidInput(
                f"{read.note}, and none of them is of an image here: they are of {files_of_boxes}, and the images are "
                f"{quote(names)}; give both the same names"
            )
        test_set.classes, test_set.labels_from = list(read.classes), read.note
    if without := [name for name, image in zip(names, boxed, strict=True) if image is None]:
        test_set.labels_from += f"; no boxes, not even an empty list, for {quote(without, LISTED)}"
    sources = [source if image is None else _boxed(source, image) for source, image in zip(sources, boxed, strict=True)]
    refuse_if_unusable(sources)
    return sources


def _boxed(source: SourceFile, boxes: BoxedImage) -> SourceFile:
    image = source.image
    if image is None:
        return source
    size = (image.width, image.height)
    try:
        return replace(source, boxes=on_image(boxes, image.file_size or size, image.orientation or 1, size))
    except InvalidInput as problem:
        return replace(source, image=None, failure=problem.detail)


def group(sources: Sequence[SourceFile], group_by: Literal["image", "folder"]) -> list[SourceFile]:
    """The sources. With `group_by` folder, a source without a group gets its folder as its group.

    Raises InvalidInput if no image lies in a folder, or if the folders are the classes.
    """
    if group_by == "image":
        return list(sources)
    if all(source.label == source.name.rpartition("/")[0].rpartition("/")[2] for source in sources):
        raise InvalidInput(
            f"`group_by` is folder, but the folders are the classes; name the groups in a manifest, or {WITHOUT_LABELS}"
        )
    folders = [source.name.rpartition("/")[0] for source in sources]
    if not any(folders):
        raise InvalidInput(
            "`group_by` is folder, but no image lies in one; send them in folders, or name the groups in a manifest"
        )
    return [
        replace(source, group=source.group or folder or None) for source, folder in zip(sources, folders, strict=True)
    ]


def relabel(
    sources: Sequence[SourceFile], label_map: Mapping[str, str], classes: Mapping[str, Sequence[str]]
) -> tuple[list[SourceFile], str]:
    """Apply the label map, then check every label against all lists in `classes` (owner of the list → list).

    The second value and the errors are those of `names_in_lists`.
    """
    labels = {source.label for source in sources if source.label is not None}
    mapped, note = names_in_lists(labels, label_map, classes)
    return [replace(source, label=mapped.get(source.label or "")) for source in sources], note


def relabel_boxes(
    sources: Sequence[SourceFile], label_map: Mapping[str, str], classes: Mapping[str, Sequence[str]]
) -> tuple[list[SourceFile], str]:
    """As `relabel`, for the labels of boxes."""
    labels = {box.label for source in sources for box in source.boxes or ()}
    mapped, note = names_in_lists(labels, label_map, classes)

    def renamed(boxes: Iterable[TrueBox]) -> tuple[TrueBox, ...]:
        return tuple(box.model_copy(update={"label": mapped[box.label]}) for box in boxes)

    return [
        source if source.boxes is None else replace(source, boxes=renamed(source.boxes)) for source in sources
    ], note


def names_in_lists(
    labels: Collection[str], label_map: Mapping[str, str], classes: Mapping[str, Sequence[str]]
) -> tuple[dict[str, str], str]:
    """The name of each label in all lists in `classes`, after the label map.

    Labels that no list has may be the same names in another normal form, ImageNet's ids, or indices of classes
    (`shared.media.class_names`); the second value then says so. Raises InvalidInput, which lists unknown labels, and
    TooLarge for more labels than a label set may have.
    """
    normal = {normal_form(label): name for label, name in label_map.items()}
    mapped = {label: label_map.get(label, normal.get(normal_form(label), label)) for label in labels}
    names, note = names_of_labels(set(mapped.values()), list(classes.values()))
    mapped = {label: names.get(name, name) for label, name in mapped.items()}
    used = set(mapped.values())
    if len(used) > MAX_CLASSES:
        raise TooLarge(f"the images have {len(used):,} different labels, more than {MAX_CLASSES:,}; send several jobs")
    if long := next((label for label in used if len(label) > MAX_LABEL_CHARACTERS), None):
        raise InvalidInput(f"the label {long[:40]!r}… has more than {MAX_LABEL_CHARACTERS} characters; shorten it")
    refuse_unknown_labels(used, classes, f"{MAP_LABELS}, or {WITHOUT_LABELS} to test without labels")
    return mapped, note


def refuse_unknown_labels(used: Collection[str], classes: Mapping[str, Collection[str]], advice: str) -> None:
    """Raise InvalidInput with the labels that are missing in a list of classes (owner of the list → list)."""
    for owner, labels in classes.items():
        if unknown := sorted(set(used) - set(labels)):
            raise InvalidInput(
                f"{owner} does not know the labels {quote(unknown)}; it knows {quote(sorted(labels))}. {advice}",
                members={"unknown_labels": list(unknown[:100])},
            )


def _archive_of(files: Sequence[NamedFile]) -> NamedFile | None:
    """The archive, if one was sent. Raises InvalidInput if there are no files, or an archive among other files."""
    if not files:
        raise InvalidInput("there are no images; send them as parts named `images`, or one zip or tar")
    archives = [file for file in files if is_archive(file.content)]
    if archives and len(files) > 1:
        raise InvalidInput(f"{archives[0].name!r} is an archive; send it alone, or send images only")
    return archives[0] if archives else None


def _members_of(
    files: Sequence[NamedFile], archive: NamedFile | None, limits: IntakeLimits, has_masks: bool, aside: _Aside
) -> Iterable[Member]:
    """The files that may be images or masks; the others are set aside."""
    if archive is None:
        return _set_aside((read_file(file, limits) for file in files), aside)
    most = limits.images * (2 if has_masks else 1) + len(MANIFEST_NAMES)
    archive_limits = ArchiveLimits(most, limits.image_bytes, limits.archive_bytes)
    return _set_aside(members(archive.content, archive_limits, aside.hide), aside)


def _set_aside(incoming: Iterable[Member], aside: _Aside) -> Iterator[Member]:
    """Yield possible images and masks; sort the other files."""
    test_set = aside.test_set
    for member in incoming:
        name, base = member.name, member.name.rpartition("/")[2]
        if base == NOTE_NAME and not aside.originals and _is_export(member):
            aside.originals = name.removesuffix(NOTE_NAME) + ORIGINALS
            continue
        part = part_of(name, (member.data or b"")[:HEAD_BYTES])
        if is_hidden(name):
            aside.hide(name)
        elif aside.box_files is not None and is_box_file(name) and member.data is not None:
            aside.box_files[name] = member.data
        elif part == "image":
            if name.startswith(aside.originals) or is_mask(name):
                yield member
        elif is_manifest(name) and (member.data is None or len(member.data) > MAX_TABLE_BYTES):
            raise TooLarge("the manifest in the archive is too large or damaged; send it as the part `manifest`")
        elif member.data is None:
            test_set.left_out[name] = member.problem
        else:
            test_set.take_aside(name, part, member.data)


def _is_export(member: Member) -> bool:
    """Whether the file is the note of a Contrafact export. Raises InvalidInput for an export without image files."""
    try:
        note = ExportNote.model_validate_json(member.data or b"")
    except ValidationError:
        return False
    if note.format == "huggingface":
        raise InvalidInput(
            "this is an export for Hugging Face datasets, with its images inside parquet files; "
            "export the job as folders, coco or fiftyone to send its images again"
        )
    return True


def take_one(member: Member, store: ImageStore, limits: IntakeLimits) -> SourceFile:
    """The file as a source image, stored or failed."""
    if member.data is None:
        return SourceFile(member.name, None, None, member.problem)
    try:
        return SourceFile(member.name, None, keep_image(store, member.data, limits))
    except (InvalidInput, TooLarge) as problem:
        return SourceFile(member.name, None, None, problem.detail)
