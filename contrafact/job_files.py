"""Builds a job from command-line options and files: spec, parameters, and images with labels."""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue
from rich.console import Console

from contrafact.client import Client
from contrafact.progress_display import show_progress, show_upload
from contrafact.testset_files import LocalSet, NamedPath, gather
from shared.media.archives import is_archive_file
from shared.media.class_names import read_label_map
from shared.media.manifests import ManifestRow
from shared.media.testsets import UNWANTED, distinct, images_to_look_at
from shared.problems import InvalidInput, Malformed, Problem, TooLarge
from shared.schemas.boxes import BoxSpec
from shared.schemas.designs import DesignKind
from shared.schemas.jobs import JobDetail, JobRequest, JobSpec, ManifestImage, MethodChoice, MethodInfo
from shared.schemas.masks import MaskSpec
from shared.schemas.plans import JobPlan
from shared.schemas.questions import QuestionSpec
from shared.seeds import derive_digest

FILES_AT_ONCE = 4
_LISTED = 5  # files in a message


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
    design: DesignKind | None = None,
    values: Sequence[str] = (),
    budget: int | None = None,
    object_masks: bool = False,
    outside_domain: bool = False,
    protected_characteristics: Literal["refuse", "allow"] = "refuse",
    boxes: BoxSpec | None = None,
    questions: QuestionSpec | None = None,
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
        spec["label_map"] = dict(pair for text in label_map for pair in _label_pairs(text))
    if no_labels:
        spec["ground_truth"] = "none"
    if calibration is not None:
        spec["calibration"] = calibration
    if group_by != "image":
        spec["group_by"] = group_by
    options = {"design": design, "values": list(values) or None, "budget": budget}
    spec |= {name: value for name, value in options.items() if value is not None}
    if outside_domain:
        spec["outside_domain"] = True
    if protected_characteristics != "refuse":
        spec["protected_characteristics"] = protected_characteristics
    if object_masks:
        spec["object_masks"] = True
    if masks is not None:
        spec["masks"] = MaskSpec.model_validate_json(masks.read_bytes())
    if boxes is not None:
        spec["boxes"] = boxes
    if questions is not None:
        spec["questions"] = questions
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
    boxes: Sequence[Path] = (),
) -> JobDetail:
    """Start the job. An archive is sent unchanged. Other files are uploaded one by one, so that uploads can resume.

    Images with masks or boxes are sent as one archive, because a separate upload of a mask would lose its palette
    indices, and boxes lie in files of many formats. `boxes`: files and folders of them, if not beside the images.
    Without a `key`, the idempotency key is derived from the request: repeating a command whose reply was lost returns
    the same job. A design, which may refuse its budget, is planned before anything is uploaded. Raises ValueError
    for contradictory options, and `shared.problems.Problem`.
    """
    limited = spec.design == "adaptive" or spec.budget is not None
    with _archive_of(paths, spec, boxes, console) as archive:
        if archive is not None:
            if limited:
                _refuse_small_budget(client, spec, paths, labels, known_classes, console)
            manifest = None if labels is None else labels.read_bytes()
            key = key or _key_of_archive(spec, archive, manifest)
            with show_upload(console, archive.name, archive.stat().st_size) as progress:
                detail = client.create_from_archive(spec, archive, manifest, key, progress)
            _print_lines(console, client.plan_of(detail.id).test_set)
            return detail
    local, planned = gather(paths), None
    if limited:
        digests = _usable(local, partial(_check, pixels={}), "reading", console)
        planned = client.plan(_request(spec, local, digests, labels, known_classes))
    request = _request(spec, local, _usable(local, client.upload, "uploading", console), labels, known_classes)
    _print_lines(console, _lines(request, local, planned))
    return client.create(request, key or _derived_key(request.model_dump_json(exclude_unset=True)))


def _refuse_small_budget(
    client: Client,
    spec: JobSpec,
    paths: Sequence[Path],
    labels: Path | None,
    known_classes: Collection[str],
    console: Console,
) -> None:
    """Raise InvalidInput if the budget is too small for an archive's images, before it is uploaded.

    The gateway alone reads masks and boxes, so the plan is asked for without ground truth: of all images, or of half of
    them where each may have a mask. An adaptive job is planned if its labels can be read here; one of compose is not.
    """
    has_masks = spec.masks is not None or spec.object_masks
    if (has_masks and spec.design == "adaptive") or any(method.name == "compose" for method in spec.methods or ()):
        return
    with _unpacked(paths) as folders:
        local = gather(folders)
        digests = _usable(local, partial(_check, pixels={}), "reading", console)
        if spec.design == "adaptive":
            try:
                request = _request(spec, local, digests, labels, known_classes)
            except Problem:  # of the labels, which the gateway will find or refuse
                return
        else:
            images = list(dict.fromkeys(digest for digest in digests if digest))
            images = images[: -(-len(images) // 2)] if has_masks else images
            bare = {"ground_truth": "none", "masks": None, "object_masks": False, "boxes": None, "group_by": "image"}
            bare["questions"] = None
            fields = spec.model_copy(update=bare).model_dump(exclude_unset=True)
            request = JobRequest(**fields, images=[ManifestImage(digest=digest) for digest in images])
    client.plan(request)


@contextmanager
def _unpacked(paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """The paths; or a temporary folder with the files of the one archive. Raises Malformed for an unreadable one."""
    if not is_one_archive(paths):
        yield paths
        return
    with tempfile.TemporaryDirectory() as directory:
        try:
            if zipfile.is_zipfile(paths[0]):
                with zipfile.ZipFile(paths[0]) as members:
                    members.extractall(directory)
            else:
                with tarfile.open(paths[0]) as stream:
                    stream.extractall(directory, filter="data")
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
            raise Malformed(f"{paths[0]} cannot be unpacked: {error}") from error
        yield [Path(directory)]


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
    boxes: Sequence[Path] = (),
) -> JobPlan:
    """The plan of the job that `submit_job` would start. Sends an archive, or a few of the single files, for checking.

    Single files are decoded on this machine. Nothing is stored. Raises what `submit_job` raises.
    """
    with _archive_of(paths, spec, boxes, console) as archive:
        if archive is not None:
            manifest = None if labels is None else labels.read_bytes()
            with show_upload(console, archive.name, archive.stat().st_size) as progress:
                return client.plan_from_archive(spec, archive, manifest, progress)
    local, pixels = gather(paths), dict[str, str]()
    digests = _usable(local, partial(_check, pixels=pixels), "reading", console)
    request = _request(spec, local, digests, labels, known_classes)
    sampled = _sampled_plan(client, spec, local.images, request, pixels)
    if sampled.design.chosen_by:
        request = request.model_copy(update={"design": sampled.design.kind, "methods": sampled.methods})
    plan = client.plan(request)
    known = {"test_set": _lines(request, local, plan), "outside_domain": sampled.outside_domain}
    return plan.model_copy(update={**known, "design": sampled.design} if sampled.design.chosen_by else known)


def _sampled_plan(
    client: Client, spec: JobSpec, files: Sequence[NamedPath], request: JobRequest, pixels: Mapping[str, str]
) -> JobPlan:
    """The plan of a few of the images: what it says of the profile's domain, and values that are chosen for the job.

    Raises InvalidInput for images outside the domain.
    They are those that the gateway looks at when the job starts, unless it scales images down; `pixels`: the digest of
    an image's pixels by that of its file.
    """
    looked_at = set(images_to_look_at([pixels[image.digest] for image in request.images]))
    usable = {image.name: image for image in request.images if pixels[image.digest] in looked_at}
    sample = [file for file in files if file[0] in usable]
    rows = [usable[name] for name, _ in sample]
    parts = {"name", "label", "group", "questions"}
    named = [row.model_dump(mode="json", include=parts, exclude_defaults=True) for row in rows]
    lines = [json.dumps({"file" if key == "name" else key: value for key, value in row.items()}) for row in named]
    labelled = any(row.label or row.group or row.questions for row in rows)
    if spec.design == "adaptive" or spec.values or spec.budget is not None:  # these may need all images
        spec = spec.model_copy(update={"design": "free", "values": (), "budget": None})
    with _pack(sample) as archive:
        return client.plan_from_archive(spec, archive, "\n".join(lines).encode() if labelled else None)


@contextmanager
def _archive_of(paths: Sequence[Path], spec: JobSpec, boxes: Sequence[Path], console: Console) -> Iterator[Path | None]:
    """The archive to send: the given one, a temporary zip of images with masks or boxes, or None to upload files."""
    if is_one_archive(paths):
        if others := [str(path) for path in boxes if not path.samefile(paths[0])]:
            raise ValueError(f"put {', '.join(others)} into the archive, and give --boxes {paths[0]}")
        yield paths[0]
    elif spec.masks is not None or spec.object_masks or spec.boxes is not None:
        local = gather(paths)
        if elsewhere := [path for path in boxes if path.resolve() not in [images.resolve() for images in paths]]:
            local.take_boxes(elsewhere)
        beside = [] if spec.boxes is None else local.beside
        sent = dict.fromkeys([*local.images, *local.aside, *beside])
        for name, _ in sent:
            local.test_set.left_out.pop(name, None)
        for line in local.test_set.lines(len(local.images), 0)[1:]:
            console.print(line, markup=False, soft_wrap=True)
        with _pack(list(sent)) as archive:
            yield archive
    else:
        yield None


@contextmanager
def _pack(files: Sequence[NamedPath]) -> Iterator[Path]:
    """A temporary zip of the files, stored without compression."""
    with tempfile.TemporaryDirectory() as directory:
        archive = Path(directory, "images.zip")
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as target:
            for name, path in files:
                target.write(path, name)
        yield archive


def is_one_archive(paths: Sequence[Path]) -> bool:
    """Whether the paths are one archive."""
    return len(paths) == 1 and is_archive_file(paths[0])


def _request(
    spec: JobSpec, local: LocalSet, digests: Sequence[str | None], labels: Path | None, known_classes: Collection[str]
) -> JobRequest:
    """The request with the images that have a digest; of equal files, one."""
    rows = local.label(labels, {*known_classes, *spec.label_map}, questions=spec.questions is not None)
    if spec.ground_truth == "none":
        local.test_set.labels_from = UNWANTED
    names = [name for name, _ in local.images]
    truths = [None if spec.ground_truth == "none" else spec.label_map.get(row.label or "", row.label) for row in rows]
    images = [
        ManifestImage(digest=digest, name=names[position], **_truth(rows[position]))
        for position in distinct(local.test_set, names, digests, truths)
        if (digest := digests[position]) is not None
    ]
    return JobRequest(**spec.model_dump(exclude_unset=True), images=images)


def _truth(row: ManifestRow) -> dict[str, Any]:
    """Label, group and questions of an image."""
    return {name: value for name in ("label", "group", "questions") if (value := getattr(row, name)) is not None}


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(f"test set  {line}", markup=False, highlight=False, soft_wrap=True)


def _lines(request: JobRequest, local: LocalSet, planned: JobPlan | None = None) -> list[str]:
    """What is used of the test set, what is left out here and by the gateway's plan, and where labels come from."""
    truths = [image.label is not None or bool(image.questions) for image in request.images]
    labelled = 0 if request.ground_truth == "none" else sum(truths)
    lines = local.test_set.lines(len(request.images), labelled)
    if planned is None or planned.images == len(request.images):
        return lines
    return [planned.test_set[0], *planned.test_set[1:-1], *lines[1:]]


def upload_images(client: Client, files: Sequence[NamedPath], console: Console) -> list[str]:
    """Upload the named files, several at a time, with a display of progress. Returns their digests.

    Raises InvalidInput that names the files which the gateway cannot use as images, once all are sent.
    """
    replies = _of_each(files, client.upload, "uploading", console)
    if any(isinstance(reply, Problem) for reply in replies):
        raise _unusable(files, replies)
    return [reply for reply in replies if isinstance(reply, str)]


def _usable(local: LocalSet, digest_of: Callable[[Path], str], doing: str, console: Console) -> list[str | None]:
    """The digest of each image; None for one that is left out as unusable. Raises InvalidInput if none is usable."""
    replies = _of_each(local.images, digest_of, doing, console)
    if all(isinstance(reply, Problem) for reply in replies):
        raise _unusable(local.images, replies)
    for (name, _), reply in zip(local.images, replies, strict=True):
        if isinstance(reply, Problem):
            local.test_set.left_out[name] = reply.detail
    return [reply if isinstance(reply, str) else None for reply in replies]


def _check(path: Path, pixels: dict[str, str]) -> str:
    """The digest of a file that decodes as an image; that of its pixels is added to `pixels`.

    Raises InvalidInput and TooLarge, as an upload does.
    """
    from shared.media.images import decode, digest  # NumPy and Pillow, which only this needs

    data = path.read_bytes()
    of_file = hashlib.sha256(data).hexdigest()
    pixels[of_file] = digest(decode(data))
    return of_file


def _of_each(
    files: Sequence[NamedPath], digest_of: Callable[[Path], str], doing: str, console: Console
) -> list[str | Problem]:
    """The digest of each file, or the reason why `digest_of` refused it."""

    def digest_or_problem(file: NamedPath) -> str | Problem:
        try:
            return digest_of(file[1])
        except (InvalidInput, TooLarge) as problem:
            return problem
        except (FileNotFoundError, PermissionError) as error:
            return InvalidInput(f"the file cannot be read ({error.strerror})")

    with show_progress(console, doing, len(files)) as display, ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        replies = []
        for reply in pool.map(digest_or_problem, files):
            replies.append(reply)
            display.advance()
    return replies


def _unusable(files: Sequence[NamedPath], replies: Sequence[str | Problem]) -> InvalidInput:
    pairs = zip(files, replies, strict=True)
    reasons = [f"{name!r}: {reply.detail}" for (name, _), reply in pairs if isinstance(reply, Problem)]
    more = f"; and {len(reasons) - _LISTED} more" if len(reasons) > _LISTED else ""
    return InvalidInput(f"{len(reasons)} of {len(files)} files cannot be used: {'; '.join(reasons[:_LISTED])}{more}")


def _value(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value


def _label_pairs(text: str) -> Iterable[tuple[str, str]]:
    """The pair `LABEL=CLASS`, or those of a file. Raises ValueError, and Malformed for a file that is no text."""
    file = Path(text)
    return read_label_map(file.read_bytes(), file.name).items() if file.is_file() else [parse_pair(text)]


def parse_pair(text: str) -> tuple[str, str]:
    """Split `NAME=VALUE`. Raises ValueError for anything else."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value
