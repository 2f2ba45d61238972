"""What a background remover's masks are worth: how near they are to the true ones, and what a job finds with them.

python -m research.photographs.masks PROFILE --directory runs/photographs

Cut-outs over photographs are source images whose true masks are known. The command runs `compose` twice on the same
images, without and with their masks, on an embedded system of PROFILE, which names a `[diffusion.background_remover]`.
It prints and writes `masks.md`.
"""

from __future__ import annotations

import argparse
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from contrafact import Client, JobSpec
from gateway.analysis.certainty import LEVEL, mean_interval
from research.paper_tables.printing import grid
from research.photographs.__main__ import MODEL, TASK, add_classifier, class_names, upload_backgrounds
from research.photographs.backgrounds import backgrounds
from research.photographs.cutouts import SIDE, Cutout, cutouts, on_grey
from research.photographs.packages import BACKGROUNDS, CLASS_NAMES, CLASSIFIER, CUTOUTS, PACKAGES, fetch
from research.photographs.tables import effects_by_value
from research.system.public_jobs import embedded_client
from shared.media.images import decode, encode
from shared.schemas.jobs import JobDetail, MethodChoice
from shared.schemas.results import CounterfactualView

ADDED = "wet leaf"  # on none of the source images, so that every one can be moved to it
POOR = 0.8  # IoU
Picture = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Photograph:
    """A source image (height × width × 3), its true mask (255 is the object), and its label."""

    name: str
    label: str
    pixels: Picture
    mask: Picture


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", help="a shipped profile, or a file")
    parser.add_argument("--directory", type=Path, default=Path("runs/photographs"))
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    directory: Path = options.directory
    packages = {package: fetch(package, directory / "packages") for package in PACKAGES}
    images = list(photographs(packages[CUTOUTS], packages[BACKGROUNDS], options.images, options.seed))
    begun, parts = time.monotonic(), []
    with embedded_client(directory / "masks", options.profile) as client:
        print(f"started after {time.monotonic() - begun:.0f} s", flush=True)
        if MODEL not in {model.name for model in client.models_when_ready().models}:
            add_classifier(client, packages[CLASSIFIER], class_names(packages[CLASS_NAMES]), directory / "model")
        chosen = upload_backgrounds(client, packages[BACKGROUNDS], directory)
        for masks in (False, True):
            archive = directory / f"{'with' if masks else 'without'}-masks.zip"
            write_archive(images, archive, masks=masks)
            job, seconds = run(client, archive, chosen, masks=masks, seed=options.seed)
            name = "True masks" if masks else "Masks of the background remover"
            parts += [f"### {name}: {seconds:.0f} s", *outcome(client, job, {image.name: image for image in images})]
            text = "\n\n".join(parts) + "\n"
            (directory / "masks.md").write_text(text, encoding="utf-8")
    print(text)


def photographs(package: Path, scenery: Path, count: int, seed: int) -> Iterator[Photograph]:
    """Cut-outs drawn by the seed, each over the next of the background photographs, at a place drawn by the seed."""
    chance = Random(seed)
    places = cycle([pixels for value, pixels in backgrounds(scenery) if value != ADDED])
    for cutout, background in zip(chance.sample(list(cutouts(package)), count), places, strict=False):
        yield _placed(cutout, background, chance)


def _placed(cutout: Cutout, background: Picture, chance: Random) -> Photograph:
    _, mask = on_grey(cutout, background)
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    reach = int(min(rows[0], columns[0], SIDE - 1 - rows[-1], SIDE - 1 - columns[-1]))
    image, mask = on_grey(cutout, background, (chance.randint(-reach, reach), chance.randint(-reach, reach)))
    return Photograph(cutout.name, cutout.label, image, mask)


def write_archive(images: list[Photograph], path: Path, *, masks: bool) -> None:
    """The images in class folders, and their masks beside them."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as target:
        for image in images:
            target.writestr(f"images/{image.label}/{image.name}.png", encode(image.pixels))
            if masks:
                target.writestr(f"masks/{image.label}/{image.name}.png", encode(image.mask))


def run(
    client: Client, archive: Path, chosen: list[dict[str, str]], *, masks: bool, seed: int
) -> tuple[JobDetail, float]:
    """A job that moves every object to all backgrounds, and its seconds."""
    compose = {
        "backgrounds": chosen,
        "backgrounds_per_image": len(chosen),
        "scales": [],
        "places": [],
        "mirrored": False,
    }
    spec = JobSpec(
        task_description=TASK,
        methods=[MethodChoice(name="compose", parameters=compose)],
        models=[MODEL],
        object_masks=masks,
        seed=seed,
    )
    begun = time.monotonic()
    job = client.create_from_archive(spec, archive, None, None)
    *_, ended = client.follow(job.id)
    return ended, time.monotonic() - begun


def outcome(client: Client, job: JobDetail, images: Mapping[str, Photograph]) -> Iterator[str]:
    """Masks, effects by value, findings, and refusals."""
    edits = list(client.counterfactuals(job.id, {"method": "compose"}))
    yield _masks(client, edits, images)
    yield effects_by_value(edits)
    refused = Counter(edit.verdict.reason.split(":")[0] for edit in edits if not edit.verdict.accepted)
    yield grid(["refused compositions", "reason"], [[str(count), reason] for reason, count in refused.most_common()])
    metrics = client.results(job.id, {}, limit=1).metrics
    findings = [] if metrics is None else [cell.sentence for figures in metrics.results for cell in figures.findings]
    yield "\n".join(f"* {sentence}" for sentence in findings) or "No findings."


def _masks(client: Client, edits: list[CounterfactualView], images: Mapping[str, Photograph]) -> str:
    """How many images have a mask, and its IoU with the truth."""
    found = {Path(edit.source.name or "").stem: edit.control_image for edit in edits if edit.verdict.accepted}
    values = []
    for name, digest in found.items():
        mask, truth = decode(client.image(digest or ""), "L") > 0, images[name].mask > 0
        values.append(float((mask & truth).sum() / (mask | truth).sum()))
        print(f"{name}: {values[-1]:.3f}", flush=True)
    interval = mean_interval(np.array(values), LEVEL, 0)
    bounds = "" if interval is None else f" ({interval.low:.3f} to {interval.high:.3f})"
    poor = sum(value < POOR for value in values)
    return (
        f"{len(found)} of {len(images)} images have an accepted mask: IoU {np.mean(values):.3f}{bounds}, median "
        f"{np.median(values):.3f}; {poor} below {POOR}."
    )


if __name__ == "__main__":
    main()
