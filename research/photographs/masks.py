"""How good a background remover's masks are, and what a job finds with them in place of the true ones.

python -m research.photographs.masks PROFILE --directory runs/photographs

Cut-outs over photographs are source images whose true masks are known. The command compares the masks of PROFILE's
`[diffusion.background_remover]` with them, then runs `compose` twice on the same images, with and without their masks,
on an embedded system of PROFILE. It writes `masks.md`.
"""

from __future__ import annotations

import argparse
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from contrafact import Client, JobSpec
from diffusion_service.background_remover import BackgroundRemover
from gateway.analysis.certainty import LEVEL, mean_interval
from research.paper_tables.printing import grid
from research.photographs.__main__ import MODEL, TASK, add_classifier, class_names, upload_backgrounds
from research.photographs.backgrounds import backgrounds
from research.photographs.cutouts import SIDE, Cutout, cutouts, on_grey
from research.photographs.packages import BACKGROUNDS, CLASS_NAMES, CLASSIFIER, CUTOUTS, PACKAGES, fetch
from research.photographs.tables import effects_by_value
from research.system.public_jobs import embedded_client
from shared.media.images import encode
from shared.profiles.profile import load_profile
from shared.schemas.jobs import JobDetail, MethodChoice

ADDED = "wet leaf"  # on none of the source images, so that every one can be moved to it
Picture = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Photograph:
    """A source image (height × width × 3), its true mask (255 is the object), label and background."""

    name: str
    label: str
    pixels: Picture
    mask: Picture


def photographs(package: Path, scenery: Path, count: int, seed: int) -> Iterator[Photograph]:
    """Cut-outs drawn by the seed, each over the next of the background photographs, at a place drawn by the seed."""
    chance = Random(seed)
    places = cycle([pixels for value, pixels in backgrounds(scenery) if value != ADDED])
    chosen = chance.sample(list(cutouts(package)), count)
    for cutout, background in zip(chosen, places, strict=False):
        yield _placed(cutout, background, chance)


def _placed(cutout: Cutout, background: Picture, chance: Random) -> Photograph:
    image, mask = on_grey(cutout, background)
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    reach = min(rows[0], columns[0], SIDE - 1 - rows[-1], SIDE - 1 - columns[-1])
    shift = chance.randint(-int(reach), int(reach)), chance.randint(-int(reach), int(reach))
    image, mask = on_grey(cutout, background, shift)
    return Photograph(cutout.name, cutout.label, image, mask)


def compare_masks(remover: BackgroundRemover, images: list[Photograph]) -> str:
    """IoU of the accepted masks with the truth, refusals by reason, and seconds for each image."""
    overlaps, refused, begun = [], Counter[str](), time.monotonic()
    for image in images:
        (found,) = remover.find(None, [image.pixels])
        if isinstance(found, np.ndarray):
            overlaps.append(float(((found > 0) & (image.mask > 0)).sum() / ((found > 0) | (image.mask > 0)).sum()))
        else:
            refused[str(found).split(":")[0]] += 1
        print(
            f"{image.name}: {overlaps[-1]:.2f}" if isinstance(found, np.ndarray) else f"{image.name}: {found}",
            flush=True,
        )
    values = np.array(overlaps)
    interval = mean_interval(values, LEVEL, 0)
    seconds = (time.monotonic() - begun) / len(images)
    low, high = (interval.low, interval.high) if interval else (float("nan"),) * 2
    lines = [
        f"{len(values)} of {len(images)} masks accepted; IoU {values.mean():.3f} ({low:.3f} to {high:.3f}), "
        f"median {np.median(values):.3f}, below 0.8: {int((values < 0.8).sum())}",
        *(f"refused, {reason}: {count}" for reason, count in refused.most_common()),
        f"{seconds:.2f} s for each image",
    ]
    return "\n".join(f"* {line}" for line in lines)


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
    """A job of all backgrounds, and its seconds."""
    compose = {"backgrounds": chosen, "backgrounds_per_image": len(chosen)}
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


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", help="a shipped profile, or a file")
    parser.add_argument("--directory", type=Path, default=Path("runs/photographs"))
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-job", action="store_true", help="only compare the masks")
    options = parser.parse_args()
    directory: Path = options.directory
    packages = {package: fetch(package, directory / "packages") for package in PACKAGES}
    images = list(photographs(packages[CUTOUTS], packages[BACKGROUNDS], options.images, options.seed))
    weights = load_profile(options.profile).diffusion.background_remover
    if weights is None:
        raise SystemExit("the profile names no [diffusion.background_remover]")
    parts = [f"### Masks of {weights.id}", compare_masks(BackgroundRemover(weights, device="cpu"), images)]
    if not options.no_job:
        with embedded_client(directory / "masks", options.profile) as client:
            if MODEL not in {model.name for model in client.models_when_ready().models}:
                add_classifier(client, packages[CLASSIFIER], class_names(packages[CLASS_NAMES]), directory / "model")
            chosen = upload_backgrounds(client, packages[BACKGROUNDS], directory)
            for masks in (True, False):
                archive = directory / f"{'with' if masks else 'without'}-masks.zip"
                write_archive(images, archive, masks=masks)
                job, seconds = run(client, archive, chosen, masks=masks, seed=options.seed)
                name = "True masks" if masks else "Masks of the background remover"
                parts += [f"### {name}: {seconds:.0f} s", *outcome(client, job)]
    text = "\n\n".join(parts) + "\n"
    (directory / "masks.md").write_text(text, encoding="utf-8")
    print(text)


def outcome(client: Client, job: JobDetail) -> Iterator[str]:
    """Effects by value, findings, and refusals."""
    edits = list(client.counterfactuals(job.id, {"method": "compose"}))
    yield effects_by_value(edits)
    refused = Counter(edit.verdict.reason.split(":")[0] for edit in edits if not edit.verdict.accepted)
    yield grid(["refused compositions", "reason"], [[str(count), reason] for reason, count in refused.most_common()])
    metrics = client.results(job.id, {}, limit=1).metrics
    findings = (
        [] if metrics is None else [effect.sentence for figures in metrics.results for effect in figures.findings]
    )
    yield "\n".join(f"* {sentence}" for sentence in findings) or "No findings."


if __name__ == "__main__":
    main()
