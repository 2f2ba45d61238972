"""From uploads, archives and manifests to checked source images; no database, no HTTP.

    file or member ──decode, under limits──► canonical PNG in the object store ──► SourceFile(digest, label)
                   └─ cannot be used ──────► SourceFile(failure), a failed source image; the others go on

Labels come from the manifest, else from the class folders of an archive, else there are none; with masks, from the
masks of the same stem or of the manifest (`gateway.masks`), and an image whose mask is bad is a failed one. Of an
archive that Contrafact exported, the originals are the source images, and its manifest has their labels.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Protocol

from pydantic import ValidationError

from gateway.archives import MAX_NAME_CHARACTERS, ArchiveLimits, Member, is_archive, members
from gateway.export.records import MASKS, NOTE_NAME, ORIGINALS, ExportNote
from gateway.manifests import MANIFEST_NAMES, ManifestRow, folder_labels, match_rows, parse_manifest
from gateway.masks import MaskReader, is_image, is_mask, match_masks, refuse_masks_without_spec
from shared.characters import visible
from shared.images import canonical, from_array
from shared.problems import InvalidInput, TooLarge
from shared.schemas.jobs import MAX_CLASSES
from shared.schemas.masks import MAX_LABEL_CHARACTERS
from shared.storage import image_key

_LISTED = 5
# A picture of 40 megapixels takes half a gigabyte on its way; requests beyond these wait here.
_DECODING = threading.BoundedSemaphore(4)


class ImageStore(Protocol):
    """What intake asks of an object store (`gateway.images.ImagePlace`)."""

    def exists(self, key: str) -> bool:
        """Whether an object has this key, and will keep it until the row of the image is written."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Store `data`, all or nothing."""
        ...


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Bytes of one image file, pixels of one image, images of one job, unpacked bytes of one archive."""

    image_bytes: int
    image_pixels: int
    images: int
    archive_bytes: int


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file as it was sent: the name that its sender gave it (data, never a path) and its content."""

    name: str
    content: IO[bytes]


@dataclass(frozen=True, slots=True)
class KeptImage:
    """An image whose canonical PNG is in the object store; `upload` is the SHA-256 of the file that it came from."""

    digest: str
    upload: str
    width: int
    height: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KeptMask:
    """A mask whose label map (grey PNG: places of classes, 255 for void) is in the object store; what it holds."""

    digest: str
    width: int
    height: int
    bytes: int
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One position of a job: a kept image with its ground truth, or why there is none."""

    name: str
    label: str | None
    image: KeptImage | None
    failure: str = ""
    mask: KeptMask | None = None


@dataclass(frozen=True, slots=True)
class SentMasks:
    """How a job's masks are read, and those that came beside the images rather than in an archive."""

    reader: MaskReader
    files: Sequence[NamedFile] = ()


def keep_image(store: ImageStore, data: bytes, limits: IntakeLimits) -> KeptImage:
    """Decode a file and put its canonical PNG into the store, once.

    Raises TooLarge, Malformed or InvalidInput when it is not an image that Contrafact can use.
    """
    if len(data) > limits.image_bytes:
        raise TooLarge(f"the file is larger than {limits.image_bytes:,} bytes; shrink it")
    with _DECODING:
        image = canonical(data, max_pixels=limits.image_pixels)
    if not store.exists(image_key(image.digest)):
        store.put(image_key(image.digest), image.png)
    return KeptImage(image.digest, hashlib.sha256(data).hexdigest(), image.width, image.height, len(image.png))


def keep_mask(store: ImageStore, data: bytes, reader: MaskReader, limits: IntakeLimits) -> KeptMask:
    """Read a mask and put its label map into the store, once. Raises as `keep_image` and `MaskReader.read` do."""
    if len(data) > limits.image_bytes:
        raise TooLarge(f"the file is larger than {limits.image_bytes:,} bytes; shrink it")
    with _DECODING:
        places = reader.read(data, limits.image_pixels)
    held = tuple(name for place, name in enumerate(reader.classes) if (places == place).any())
    if not held:
        raise InvalidInput("all of its pixels are void; leave the mask out, or name its classes")
    image = from_array(places)
    if not store.exists(image_key(image.digest)):
        store.put(image_key(image.digest), image.png)
    return KeptMask(image.digest, image.width, image.height, len(image.png), held)


def take_in(
    files: Sequence[NamedFile],
    manifest: bytes | None,
    known_classes: Collection[str],
    store: ImageStore,
    limits: IntakeLimits,
    masks: SentMasks | None = None,
) -> list[SourceFile]:
    """The source images of a job, in the order of the files, or of the one archive among them.

    `known_classes` tells a single class folder from a folder that is just a folder; with `masks`, folders are no
    classes, and files in a folder `masks` are masks. Raises InvalidInput when nothing can be used, and whatever archive
    or manifest are refused for.
    """
    if not files:
        raise InvalidInput("there are no images; send them as parts named `images`, or one zip or tar")
    archives = [file for file in files if is_archive(file.content)]
    if archives and len(files) > 1:
        raise InvalidInput(f"{archives[0].name!r} is an archive; send it alone, or send images only")
    inner_manifests: list[Member] = []
    notes: list[str] = []
    kept_masks: dict[str, KeptMask | str] = {}
    if archives:
        most = limits.images * (1 if masks is None else 2) + len(MANIFEST_NAMES)
        limit = ArchiveLimits(most, limits.image_bytes, limits.archive_bytes)
        incoming = _split_manifests(members(archives[0].content, limit), inner_manifests, notes)
    else:
        incoming = (_read_one(file, limits) for file in files)
    if masks is not None:
        sent = ((_read_one(file, limits)) for file in masks.files)
        incoming = _split_masks(
            incoming, sent, kept_masks, lambda member: _take_mask(member, masks.reader, store, limits)
        )
    taken = [_take_one(member, store, limits) for member in incoming]
    taken = [source for source in taken if _is_source(source.name, notes)]  # the note may come last
    if archives and masks is not None:
        taken = _images_beside_masks(taken)
    if notes:  # of an export's masks, those of originals
        of_originals = notes[0].removesuffix(ORIGINALS) + MASKS + ORIGINALS
        kept_masks = {name: mask for name, mask in kept_masks.items() if name.startswith(of_originals)}
    if notes and not taken:
        raise InvalidInput("this export holds no originals; export the job with its originals to test them again")
    if len(taken) > limits.images:
        raise TooLarge(f"{len(taken):,} images are more than the {limits.images:,} of one job; send several jobs")
    _refuse_if_unusable(taken)
    if archives and masks is None:
        refuse_masks_without_spec(source.name for source in taken)
    rows = _manifest_rows(taken, manifest, inner_manifests)
    if masks is not None:
        return _with_masks(taken, kept_masks, rows)
    if rows is not None and any(row.mask for row in rows):
        raise InvalidInput("the manifest names masks, but the spec does not say what they mean; give `masks` in it")
    labels = _labels(taken, rows, known_classes if archives else None)
    return [replace(source, label=label) for source, label in zip(taken, labels, strict=True)]


def truths_of(source: SourceFile) -> list[str]:
    """The classes that an image's ground truth names: its label, or what its mask holds; empty without any."""
    if source.mask is not None:
        return list(source.mask.classes)
    return [] if source.label is None else [source.label]


def relabel(
    sources: Sequence[SourceFile], label_map: Mapping[str, str], classes: Mapping[str, Collection[str]]
) -> list[SourceFile]:
    """Apply the label map, then check that every label is known wherever `classes` (owner of the list → list) says.

    Raises InvalidInput that lists the unknown labels, and TooLarge for more of them than a label set may have.
    """
    mapped = [replace(source, label=label_map.get(source.label or "", source.label)) for source in sources]
    used = {source.label for source in mapped if source.label is not None}
    if len(used) > MAX_CLASSES:
        raise TooLarge(f"the images have {len(used):,} different labels, more than {MAX_CLASSES:,}; send several jobs")
    if long := next((label for label in used if len(label) > MAX_LABEL_CHARACTERS), None):
        raise InvalidInput(f"the label {long[:40]!r}… has more than {MAX_LABEL_CHARACTERS} characters; shorten it")
    refuse_unknown_labels(
        used, classes, 'Map them with `label_map`, or send `"ground_truth": "none"` to test without labels'
    )
    return mapped


def refuse_unknown_labels(used: Collection[str], classes: Mapping[str, Collection[str]], advice: str) -> None:
    """Raise InvalidInput that lists the labels that a list of classes lacks (owner of the list → list)."""
    for owner, known in classes.items():
        if unknown := sorted(set(used) - set(known)):
            raise InvalidInput(
                f"{owner} does not know the labels {_listing(unknown)}; it knows {_listing(sorted(known))}. {advice}",
                members={"unknown_labels": list(unknown[:100])},
            )


def _split_manifests(incoming: Iterable[Member], manifests: list[Member], notes: list[str]) -> Iterator[Member]:
    """What may be images. `notes` becomes the folder of an export's originals, where the archive is an export."""
    for member in incoming:
        name = member.name.rpartition("/")[2]
        if name.lower() in MANIFEST_NAMES:
            manifests.append(member)
        elif name == NOTE_NAME and not notes and _is_export(member):
            notes.append(member.name.removesuffix(NOTE_NAME) + ORIGINALS)
        elif _is_source(member.name, notes) or is_mask(member.name):
            yield member


def _is_source(name: str, notes: Sequence[str]) -> bool:
    return not notes or name.startswith(notes[0])


def _is_export(member: Member) -> bool:
    """Whether it is the note that Contrafact lays into its exports. Raises InvalidInput where these hold no files."""
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


def _read_one(file: NamedFile, limits: IntakeLimits) -> Member:
    file.content.seek(0)
    if len(file.name) > MAX_NAME_CHARACTERS:
        raise InvalidInput(f"a file name has more than {MAX_NAME_CHARACTERS:,} characters; shorten it")
    return Member(visible(file.name), file.content.read(limits.image_bytes + 1))


def _take_one(member: Member, store: ImageStore, limits: IntakeLimits) -> SourceFile:
    if member.data is None:
        return SourceFile(member.name, None, None, member.problem)
    try:
        return SourceFile(member.name, None, keep_image(store, member.data, limits))
    except (InvalidInput, TooLarge) as problem:
        return SourceFile(member.name, None, None, problem.detail)


def _split_masks(
    incoming: Iterable[Member],
    sent: Iterable[Member],
    kept: dict[str, KeptMask | str],
    take: Callable[[Member], KeptMask | str],
) -> Iterator[Member]:
    """What may be images. Masks are read as they come and `kept` by name, or why they cannot be."""
    for member in sent:
        if member.name in kept:
            raise InvalidInput(f"there are two masks named {member.name!r}; give each its own name")
        kept[member.name] = take(member)
    for member in incoming:
        if not is_mask(member.name):
            yield member
        else:
            kept[member.name] = take(member)


def _take_mask(member: Member, reader: MaskReader, store: ImageStore, limits: IntakeLimits) -> KeptMask | str:
    if member.data is None:
        return member.problem
    try:
        return keep_mask(store, member.data, reader, limits)
    except (InvalidInput, TooLarge) as problem:
        return problem.detail


def _with_masks(
    sources: Sequence[SourceFile], kept: Mapping[str, KeptMask | str], rows: Sequence[ManifestRow] | None
) -> list[SourceFile]:
    """Each source image with its mask; one whose mask cannot be used is a failed one."""
    if not kept:
        raise InvalidInput(
            "the spec has `masks`, but none was sent: put them into a folder `masks` of the archive, or send them as "
            "parts, -F masks=@a.png beside -F images=@a.jpg"
        )
    if rows is not None and any(row.label for row in rows):
        raise InvalidInput("the manifest has labels, but the ground truth of this job are masks; leave out one of them")
    named = None if rows is None else [row.mask for row in rows]
    names = match_masks([source.name for source in sources], list(kept), named)
    found = [
        source if name is None else _masked(source, name, kept[name])
        for source, name in zip(sources, names, strict=True)
    ]
    _refuse_if_unusable(found)
    return found


def _images_beside_masks(sources: Sequence[SourceFile]) -> list[SourceFile]:
    """Those in folders `images`, where an archive with masks has such; other folders may hold what nobody asked for."""
    inside = [source for source in sources if is_image(source.name)]
    return inside or list(sources)


def _masked(source: SourceFile, name: str, mask: KeptMask | str) -> SourceFile:
    if source.image is None:
        return source
    if isinstance(mask, str):
        return replace(source, image=None, failure=f"its mask {name!r} cannot be used: {mask}")
    if (mask.width, mask.height) != (source.image.width, source.image.height):
        sizes = f"{mask.width}×{mask.height} pixels, the image {source.image.width}×{source.image.height}"
        return replace(source, image=None, failure=f"its mask {name!r} has {sizes}; make them of one size")
    return replace(source, mask=mask)


def _manifest_rows(
    sources: Sequence[SourceFile], manifest: bytes | None, inner_manifests: Sequence[Member]
) -> list[ManifestRow] | None:
    """The manifest's row of each source; None where there is no manifest."""
    found = [data for data in (manifest, *(inner.data for inner in inner_manifests)) if data is not None]
    if len(found) != len(inner_manifests) + (manifest is not None):
        raise TooLarge("the manifest in the archive is too large or damaged; send it as the part `manifest`")
    if len(found) > 1:
        raise InvalidInput("there is more than one manifest; send one")
    return match_rows(parse_manifest(found[0]), [source.name for source in sources]) if found else None


def _labels(
    sources: Sequence[SourceFile], rows: Sequence[ManifestRow] | None, known_classes: Collection[str] | None
) -> list[str | None]:
    """`known_classes` None: the files came without folders."""
    if rows is not None:
        return [row.label for row in rows]
    names = [source.name for source in sources]
    return [None] * len(names) if known_classes is None else folder_labels(names, known_classes)


def _refuse_if_unusable(sources: Sequence[SourceFile]) -> None:
    if not sources:
        raise InvalidInput("the archive holds no files; put PNG, JPEG or WebP images into it")
    if all(source.image is None for source in sources):
        reasons = "; ".join(f"{source.name!r}: {source.failure}" for source in sources[:_LISTED])
        raise InvalidInput(f"none of the {len(sources)} images can be used: {reasons}")


def _listing(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(repr(name) for name in names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
