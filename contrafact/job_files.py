"""Builds a job from command-line options and files: spec, parameters, and images with labels."""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import JsonValue
from rich.console import Console

from contrafact.client import Client
from contrafact.progress_display import show_progress, show_upload
from shared.archives import is_archive
from shared.manifests import ManifestRow, folder_labels, is_manifest, match_rows, parse_manifest, refuse_masks
from shared.problems import InvalidInput, Problem, TooLarge, quote
from shared.schemas.designs import DesignKind
from shared.schemas.jobs import JobDetail, JobRequest, JobSpec, ManifestImage, MethodChoice, MethodInfo
from shared.schemas.masks import MaskSpec
from shared.schemas.plans import JobPlan
from shared.seeds import derive_digest

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp"})
FILES_AT_ONCE = 4
LOOKED_AT = 16  # images that a dry run sends, so that the gateway can see whether its profile knows such images
_LISTED = 5  # files in a message
NamedPath = tuple[str, Path]  # the file's name in the job, and where it is


def spec_of(
    task: str,
    methods: Sequence[MethodChoice],
    models: Sequence[str] | None,
    label_map: Sequence[str],
    seed: int,
    no_labels: bool,
    calibration: str | None,
    masks: Path | None = None,
    group_by: Literal["image", "folder"] = "image",
    reference_models: Sequence[str] = (),
    design: DesignKind = "free",
    values: Sequence[str] = (),
    budget: int | None = None,
    object_masks: bool = False,
    outside_domain: bool = False,
) -> JobSpec:
    """The job's spec. The gateway's defaults apply to options left out. `masks` is a JSON file."""
    spec: dict[str, object] = {"task_description": task, "seed": seed}
    if methods:
        spec["methods"] = list(methods)
    if models is not None:
        spec["models"] = list(models)
    if reference_models:
        spec["reference_models"] = list(reference_models)
    if label_map:
        spec["label_map"] = dict(parse_pair(text) for text in label_map)
    if no_labels:
        spec["ground_truth"] = "none"
    if calibration is not None:
        spec["calibration"] = calibration
    if group_by != "image":
        spec["group_by"] = group_by
    if design != "free" or values or budget is not None:
        spec |= {"design": design, "values": list(values), "budget": budget}
    if outside_domain:
        spec["outside_domain"] = True
    if object_masks:
        spec["object_masks"] = True
    if masks is not None:
        spec["masks"] = MaskSpec.model_validate_json(masks.read_bytes())
    return JobSpec.model_validate(spec)


def method_choices(
    settings: Sequence[str], methods: Sequence[str], list_methods: Callable[[], Sequence[MethodInfo]]
) -> list[MethodChoice]:
    """Each method with its parameters, from `NAME=VALUE` or `METHOD.NAME=VALUE`.

    Without `methods`, the settings apply to the default methods of `list_methods`.
    """
    if not settings:
        return [MethodChoice(name=name) for name in methods]
    names = list(methods) or [method.name for method in list_methods() if method.default]
    choices: dict[str, dict[str, JsonValue]] = {name: {} for name in names}
    for text in settings:
        name, value = parse_pair(text)
        method, dot, parameter = name.rpartition(".")
        if not dot and len(names) != 1:
            raise ValueError(f"{text!r}: with several methods, write METHOD.NAME=VALUE")
        if dot and method not in choices:
            raise ValueError(f"{text!r}: this job does not use method {method!r}; its methods are {', '.join(names)}")
        choices[method or names[0]][parameter] = _value(value)
    return [MethodChoice(name=name, parameters=values) for name, values in choices.items()]


def submit_job(
    client: Client,
    spec: JobSpec,
    paths: Sequence[Path],
    labels: Path | None,
    known_classes: Collection[str],
    key: str | None,
    console: Console,
) -> JobDetail:
    """Start the job. An archive is sent unchanged. Other files are uploaded one by one, so that uploads can resume.

    Images with masks are sent as one archive, because a separate upload of a mask would lose its palette indices.
    Without a `key`, the idempotency key is derived from the request: repeating a command whose reply was lost returns
    the same job. Raises ValueError for contradictory options, and `shared.problems.Problem`.
    """
    manifest = read_manifest(paths, labels, console)
    with _archive_of(paths, spec) as archive:
        if archive is not None:
            key = key or _key_of_archive(spec, archive, manifest)
            with show_upload(console, archive.name, archive.stat().st_size) as progress:
                return client.create_from_archive(spec, archive, manifest, key, progress)
    files, rows = _labelled_files(paths, manifest, known_classes)
    digests = upload_images(client, files, console)
    request = _request(spec, files, rows, digests)
    return client.create(request, key or _derived_key(request.model_dump_json(exclude_unset=True)))


def _key_of_archive(spec: JobSpec, archive: Path, manifest: bytes | None) -> str:
    with archive.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    labels = hashlib.sha256(manifest or b"").hexdigest()
    return _derived_key(spec.model_dump_json(exclude_unset=True), content, labels)


def _derived_key(*parts: str) -> str:
    return f"derived-{derive_digest(*parts).hex()}"


def plan_job(
    client: Client,
    spec: JobSpec,
    paths: Sequence[Path],
    labels: Path | None,
    known_classes: Collection[str],
    console: Console,
) -> JobPlan:
    """The plan of the job that `submit_job` would start. Sends an archive, or a few of the single files, for checking.

    Single files are decoded on this machine. Nothing is stored. Raises what `submit_job` raises.
    """
    manifest = read_manifest(paths, labels, console)
    with _archive_of(paths, spec) as archive:
        if archive is not None:
            with show_upload(console, archive.name, archive.stat().st_size) as progress:
                return client.plan_from_archive(spec, archive, manifest, progress)
    files, rows = _labelled_files(paths, manifest, known_classes)
    digests = _of_each(files, _check, "reading", console)
    plan = client.plan(_request(spec, files, rows, digests))
    return plan.model_copy(update={"outside_domain": _outside_domain(client, spec, files, rows)})


def _outside_domain(client: Client, spec: JobSpec, files: Sequence[NamedPath], rows: Sequence[ManifestRow]) -> str:
    """What the plan of a few of the images says of the profile's domain. Raises InvalidInput for images outside."""
    step = -(-len(files) // LOOKED_AT)
    labelled = any(row.label or row.group for row in rows)
    lines = [row.model_dump_json(exclude_none=True) for row in rows[::step]]
    with _pack(files[::step]) as archive:
        return client.plan_from_archive(spec, archive, "\n".join(lines).encode() if labelled else None).outside_domain


@contextmanager
def _archive_of(paths: Sequence[Path], spec: JobSpec) -> Iterator[Path | None]:
    """The archive to send: the given one, a temporary zip of images with masks, or None to upload files one by one."""
    if _is_one_archive(paths):
        yield paths[0]
    elif spec.masks is not None or spec.object_masks:
        with _pack(image_files(paths)) as archive:
            yield archive
    else:
        yield None


@contextmanager
def _pack(files: Sequence[NamedPath]) -> Iterator[Path]:
    """A temporary zip of images and masks, stored without compression."""
    with tempfile.TemporaryDirectory() as directory:
        archive = Path(directory, "images.zip")
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as target:
            for name, path in files:
                target.write(path, name)
        yield archive


def _is_one_archive(paths: Sequence[Path]) -> bool:
    if len(paths) != 1 or not paths[0].is_file():
        return False
    with paths[0].open("rb") as file:
        return is_archive(file)


def _labelled_files(
    paths: Sequence[Path], manifest: bytes | None, known_classes: Collection[str]
) -> tuple[list[NamedPath], list[ManifestRow]]:
    """The image files, each with its row of the manifest. Without a manifest, the folder's name is the label."""
    files = image_files(paths)
    return files, label_rows([name for name, _ in files], manifest, known_classes)


def label_rows(names: Sequence[str], manifest: bytes | None, known_classes: Collection[str]) -> list[ManifestRow]:
    """The row of each file, from the manifest or else from class folders. Raises InvalidInput and Malformed."""
    if manifest is None:
        labels = folder_labels(names, known_classes)
        return [ManifestRow(file=name, label=label) for name, label in zip(names, labels, strict=True)]
    rows = match_rows(parse_manifest(manifest), names)
    refuse_masks(rows)
    return rows


def read_manifest(paths: Sequence[Path], labels: Path | None, console: Console) -> bytes | None:
    """The manifest `labels`, or the only `manifest.csv` or `manifest.jsonl` among the paths or in their folders.

    The console names it in the second case. None if there is none. Raises InvalidInput if there are several, as for an
    archive.
    """
    sent = (file for path in paths for file in (_visible_files(path) if path.is_dir() else [path]))
    inside = [file for file in sent if is_manifest(file.name)]
    manifests = {file.resolve(): file for file in [*inside, *([labels] if labels else [])]}
    if len(manifests) > 1:
        raise InvalidInput(f"there is more than one manifest: {quote([*map(str, manifests.values())])}; keep one")
    for file in manifests.values():
        if labels is None:
            console.print(f"labels are read from {file}", markup=False, soft_wrap=True)
        return file.read_bytes()
    return None


def _visible_files(folder: Path) -> Iterator[Path]:
    """The files below a folder, without hidden ones and those of hidden folders."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts):
            yield file


def _request(
    spec: JobSpec, files: Sequence[NamedPath], rows: Sequence[ManifestRow], digests: Sequence[str]
) -> JobRequest:
    images = [
        ManifestImage(digest=digest, label=row.label, name=name, group=row.group)
        for digest, row, (name, _) in zip(digests, rows, files, strict=True)
    ]
    return JobRequest(**spec.model_dump(exclude_unset=True), images=images)


def image_files(paths: Sequence[Path]) -> list[NamedPath]:
    """Names and paths of the images, sorted by name; folders are searched recursively. Manifests are left out."""
    files: list[NamedPath] = []
    for path in paths:
        if path.is_file():
            files += [] if is_manifest(path.name) else [(path.name, path)]
            continue
        images = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        parent = path.resolve().parent
        files += [
            (file.resolve().relative_to(parent).as_posix(), file) for file in images if not file.name.startswith(".")
        ]
    if not files:
        raise ValueError(f"there are no PNG, JPEG or WebP images in {', '.join(map(str, paths))}")
    return files


def upload_images(client: Client, files: Sequence[NamedPath], console: Console) -> list[str]:
    """Upload the named files, several at a time, with a display of progress. Returns their digests.

    Raises InvalidInput that names the files which the gateway cannot use as images, once all are sent.
    """
    return _of_each(files, client.upload, "uploading", console)


def _check(path: Path) -> str:
    """The digest of a file that decodes as an image. Raises InvalidInput and TooLarge, as an upload does."""
    from shared.images import decode  # NumPy and Pillow, which only this needs

    data = path.read_bytes()
    decode(data)
    return hashlib.sha256(data).hexdigest()


def _of_each(files: Sequence[NamedPath], digest_of: Callable[[Path], str], doing: str, console: Console) -> list[str]:
    """The digests of the files. Raises InvalidInput with the reasons why `digest_of` refused some."""

    def digest_or_problem(file: NamedPath) -> str | Problem:
        name, path = file
        try:
            return digest_of(path)
        except (InvalidInput, TooLarge) as problem:
            return problem.about(name)

    with show_progress(console, doing, len(files)) as display, ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        replies = []
        for reply in pool.map(digest_or_problem, files):
            replies.append(reply)
            display.advance()
    if refused := [reply for reply in replies if isinstance(reply, Problem)]:
        reasons = "; ".join(problem.detail for problem in refused[:_LISTED])
        more = f"; and {len(refused) - _LISTED} more" if len(refused) > _LISTED else ""
        raise InvalidInput(f"{len(refused)} of {len(files)} files cannot be used: {reasons}{more}")
    return [reply for reply in replies if isinstance(reply, str)]


def _value(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value


def parse_pair(text: str) -> tuple[str, str]:
    """Split `NAME=VALUE`. Raises ValueError for anything else."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value
