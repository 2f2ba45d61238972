"""The oracles of objects: two models that read every factor of an image, to judge what the generator drew.

They differ in architecture, data and degradations, and all combinations of factors are equally frequent. They are
trained per position (`research.judges.oracles.objects`): the masks localise object and companion, which teaches in
minutes what labels alone teach in hours. Failures (`failures.py`) have no object anywhere. The training starts from
`runs/NAME-places/start.safetensors` if it exists, such as the lower stages of an earlier oracle.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import ConvNextImageProcessorPil, PreTrainedModel

from research.datasets.degradations import SUFFERED, Fields, apply_degradations, random_fields
from research.datasets.oracle_pictures import (
    FAILED,
    REDRAWN,
    RENDERED,
    ROUND_TRIPS,
    OraclePictures,
    failures,
    oracle_pictures,
)
from research.judges.oracles.objects import (
    LOGITS,
    NO_OBJECT,
    ORACLES,
    PLACES,
    READ,
    factor_logits,
    load_oracle,
    logits_at_places,
    place_weights,
    pool,
    readings,
    targets_with_none,
)
from research.networks.factor_heads import factor_loss, split_factors
from research.networks.half_precision import autocast
from research.networks.image_processors import classifier_processor
from research.networks.oracles import new_oracle
from research.objects.pictures import mirrored_targets, render_pair
from research.pictures.augmentation import LARGEST_SHIFT, SIDE, as_pixel_values, degrade, shift
from research.pictures.rendered_once import Pixels
from research.system.folders import ORACLE_WEIGHTS, RUNS
from research.train.loop import Recipe, recipe_record, train, training_arguments
from research.train.model_card import Card, publish
from tinyworld.domain.scenes import UNKNOWN
from tinyworld.objects.world import FACTORS, sample_scene

_PART = {"label": 0.35, "companion": 0.2}  # share of a place that must be covered to count as a part
_SETTLING = 60  # batches of 50 pictures
_LARGE = 50_000  # values in a matrix stored in 8 bits; with all from 4,096 on, 8 of 420 verdicts changed, so 2 do
_TRACE = 0.02  # below this share a place counts as free of it


def train_oracle(name: str, seconds: float, seed: int) -> None:
    """Train, judge on final-test renders, save with image processor and card."""
    pictures = oracle_pictures(name)
    recipe = Recipe(
        f"{name}-places", seconds, batch=32, learning_rate=1.5e-3, seed=seed + 10 * (1 + list(ORACLES).index(name))
    )
    torch.manual_seed(recipe.seed)
    model = new_oracle("resnet" if name == "oracle-a" else "regnet", LOGITS)
    started_from = take_over(model, RUNS / recipe.run / "start.safetensors")
    fields = random_fields(recipe.seed)

    def loss_of(model: nn.Module, step: int) -> Tensor:
        values, parts, expected = batch(
            pictures, name, fields, np.random.default_rng((recipe.seed, step)), recipe.batch
        )
        with autocast("cpu"):
            located = logits_at_places(model, values.to(memory_format=torch.channels_last))
        return loss(located.float(), parts, expected)

    progress = train(model, loss_of, recipe)
    settle_heads(model, pictures, name, fields, recipe.seed)
    record = {"tensors taken over from an earlier oracle": started_from, **recipe_record(recipe, progress)}
    _publish(model, name, record)


def _publish(model: PreTrainedModel, name: str, record: Mapping[str, object]) -> None:
    """Save the model and its image processor, judge what was saved, and write the card."""
    sizes = {"pictures": RENDERED, "round_trips": ROUND_TRIPS, "redrawn": REDRAWN[name], "failures": FAILED}
    card = Card(
        title=name,
        text="A judge that reads every factor of a tinyworld picture, with a class `none` for pictures without a whole "
        "object. It reads place by place: ask it through `research.judges.oracles.objects.readings`; the plain logits "
        "are means over the picture. Used in benchmarks only, never by the methods.",
        command=f"python -m research.train.oracle {name}",
        record={"split": ORACLES[name], **sizes, **record},
    )
    processor = classifier_processor() if name == "oracle-a" else _uncropped_processor()
    load_oracle.cache_clear()
    publish(model, processor, ORACLE_WEIGHTS / name, card, lambda: judge(load_oracle(name)), _LARGE)


def take_over(model: nn.Module, path: Path) -> int:
    """Load the tensors of a file that fit the model; how many did (0 without the file)."""
    if not path.exists():
        return 0
    state = model.state_dict()
    fitting = {key: value for key, value in load_file(path).items() if key in state and state[key].shape == value.shape}
    model.load_state_dict(fitting, strict=False)
    return len(fitting)


def loss(located: Tensor, parts: Tensor, expected: Tensor) -> Tensor:
    """The loss of the readings of whole images, and of object and companion per position.

    `located` (n, all values, 8, 8), `parts` (n, 2, 8, 8) class and companion at each place, `expected` (n, factors).
    """
    total = 4 * factor_loss(pool(located), expected, 2.0)
    for factor, places in zip(_PART, parts.unbind(1), strict=True):
        losses = nn.functional.cross_entropy(
            factor_logits(located, factor), places, reduction="none", ignore_index=UNKNOWN
        )
        empty = NO_OBJECT[0] if factor == "label" else 0
        for chosen in ((places != empty) & (places != UNKNOWN), places == empty):
            total = total + 0.5 * (losses * chosen).sum() / chosen.sum().clamp(min=1)
    return total


def settle_heads(model: nn.Module, pictures: OraclePictures, name: str, fields: Fields, seed: int) -> None:
    """Fit the linear heads to convergence on the trained features; all but those that localise things.

    Readings are linear in the features pooled over places, so each head is a logistic regression.
    """
    features: list[list[Tensor]] = [[] for _ in READ]
    targets = []
    for step in range(_SETTLING):
        values, _, expected = batch(pictures, name, fields, np.random.default_rng((seed, 1 << 40, step)), 50)
        with torch.no_grad():
            hidden = model.base_model(values).last_hidden_state  # type: ignore[operator]
            weights = place_weights(logits_at_places(model, values))
        for column, weight in zip(features, weights, strict=True):
            column.append((hidden * weight[:, None]).sum((2, 3)))
        targets.append(expected)
    expected = torch.cat(targets)
    weights, biases = (
        split_factors(model.get_parameter(f"classifier.1.{part}").detach()[None], READ) for part in ("weight", "bias")
    )
    for place, factor in enumerate(READ):
        if factor not in _PART:
            _fit(weights[place][0], biases[place][0], torch.cat(features[place]), expected[:, place])


def _fit(weight: Tensor, bias: Tensor, features: Tensor, expected: Tensor) -> None:
    """Logistic regression from the present weights on, in place."""
    stated = expected != UNKNOWN
    head = [weight.detach().clone().requires_grad_(), bias.detach().clone().requires_grad_()]
    optimiser = torch.optim.LBFGS(head, max_iter=80, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        logits = features[stated] @ head[0].T + head[1]
        value = nn.functional.cross_entropy(logits, expected[stated]) + 1e-4 * head[0].square().sum()
        torch.autograd.backward(value)
        return value

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        weight.copy_(head[0])
        bias.copy_(head[1])


def judge(model: PreTrainedModel, count: int = 400) -> dict[str, object]:
    """Accuracy per factor on final-test renders, clean and spoilt, and how often `none` is seen rightly and wrongly."""
    scenes = [sample_scene("final-test", 40_000 + index) for index in range(count)]
    expected = torch.stack([targets_with_none(scene) for scene in scenes])
    clean = [render_pair(scene)[0] for scene in scenes]
    random = np.random.default_rng(0)
    report: dict[str, object] = {"pictures judged": count}
    for name, images in (("clean", clean), ("spoilt", [degrade(image, random, 2.0) for image in clean])):
        read = readings(model, images)
        report[f"accuracy, {name}"] = read.accuracy(expected)
        report[f"`none` said of a whole object, {name}"] = read.share_none()
    failed = failures("final-test", 300)
    report["`none` said of failed pictures (300)"] = readings(model, list(failed)).share_none()
    return report


def batch(
    pictures: OraclePictures, name: str, fields: Fields, random: np.random.Generator, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Pixel values, class and companion at each place, and targets of some pictures, each spoilt in its own way."""
    rows = pictures.rows(random, size)
    images, masks, targets = [], [], []
    for row in rows:
        image, mask, expected = (
            np.array(pictures.data.images[row]),
            np.array(pictures.data.masks[row]),
            pictures.data.targets[row],
        )
        if random.random() < 0.5:
            image, mask, expected = image[:, ::-1], mask[:, ::-1], mirrored_targets(expected)
        down, right = (int(by) for by in random.integers(-LARGEST_SHIFT, LARGEST_SHIFT + 1, size=2))
        images.append(
            apply_degradations(shift(np.ascontiguousarray(image), (down, right)), SUFFERED[name], fields, random)
        )
        masks.append(shift(np.ascontiguousarray(mask), (down, right)))
        targets.append(expected)
    parts = parts_at_places(np.stack(masks), torch.stack(targets))
    parts[torch.from_numpy(pictures.is_failure(rows)), 0] = NO_OBJECT[0]
    return as_pixel_values(np.stack(images)), parts, torch.stack(targets)


def parts_at_places(masks: Pixels, targets: Tensor) -> Tensor:
    """Masks (n, 128, 128) and targets → class and companion at each place (n, 2, 8, 8), `UNKNOWN` on their rims."""
    areas = torch.from_numpy(np.stack([masks == 1, masks == 2], axis=1)).float()
    covered = nn.functional.avg_pool2d(areas, SIDE // PLACES)
    parts = torch.full(covered.shape, UNKNOWN)
    for channel, (factor, share) in enumerate(_PART.items()):
        of_factor = targets[:, list(FACTORS).index(factor)]
        empty = int(NO_OBJECT[0]) if factor == "label" else 0
        parts[:, channel][covered[:, channel] < _TRACE] = empty
        parts[:, channel] = torch.where(covered[:, channel] >= share, of_factor[:, None, None], parts[:, channel])
        parts[of_factor == UNKNOWN, channel] = UNKNOWN
    return parts


def _uncropped_processor() -> ConvNextImageProcessorPil:
    return ConvNextImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_pct=1.0, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )


def main() -> None:
    """The command."""
    arguments = training_arguments(__doc__, seconds=1_200, names=ORACLES, domain=True)
    train_oracle(arguments.name, arguments.seconds, arguments.seed)
