"""Repairs of segmenters: masks move with their images, void is ignored, and outputs of one class are merged."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import SegformerConfig, SegformerForSemanticSegmentation
from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil

from evaluator_service.models_under_test.kinds.segmentation import ImageSegmenter, TrainableSegmenter
from evaluator_service.models_under_test.trainable import IGNORED, TrainingExample
from evaluator_service.retraining import augment, batch_parts, optimizers
from shared.media.label_maps import OTHER, VOID, class_indices, confusion, named_overlaps, pack_counts, unpack_counts
from shared.problems import InvalidInput
from shared.profiles.weights import Weights
from shared.schemas.repairs import RepairRequest
from shared.schemas.scores import with_mean

OWN = ["car", "road", "car", "sky"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A segmenter with random weights, two of whose outputs are one class."""
    place = tmp_path_factory.mktemp("segmenter")
    torch.manual_seed(0)
    config = SegformerConfig(
        hidden_sizes=[8, 8, 8, 8], depths=[1] * 4, num_attention_heads=[1] * 4, decoder_hidden_size=8,
        id2label=dict(enumerate(OWN)),
    )  # fmt: skip
    SegformerForSemanticSegmentation(config).save_pretrained(place)
    SegformerImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(place)
    return place


def weights(folder: Path) -> Weights:
    return Weights(path=folder, licence="", gigabytes=1)


def lesson(seed: int, height: int = 48, width: int = 64) -> TrainingExample:
    """A square, whose mask is 1 amid 0, light on dark; the first row is void."""
    random = np.random.default_rng(seed)
    mask = np.zeros((height, width), np.uint8)
    top, left = random.integers(8, height - 24), random.integers(8, width - 24)
    mask[top : top + 16, left : left + 16] = 1
    image = np.repeat(np.where(mask, 200, 60).astype(np.uint8)[..., None], 3, axis=2)
    mask[0] = VOID
    return TrainingExample(image, "", mask)


@pytest.mark.slow
@given(st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_a_mask_moves_with_its_image(seed: int) -> None:
    before = lesson(seed)
    after = augment(before, seed)
    assert after.mask is not None
    assert after.image.shape == before.image.shape
    assert set(np.unique(after.mask)) <= {0, 1, VOID}
    again = augment(before, seed)
    assert (again.image == after.image).all()
    assert again.mask is not None
    assert (again.mask == after.mask).all()
    alone = augment(TrainingExample(before.image, "car"), seed)
    assert (alone.image == after.image).all()
    assert alone.mask is None
    grey = after.image.mean(axis=2)
    inside, around = grey[after.mask == 1], grey[after.mask == 0]
    if not len(inside) or abs(np.median(inside) - np.median(around)) < 20:
        return  # solarised or flattened: it cannot be seen where the square is
    middle = (np.median(inside) + np.median(around)) / 2
    lighter = np.median(inside) > np.median(around)
    assert ((inside > middle) == lighter).mean() > 0.85
    assert ((around > middle) != lighter).mean() > 0.95


def test_void_costs_nothing_and_outputs_of_one_name_are_one_class(folder: Path) -> None:
    trainable = TrainableSegmenter(weights(folder), ["sky", "car"], device="cpu")
    mask = np.full((48, 64), VOID, np.uint8)
    mask[:24] = 1
    inputs = trainable.inputs(TrainingExample(np.zeros((48, 64, 3), np.uint8), "", mask))
    assert inputs["pixel_values"].shape == (3, 32, 32)
    assert inputs["labels"].shape == (32, 32)
    assert set(inputs["labels"][:16].unique().tolist()) == {0}, "car is the model's first class"
    assert set(inputs["labels"][16:].unique().tolist()) == {IGNORED}
    logits = torch.tensor([2.0, -1.0, 1.0, 0.5])[None, :, None, None].repeat(1, 1, 8, 8)
    cost = trainable.loss(SimpleNamespace(logits=logits), inputs["labels"][None])
    probabilities = torch.tensor([2.0, -1.0, 1.0, 0.5]).softmax(0)
    assert float(cost) == pytest.approx(-float((probabilities[0] + probabilities[2]).log()), abs=1e-5)
    nothing = torch.full((1, 32, 32), IGNORED)
    assert float(trainable.loss(SimpleNamespace(logits=logits), nothing)) == 0
    wrong_below = logits.clone()
    wrong_below[:, 1, 5:] = 50.0  # where the mask is void
    assert float(trainable.loss(SimpleNamespace(logits=wrong_below), inputs["labels"][None])) == pytest.approx(
        float(cost)
    )


def test_it_is_judged_by_the_map_that_it_gives_under_test(folder: Path) -> None:
    classes = ["sky", "car"]
    trainable = TrainableSegmenter(weights(folder), classes, device="cpu")
    random = np.random.default_rng(1)
    sizes = [(48, 64), (40, 40), (33, 70)]
    masks = [random.choice([0, 1, VOID], size).astype(np.uint8) for size in sizes]
    lessons = [TrainingExample(random.integers(0, 255, (*mask.shape, 3), dtype=np.uint8), "", mask) for mask in masks]
    judgement = trainable.judge([partial(lessons.__getitem__, place) for place in range(len(lessons))])
    maps = ImageSegmenter(weights(folder), device="cpu").run([example.image for example in lessons])
    table = class_indices(trainable._outputs.classes, classes)
    assert table[trainable._outputs.classes.index("road")] == OTHER
    expected = [pack_counts(confusion(mask, table[label_map], 2)) for mask, label_map in zip(masks, maps, strict=True)]
    assert judgement.confusion == expected
    assert judgement.scores == [with_mean(named_overlaps(unpack_counts(counts, 2), classes)) for counts in expected]


def test_classes_that_the_model_lacks_and_images_without_masks_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="tram"):
        TrainableSegmenter(weights(folder), ["tram"], device="cpu")
    trainable = TrainableSegmenter(weights(folder), ["sky"], device="cpu")
    with pytest.raises(InvalidInput, match="has no mask"):
        trainable.inputs(TrainingExample(np.zeros((8, 8, 3), np.uint8), ""))


def test_saved_models_are_marked_as_segmenters(folder: Path, tmp_path: Path) -> None:
    TrainableSegmenter(weights(folder), ["sky"], device="cpu").save(tmp_path)
    assert {"config.json", "model.safetensors", "preprocessor_config.json"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert '"kind":"segmentation"' in (tmp_path / "contrafact.json").read_text()


def test_a_batch_of_large_images_is_computed_in_parts() -> None:
    """A repair on photographs took the process to 6.9 GB: a batch's activations grow with its pixels."""
    assert [batch_parts(32, side * side) for side in (96, 180, 224, 512, 2048)] == [1, 1, 2, 8, 16]
    assert [batch_parts(size, 512 * 512) for size in (2, 6, 7, 10)] == [1, 2, 1, 5]


def test_the_recipes_of_dillema_are_as_printed() -> None:
    """arXiv 2502.04378, III-A, Retraining Settings."""
    resnet = RepairRequest.model_validate({"model": "m", "recipe": "dillema-resnet18"}).parameters
    assert (resnet.epochs, resnet.batch_size) == (90, 100)
    optimiser, schedule = optimizers(torch.nn.Linear(1, 1), resnet.for_images(1))
    assert isinstance(optimiser, torch.optim.SGD)
    (group,) = optimiser.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, 1e-4)
    assert schedule is not None
    rates = []
    for _ in range(90):  # a step each
        rates.append(schedule.get_last_lr()[0])
        optimiser.step()
        schedule.step()
    assert rates == pytest.approx([0.1] * 30 + [0.01] * 30 + [0.001] * 30)

    deeplab = RepairRequest.model_validate({"model": "m", "recipe": "dillema-deeplabv3", "epochs": 2}).parameters
    assert (deeplab.epochs, deeplab.batch_size, deeplab.for_images(25).steps) == (2, 12, 6)
    optimiser, schedule = optimizers(torch.nn.Linear(1, 1), deeplab.for_images(25))
    assert type(optimiser) is torch.optim.Adam
    (group,) = optimiser.param_groups
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.002, (0.9, 0.999), 1e-8, 0)
