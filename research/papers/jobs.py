"""Run a kit through the public API: models, a pilot that measures the cost, the job, the retraining.

A command that is repeated goes on where it stopped: the gateway knows uploads by digest and jobs by a key derived from
their content, and what a job has paid for is recorded.
"""

from __future__ import annotations

import csv
import io
import sys
import tempfile
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from PIL import Image

from contrafact import Client, JobRequest, JobSpec, ManifestImage, ModelSpec
from research.papers.folders import SourceFile
from research.papers.kits import ZERO_SHOT, Kit
from research.papers.zero_shot import write_zero_shot
from research.system.public_jobs import wait_for_repair
from shared.schemas.jobs import JobDetail
from shared.schemas.masks import MaskSpec
from shared.schemas.models import is_model_file
from shared.schemas.repairs import RepairRequest, RepairView
from shared.schemas.results import JobResults
from shared.seeds import derive_digest

WEIGHTS = ["*.json", "*.safetensors", "*.txt"]  # never a pickle


class Unfinished(RuntimeError):
    """A job that ended without results."""


def add_models(client: Client, models: Mapping[str, str], classes: Sequence[str] | None, kit: Kit) -> None:
    """Upload the models that the gateway does not have yet: folders in Hub layout, or Hub ids, which are fetched.

    `classes` names their outputs; None keeps the models' own names. Raises ValueError if the gateway has another model
    of that name, because its results would stand for yours.
    """
    listed = {model.name: model.description for model in client.models_when_ready().models}
    for name, where in models.items():
        description = f"{where}, for {kit.title}"
        if name in listed and listed[name] != description:
            raise ValueError(f"the gateway has another model {name!r} ({listed[name]}); give yours another name")
        if name in listed:
            continue
        with tempfile.TemporaryDirectory() as directory:
            folder = _model_folder(where, classes, Path(directory))
            spec = ModelSpec(
                name=name,
                kind=kit.kind,
                classes=None if classes is None else list(classes),
                description=description,
            )
            print(f"uploading {name} ({where})", file=sys.stderr)
            client.add_model(spec, [path for path in sorted(folder.iterdir()) if is_model_file(path.name)])


def _model_folder(where: str, classes: Sequence[str] | None, scratch: Path) -> Path:
    zero_shot = where.startswith(ZERO_SHOT)
    place = where.removeprefix(ZERO_SHOT)
    folder = Path(place) if Path(place).is_dir() else Path(snapshot_download(place, allow_patterns=WEIGHTS))
    if not zero_shot:
        return folder
    if classes is None:
        raise ValueError(f"{where}: a zero-shot classifier needs a class list")
    write_zero_shot(folder, classes, scratch)
    return scratch


def spec_of(kit: Kit, client: Client, models: Sequence[str], seed: int) -> JobSpec:
    """The kit's job without its images; parameters are those of the gateway's profile."""
    spec = JobSpec(task_description=kit.task_description, methods=list(kit.methods), models=list(models), seed=seed)
    if kit.masks is None:
        return spec
    classes = set.intersection(*(set(model.classes) for model in client.models().models if model.name in models))
    label_map = {old: new for old, new in kit.label_map.items() if old not in classes and new in classes}
    return spec.model_copy(update={"label_map": label_map, "masks": _mask_spec(kit.masks, label_map, classes)})


def _mask_spec(masks: MaskSpec, label_map: Mapping[str, str], classes: Collection[str]) -> MaskSpec:
    """The masks with the classes that the models know, under any name; all others are void."""
    judged, void = [], list(masks.void)
    for mask_class in masks.classes:
        if {mask_class.name, label_map.get(mask_class.name)} & set(classes):
            judged.append(mask_class)
        elif mask_class.index is not None:
            print(f"not judged: {mask_class.name}, which a model under test does not know", file=sys.stderr)
            void.append(mask_class.index)
    return MaskSpec(classes=judged, void=void)


def run_job(client: Client, spec: JobSpec, files: Sequence[SourceFile], title: str) -> tuple[JobDetail, JobResults]:
    """Start the job over the files, or find it again, and wait for its results. Raises Unfinished."""
    job = _with_masks(client, spec, files) if spec.masks is not None else _with_labels(client, spec, files)
    per_cent = -1
    for detail in client.follow(job.id):
        if (reached := int(100 * detail.progress.fraction)) >= per_cent + 5:
            print(f"{title}, job {job.id}: {reached} %", file=sys.stderr, flush=True)
            per_cent = reached
    job, results = client.job(job.id), client.results(job.id, {}, limit=1).metrics
    if job.state != "done" or results is None:
        raise Unfinished(
            f"job {job.id} is {job.state}: {job.failure}; `contrafact retry {job.id}` tries its images again"
        )
    return job, results


def _with_labels(client: Client, spec: JobSpec, files: Sequence[SourceFile]) -> JobDetail:
    images = [
        ManifestImage(digest=client.upload(file.path), label=file.label, name=file.name, group=file.group)
        for file in files
    ]
    request = JobRequest(**spec.model_dump(exclude_unset=True), images=images)
    return client.create(request, _key(request.model_dump_json()))


def _with_masks(client: Client, spec: JobSpec, files: Sequence[SourceFile]) -> JobDetail:
    """One archive with images, masks as grey PNGs, and a manifest that names each image's sequence."""
    with tempfile.TemporaryDirectory() as directory:
        archive = Path(directory, "images.zip")
        rows = io.StringIO()
        manifest = csv.writer(rows, lineterminator="\n")
        manifest.writerow(["file", "mask", "group"])
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as target:
            for file in files:
                stem = f"{file.group}_{file.path.stem}"
                target.write(file.path, f"images/{stem}{file.path.suffix}")
                target.writestr(f"masks/{stem}.png", _grey_mask(file))
                manifest.writerow([f"images/{stem}{file.path.suffix}", f"masks/{stem}.png", file.group])
        key = _key(spec.model_dump_json(), *(file.name for file in files))
        return client.create_from_archive(spec, archive, rows.getvalue().encode(), key)


def _grey_mask(file: SourceFile) -> bytes:
    """The red channel of a mask as a grey PNG."""
    assert file.mask is not None
    out = io.BytesIO()
    with Image.open(file.mask, formats=("PNG",)) as mask:
        mask.getchannel(0).save(out, "PNG")
    return out.getvalue()


def _key(*parts: str) -> str:
    return f"kit-{derive_digest(*parts).hex()}"


@dataclass(frozen=True, slots=True)
class PilotCost:
    """What the pilot took for each source image, and what that makes for all."""

    seconds: float
    evaluations: float
    counterfactuals: float
    images: int

    def __str__(self) -> str:
        hours = self.seconds * self.images / 3600
        return (
            f"{self.images} source images × {self.seconds:.1f} s = {hours:.1f} hours, "
            f"{self.evaluations * self.images:,.0f} network evaluations, "
            f"about {self.counterfactuals * self.images:,.0f} accepted counterfactuals"
        )


def seconds_of(job: JobDetail) -> float:
    """From request to report, of a finished job."""
    assert job.finished_at is not None
    return (job.finished_at - job.created_at).total_seconds()


def cost_of(job: JobDetail, results: JobResults, images: int) -> PilotCost:
    """The cost of so many images, from a finished job over some of them."""
    return PilotCost(
        seconds_of(job) / results.sources,
        sum(cost.evaluations for cost in results.costs) / results.sources,
        sum(funnel.accepted.count for funnel in results.funnels) / results.sources,
        images,
    )


def run_repair(client: Client, job: str, request: RepairRequest) -> RepairView:
    """Retrain a model on a job's counterfactuals, or find an earlier repair of the same request.

    Raises RuntimeError without a result.
    """
    earlier = [view for view in client.repairs(200).repairs if view.job == job and view.request == request]
    usable = next((view for view in earlier if view.state in ("running", "done")), None)
    return wait_for_repair(client, usable or client.begin_repair(job, request))
