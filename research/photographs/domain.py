"""Fit the discriminant of a shipped profile's domain, and measure its errors.

    python -m research.photographs.domain --domain roads --write

Inside are drawn pictures in all styles, weathers and sizes; every other one is cropped, scaled, compressed or
corrupted. Outside are photographs and photographic cut-outs on grey, of packages that are fetched by digest. The
discriminant and its limit are fixed on the pictures of the split "calibration" and on every other photograph (the limit
by three-fold cross-validation), and judged on "final-test" and the other photographs. `--more` has further photographs
to judge.
"""

from __future__ import annotations

import argparse
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict

from diffusion_service.editors.corruptions import CORRUPTIONS, corrupt
from evaluator_service.model import Discriminant
from evaluator_service.similarity import Scorer
from gateway.jobs.domain import scaled_down
from research.photographs.backgrounds import backgrounds
from research.photographs.cutouts import cutouts, on_grey
from research.photographs.packages import BACKGROUNDS, CUTOUTS, fetch
from research.photographs.scenes import SCENES, scenes
from research.statistics.rates import rate_text
from shared.media.images import Pixels
from shared.profiles.profile import load_profile
from shared.schemas.diffusion import Corruption
from tinyworld.domain.names import Domain, add_domain
from tinyworld.domain.scenes import Split
from tinyworld.objects.render import render as render_object
from tinyworld.objects.world import sample_scene as sample_object
from tinyworld.roads.render import render as render_road
from tinyworld.roads.world import sample_scene as sample_road

FIRST = 500_000  # of the scenes: far from those that other measurements take
PROFILES: dict[Domain, str] = {"objects": "tiny", "roads": "tiny-roads"}
SIZES = (64, 96, 192, 256)  # of a fifth of the pictures; the others have the 128 pixels that all was trained on
STRENGTH = 1.0  # of the fit: the inverse of scikit-learn's regularisation
Named = tuple[str, Pixels]


def drawn(domain: Domain, split: Split, count: int) -> Iterator[Named]:
    """What was done to a picture, and its pixels."""
    for index in range(count):
        random = np.random.default_rng((0xD0, len(split), index))
        size = 128 if random.random() < 0.8 else int(random.choice(SIZES))
        if domain == "objects":
            image = render_object(sample_object(split, FIRST + index), size).image
        else:
            image = render_road(sample_road(split, FIRST + index), size, size).image
        yield _changed(image, random) if index % 2 else ("drawn", image)


def _changed(image: Pixels, random: np.random.Generator) -> Named:
    """A picture as test sets have it: smaller, larger, compressed, cropped or corrupted."""
    way, picture = int(random.integers(6)), Image.fromarray(image)
    if way < 2:
        side = int(random.integers(48, 110) if way else random.integers(150, 600))
        return "scaled", np.asarray(picture.resize((side, side), Image.Resampling(int(random.choice((0, 1, 2, 3))))))
    if way == 2:
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=int(random.integers(20, 95)))
        return "compressed", np.asarray(Image.open(buffer).convert("RGB"))
    if way == 3:
        return "cropped", crop(image, random)
    kind = list(CORRUPTIONS)[int(random.integers(len(CORRUPTIONS)))]
    severity, seed = int(random.integers(1, 6)), int(random.integers(1_000))
    return "corrupted", corrupt(image, Corruption(kind=kind, severity=severity, seed=seed))


def crop(image: Pixels, random: np.random.Generator) -> Pixels:
    """A part of 60 to 100 % of height and width."""
    height, width = (round(side * random.uniform(0.6, 1)) for side in image.shape[:2])
    top, left = (
        int(random.integers(0, most - part + 1)) for most, part in zip(image.shape, (height, width), strict=False)
    )
    return np.ascontiguousarray(image[top : top + height, left : left + width])


def photographs(folder: Path) -> list[Named]:
    """Each photograph and each cut-out once, in an order that the seed gives."""
    found = [("photograph", pixels) for _, pixels in scenes(fetch(SCENES, folder))]
    found += [("photograph", pixels) for _, pixels in backgrounds(fetch(BACKGROUNDS, folder))]
    found += [("cut-out", on_grey(cutout)[0]) for cutout in cutouts(fetch(CUTOUTS, folder))]
    return [found[place] for place in np.random.default_rng(0xD0).permutation(len(found))]


def features(scorer: Scorer, images: Sequence[Pixels]) -> NDArray[np.float64]:
    """What the service computes of them, in the gateway's small copies."""
    rows = []
    for first in range(0, len(images), 32):
        rows.append(
            scorer.layer_statistics(
                [np.asarray(scaled_down(Image.fromarray(image))) for image in images[first : first + 32]]
            )
        )
    return np.concatenate(rows)


def fit(inside: NDArray[np.float64], outside: NDArray[np.float64], photograph: Sequence[int]) -> Discriminant:
    """The discriminant. `photograph` numbers the photographs of `outside`; crops of one stay in one fold."""
    mean, scale = inside.mean(0), inside.std(0) + 1e-6
    rows = (np.concatenate([inside, outside]) - mean) / scale
    is_outside = np.repeat([0, 1], [len(inside), len(outside)])
    model = LogisticRegression(C=STRENGTH, class_weight="balanced", max_iter=1_000)
    folds = [*range(len(inside)), *(len(inside) + number for number in photograph)]
    scores = cross_val_predict(model, rows, is_outside, cv=GroupKFold(3), groups=folds, method="decision_function")
    limits = np.quantile(scores, np.linspace(0.01, 0.99, 999))
    errors = [max((scores[is_outside == 0] > at).mean(), (scores[is_outside == 1] <= at).mean()) for at in limits]
    limit = float(limits[int(np.argmin(errors))])
    print(f"cross-validated: larger error {min(errors):.1%} at {limit:.2f}")
    model.fit(rows, is_outside)
    return Discriminant(mean, scale, cast("NDArray[np.float64]", model.coef_[0]), float(model.intercept_[0]) - limit)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_domain(parser)
    parser.add_argument("--count", type=int, default=1_000, help="drawn pictures for the fit; half as many are judged")
    parser.add_argument("--packages", type=Path, default=Path("runs/photographs/packages"), help="where they are kept")
    parser.add_argument("--more", type=Path, help="folder of further photographs to judge")
    parser.add_argument("--write", action="store_true", help="write the file that the profile names")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    evaluator = load_profile(PROFILES[arguments.domain]).evaluator
    assert evaluator.domain is not None
    scorer = Scorer(evaluator.scorer, device="cpu")
    outside, random = photographs(arguments.packages), np.random.default_rng(0xD1)
    fitted = [pixels for _, pixels in outside[::2]]
    parts = [(n, part) for n, whole in enumerate(fitted) for part in (whole, crop(whole, random))]
    inside = features(scorer, [pixels for _, pixels in drawn(arguments.domain, "calibration", arguments.count)])
    discriminant = fit(inside, features(scorer, [part for _, part in parts]), [number for number, _ in parts])
    judged = [*drawn(arguments.domain, "final-test", arguments.count // 2), *outside[1::2]]
    if arguments.more:
        judged += [
            ("further photograph", np.asarray(Image.open(path).convert("RGB")))
            for path in sorted(arguments.more.iterdir())
        ]
    refused = discriminant.log_odds(features(scorer, [pixels for _, pixels in judged])) > 0
    print(f"{arguments.domain}: outside by the discriminant")
    for kind, count in Counter(kind for kind, _ in judged).items():
        outside_of_kind = sum(bool(far) for (name, _), far in zip(judged, refused, strict=True) if name == kind)
        print(f"{kind:20}{rate_text(outside_of_kind, count)}")
    if arguments.write:
        evaluator.domain.statistics.parent.mkdir(parents=True, exist_ok=True)
        discriminant.save(evaluator.domain.statistics)


if __name__ == "__main__":
    main()
