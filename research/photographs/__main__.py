"""A trial on photographs: a pretrained ImageNet classifier on cut-outs that are moved to photographic backgrounds.

python -m research.photographs --directory runs/photographs

Fetches packages (230 MB), makes the source images, and runs one job of `compose` and `corruptions` through an embedded
system, then a suite of it, and a repair. Repeat the command after an interruption: it goes on where it stopped. The
directory gets `results.json`, `report.html` and `tables.md` before the repair, and `tables.md` again after it.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import sys
import zipfile
from pathlib import Path, PurePosixPath

from contrafact import Client, JobSpec, ModelSpec
from research.photographs.backgrounds import backgrounds
from research.photographs.classifier import write_classifier
from research.photographs.cutouts import cutouts, on_grey, outputs_by_class
from research.photographs.packages import BACKGROUNDS, CLASS_NAMES, CLASSIFIER, CUTOUTS, PACKAGES, fetch, members
from research.photographs.tables import tables
from research.system.public_jobs import embedded_client, wait_for_repair
from shared.media.images import encode
from shared.schemas.jobs import JobDetail, MethodChoice
from shared.schemas.repairs import RepairRequest, RepairView
from shared.schemas.suites import SuiteDetail, SuiteRequest
from shared.seeds import derive_digest

MODEL = "efficientnet-lite0"
TASK = "name the kind of the main object of the photo"
CORRUPTIONS = ["gaussian_noise", "motion_blur", "fog", "jpeg"]
REPAIR_STEPS = 60  # about an hour of a shared core
_SYNSETS = PurePosixPath("timm/data/_info/imagenet_synsets.txt")
_LEMMAS = PurePosixPath("timm/data/_info/imagenet_synset_to_lemma.txt")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("runs/photographs"))
    parser.add_argument("--steps", type=int, default=REPAIR_STEPS, help="of the repair; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    directory: Path = options.directory
    packages = {package: fetch(package, directory / "packages") for package in PACKAGES}
    archive = directory / "sources.zip"
    if not archive.exists():
        write_sources(packages[CUTOUTS], archive)
    with embedded_client(directory / "contrafact", "tiny") as client:
        if MODEL not in {model.name for model in client.models().models}:
            add_classifier(client, packages[CLASSIFIER], class_names(packages[CLASS_NAMES]), directory / "model")
        job = start(client, archive, upload_backgrounds(client, packages[BACKGROUNDS], directory), options.seed)
        per_cent = -1
        for detail in client.follow(job.id):
            if (reached := int(100 * detail.progress.fraction)) >= per_cent + 5:
                print(f"photographs: {reached} %", file=sys.stderr, flush=True)
                per_cent = reached
        suite = suite_of(client, job.id)
        write(client, job.id, suite, None, directory)
        if options.steps:
            write(client, job.id, suite, retrain(client, job.id, options.steps), directory)


def class_names(wheel: Path) -> list[str]:
    """ImageNet's 1,000 class names in the order of a classifier's outputs; equal ones get their synset."""
    files = {path: content.decode() for path, content in members(wheel) if path in (_SYNSETS, _LEMMAS)}
    lemmas = dict(line.split("\t", 1) for line in files[_LEMMAS].splitlines())
    synsets = files[_SYNSETS].split()
    names = [lemmas[synset].split(",")[0].strip() for synset in synsets]
    return [
        f"{name} ({synset})" if names.count(name) > 1 else name for name, synset in zip(names, synsets, strict=True)
    ]


def write_sources(package: Path, archive: Path) -> None:
    """The cut-outs on grey with masks and a manifest, as one archive."""
    rows = io.StringIO()
    manifest = csv.writer(rows, lineterminator="\n")
    manifest.writerow(["file", "label", "mask"])
    partial = archive.with_suffix(".part")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as target:
        for cutout in cutouts(package):
            image, mask = on_grey(cutout)
            target.writestr(f"images/{cutout.name}.png", encode(image))
            target.writestr(f"masks/{cutout.name}.png", encode(mask))
            manifest.writerow([f"images/{cutout.name}.png", cutout.label, f"masks/{cutout.name}.png"])
        target.writestr("manifest.csv", rows.getvalue())
    partial.rename(archive)


def add_classifier(client: Client, wheel: Path, names: list[str], folder: Path) -> None:
    """Convert and upload the classifier; its outputs are grouped into the trial's classes."""
    write_classifier(wheel, names, folder)
    spec = ModelSpec(
        name=MODEL, classes=outputs_by_class(), licence="Apache-2.0", description="EfficientNet-Lite0, ImageNet"
    )
    client.add_model(spec, sorted(folder.iterdir()))


def upload_backgrounds(client: Client, package: Path, directory: Path) -> list[dict[str, str]]:
    """Upload the background photographs; digest and value of each."""
    folder = directory / "backgrounds"
    folder.mkdir(exist_ok=True)
    chosen = []
    for value, pixels in backgrounds(package):
        path = folder / f"{value.replace(' ', '-')}.png"
        path.write_bytes(encode(pixels))
        chosen.append({"digest": client.upload(path), "value": value})
    return chosen


def start(client: Client, archive: Path, chosen: list[dict[str, str]], seed: int) -> JobDetail:
    """Start the job, or find it again: every cut-out on every background, and four corruptions."""
    compose = {"backgrounds": chosen, "backgrounds_per_image": len(chosen)}
    spec = JobSpec(
        task_description=TASK,
        methods=[
            MethodChoice(name="compose", parameters=compose),
            MethodChoice(name="corruptions", parameters={"corruptions": CORRUPTIONS}),
        ],
        models=[MODEL],
        object_masks=True,
        seed=seed,
    )
    content = hashlib.sha256(archive.read_bytes()).hexdigest()
    return client.create_from_archive(spec, archive, None, derive_digest(spec.model_dump_json(), content).hex())


def suite_of(client: Client, job: str) -> SuiteDetail:
    """The job's suite, a new one unless there is one."""
    for suite in client.suites():
        if suite.made_from == job:
            return client.suite(suite.id)
    return client.create_suite(SuiteRequest(job=job, name=f"photographs-{job[:8]}"))


def retrain(client: Client, job: str, steps: int) -> RepairView:
    """Fine-tune the classifier on the job's composites, or find that repair again."""
    views = [view for view in client.repairs(200).repairs if view.job == job and view.state in ("running", "done")]
    view = views[0] if views else client.begin_repair(job, RepairRequest(model=MODEL, steps=steps))
    return wait_for_repair(client, view)


def write(client: Client, job: str, suite: SuiteDetail, repair: RepairView | None, directory: Path) -> None:
    """Write results, report and tables; `repair` None: there is none yet."""
    results = client.results(job, {}, limit=1).metrics
    assert results is not None, "the job ended without results; its page says why"
    (directory / "results.json").write_text(results.model_dump_json() + "\n", encoding="utf-8")
    (directory / "report.html").write_bytes(client.report(job))
    text = tables(results, client.counterfactuals(job, {"method": "compose"}), suite, repair)
    (directory / "tables.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
