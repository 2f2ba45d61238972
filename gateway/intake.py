"""From uploads, archives and manifests to checked source images; no database, no HTTP.

    file or member ──decode, under limits──► canonical PNG in the object store ──► SourceFile(digest, label)
                   └─ cannot be used ──────► SourceFile(failure), a failed source image; the others go on

Labels come from the manifest, else from the class folders of an archive, else there are none. Of an archive that
Contrafact exported, the originals are the source images, and its manifest has their labels.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Protocol

from pydantic import ValidationError

from gateway.archives import MAX_NAME_CHARACTERS, ArchiveLimits, Member, is_archive, members
from gateway.export.records import NOTE_NAME, ORIGINALS, ExportNote
from gateway.manifests import MANIFEST_NAMES, folder_labels, match_labels, parse_manifest
from shared.characters import visible
from shared.images import canonical
from shared.problems import InvalidInput, TooLarge
from shared.schemas.jobs import MAX_CLASSES, MAX_LABEL_CHARACTERS
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
class SourceFile:
    """One position of a job: a kept image, or why there is none."""

    name: str
    label: str | None
    image: KeptImage | None
    failure: str = ""


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


def take_in(
    files: Sequence[NamedFile],
    manifest: bytes | None,
    known_classes: Collection[str],
    store: ImageStore,
    limits: IntakeLimits,
) -> list[SourceFile]:
    """The source images of a job, in the order of the files, or of the one archive among them.

    `known_classes` tells a single class folder from a folder that is just a folder. Raises InvalidInput when nothing
    can be used, and whatever archive or manifest are refused for.
    """
    if not files:
        raise InvalidInput("there are no images; send them as parts named `images`, or one zip or tar")
    archives = [file for file in files if is_archive(file.content)]
    if archives and len(files) > 1:
        raise InvalidInput(f"{archives[0].name!r} is an archive; send it alone, or send images only")
    inner_manifests: list[Member] = []
    notes: list[str] = []
    if archives:
        limit = ArchiveLimits(limits.images + len(MANIFEST_NAMES), limits.image_bytes, limits.archive_bytes)
        incoming = _split_manifests(members(archives[0].content, limit), inner_manifests, notes)
    else:
        incoming = (_read_one(file, limits) for file in files)
    taken = [_take_one(member, store, limits) for member in incoming]
    taken = [source for source in taken if _is_source(source.name, notes)]  # the note may come last
    if notes and not taken:
        raise InvalidInput("this export holds no originals; export the job with its originals to test them again")
    if len(taken) > limits.images:
        raise TooLarge(f"{len(taken):,} images are more than the {limits.images:,} of one job; send several jobs")
    _refuse_if_unusable(taken)
    labels = _labels(taken, manifest, inner_manifests, known_classes if archives else None)
    return [replace(source, label=label) for source, label in zip(taken, labels, strict=True)]


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
        elif _is_source(member.name, notes):
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


def _labels(
    sources: Sequence[SourceFile],
    manifest: bytes | None,
    inner_manifests: Sequence[Member],
    known_classes: Collection[str] | None,
) -> list[str | None]:
    """`known_classes` None: the files came without folders."""
    found = [data for data in (manifest, *(inner.data for inner in inner_manifests)) if data is not None]
    if len(found) != len(inner_manifests) + (manifest is not None):
        raise TooLarge("the manifest in the archive is too large or damaged; send it as the part `manifest`")
    if len(found) > 1:
        raise InvalidInput("there is more than one manifest; send one")
    names = [source.name for source in sources]
    if found:
        return match_labels(parse_manifest(found[0]), names)
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
