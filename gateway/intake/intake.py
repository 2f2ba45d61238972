"""Turns uploads, archives and manifests into checked source images. No database, no HTTP.

    file or member ──decode, under limits──► canonical PNG in the object store ──► SourceFile(digest, label)
                   └─ not usable ──────────► SourceFile(failure), a failed source image; the others go on

Labels come from the manifest, or else from the class folders of an archive. Masks are matched by stem or by the
manifest (`gateway.intake.masks`); an image with an unusable mask fails. In an archive that Contrafact exported, the
originals are the source images and the manifest has their labels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import ValidationError

from gateway.intake.archive_members import ArchiveLimits
from gateway.intake.archives import Member, members
from gateway.intake.mask_files import MaskShelf, SentMasks, images_beside_masks
from gateway.intake.masks import is_mask, refuse_masks_without_spec
from gateway.intake.sources import (
    ImageStore,
    IntakeLimits,
    NamedFile,
    SourceFile,
    keep_image,
    read_file,
    refuse_if_unusable,
)
from shared.archives import is_archive
from shared.manifests import (
    MANIFEST_NAMES,
    ManifestRow,
    folder_labels,
    is_manifest,
    match_rows,
    parse_manifest,
    refuse_masks,
)
from shared.problems import InvalidInput, TooLarge, quote
from shared.schemas.exports import MASKS, NOTE_NAME, ORIGINALS, ExportNote
from shared.schemas.jobs import MAX_CLASSES
from shared.schemas.masks import MAX_LABEL_CHARACTERS

# What a refusal advises to a client; the job form has words of its own for them (`gateway.web.form_fields`).
MAP_LABELS = "Map them with `label_map`"
WITHOUT_LABELS = 'send `"ground_truth": "none"`'


@dataclass(slots=True)
class _Aside:
    """Files of an archive other than images and masks: manifests, and the folder of originals in an export."""

    manifests: list[Member] = field(default_factory=list)
    originals: str = ""


def take_in(
    files: Sequence[NamedFile],
    manifest: bytes | None,
    known_classes: Collection[str],
    store: ImageStore,
    limits: IntakeLimits,
    masks: SentMasks | None = None,
) -> list[SourceFile]:
    """The source images of a job, in the order of the files, or of the archive's members if an archive was sent.

    A single folder counts as a class only if `known_classes` has its name. With `masks`, files in a folder `masks` are
    masks, and folders are classes only if the masks are not the ground truth. Raises InvalidInput if no image is
    usable, and the errors of archive and manifest.
    """
    archive, aside = _archive_of(files), _Aside()
    shelf = None if masks is None else MaskShelf(masks.reader, store, limits)
    incoming = _members_of(files, archive, limits, masks is not None, aside)
    if masks is not None and shelf is not None:
        shelf.take_all(read_file(file, limits) for file in masks.files)
        incoming = shelf.take_out(incoming)
    sources = [take_one(member, store, limits) for member in incoming]
    sources = [source for source in sources if source.name.startswith(aside.originals)]  # the note may come last
    if archive is not None and masks is not None:
        sources = images_beside_masks(sources)
    _refuse_unusable(sources, aside, limits)
    if archive is not None and masks is None:
        refuse_masks_without_spec(source.name for source in sources)
    rows = _manifest_rows(sources, manifest, aside.manifests)
    if rows is not None:
        sources = [replace(source, group=row.group) for source, row in zip(sources, rows, strict=True)]
    classes = None if archive is None else known_classes
    if masks is None or shelf is None:
        return _label(sources, rows, classes)
    if aside.originals:
        shelf.keep_only(aside.originals.removesuffix(ORIGINALS) + MASKS + ORIGINALS)
    if masks.labelled:
        labels = _labels(sources, rows, classes)
        sources = [replace(source, label=label) for source, label in zip(sources, labels, strict=True)]
    return shelf.assign_to(sources, rows, masks.labelled)


def _refuse_unusable(sources: Sequence[SourceFile], aside: _Aside, limits: IntakeLimits) -> None:
    if aside.originals and not sources:
        raise InvalidInput("this export holds no originals; export the job with its originals to test them again")
    if len(sources) > limits.images:
        raise TooLarge(f"{len(sources):,} images are more than the {limits.images:,} of one job; send several jobs")
    refuse_if_unusable(sources)


def _label(
    sources: Sequence[SourceFile], rows: Sequence[ManifestRow] | None, known_classes: Collection[str] | None
) -> list[SourceFile]:
    """The sources with their labels. `known_classes` is None for files without folders."""
    refuse_masks(rows or ())
    labels = _labels(sources, rows, known_classes)
    return [replace(source, label=label) for source, label in zip(sources, labels, strict=True)]


def group(sources: Sequence[SourceFile], group_by: Literal["image", "folder"]) -> list[SourceFile]:
    """The labelled sources. With `group_by` folder, a source without a group gets its folder as its group.

    Raises InvalidInput if no image lies in a folder, or if the folders are the classes.
    """
    if group_by == "image":
        return list(sources)
    if all(source.label == source.name.rpartition("/")[0].rpartition("/")[2] for source in sources):
        raise InvalidInput("`group_by` is folder, but the folders are the classes; name the groups in a manifest")
    folders = [source.name.rpartition("/")[0] for source in sources]
    if not any(folders):
        raise InvalidInput(
            "`group_by` is folder, but no image lies in one; send them in folders, or name the groups in a manifest"
        )
    return [
        replace(source, group=source.group or folder or None) for source, folder in zip(sources, folders, strict=True)
    ]


def relabel(
    sources: Sequence[SourceFile], label_map: Mapping[str, str], classes: Mapping[str, Collection[str]]
) -> list[SourceFile]:
    """Apply the label map, then check every label against all lists in `classes` (owner of the list → list).

    Raises InvalidInput, which lists unknown labels, and TooLarge for more labels than a label set may have.
    """
    mapped = [replace(source, label=label_map.get(source.label or "", source.label)) for source in sources]
    used = {source.label for source in mapped if source.label is not None}
    if len(used) > MAX_CLASSES:
        raise TooLarge(f"the images have {len(used):,} different labels, more than {MAX_CLASSES:,}; send several jobs")
    if long := next((label for label in used if len(label) > MAX_LABEL_CHARACTERS), None):
        raise InvalidInput(f"the label {long[:40]!r}… has more than {MAX_LABEL_CHARACTERS} characters; shorten it")
    refuse_unknown_labels(used, classes, f"{MAP_LABELS}, or {WITHOUT_LABELS} to test without labels")
    return mapped


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
    if archive is None:
        return (read_file(file, limits) for file in files)
    most = limits.images * (2 if has_masks else 1) + len(MANIFEST_NAMES)
    archive_limits = ArchiveLimits(most, limits.image_bytes, limits.archive_bytes)
    return _set_aside(members(archive.content, archive_limits), aside)


def _set_aside(incoming: Iterable[Member], aside: _Aside) -> Iterator[Member]:
    """Yield possible images and masks; collect the other files in `aside`."""
    for member in incoming:
        if is_manifest(member.name):
            aside.manifests.append(member)
        elif member.name.rpartition("/")[2] == NOTE_NAME and not aside.originals and _is_export(member):
            aside.originals = member.name.removesuffix(NOTE_NAME) + ORIGINALS
        elif member.name.startswith(aside.originals) or is_mask(member.name):
            yield member


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


def _manifest_rows(
    sources: Sequence[SourceFile], manifest: bytes | None, inner_manifests: Sequence[Member]
) -> list[ManifestRow] | None:
    """The manifest's row of each source; None without a manifest."""
    manifests = [data for data in (manifest, *(inner.data for inner in inner_manifests)) if data is not None]
    if len(manifests) != len(inner_manifests) + (manifest is not None):
        raise TooLarge("the manifest in the archive is too large or damaged; send it as the part `manifest`")
    if len(manifests) > 1:
        raise InvalidInput("there is more than one manifest; send one")
    return match_rows(parse_manifest(manifests[0]), [source.name for source in sources]) if manifests else None


def _labels(
    sources: Sequence[SourceFile], rows: Sequence[ManifestRow] | None, known_classes: Collection[str] | None
) -> list[str | None]:
    if rows is not None:
        return [row.label for row in rows]
    names = [source.name for source in sources]
    return [None] * len(names) if known_classes is None else folder_labels(names, known_classes)
