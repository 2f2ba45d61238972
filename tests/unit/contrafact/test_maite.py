"""The data set and the augmentation for MAITE: shapes and types, and MAITE's own protocols where it is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch
from maite import tasks

from contrafact.client import Client
from contrafact.maite import CounterfactualAugmentation, CounterfactualDataset
from shared.media.images import digest, encode
from shared.schemas.results import CounterfactualView
from tests.support.counterfactual_views import counterfactual_view

if TYPE_CHECKING:
    from maite.protocols import ModelMetadata
    from maite.protocols import image_classification as ic

CLASSES = ["car", "bus"]
SOURCE = np.full((4, 6, 3), 10, np.uint8)
RENDERED = np.full((4, 6, 3), 200, np.uint8)
VIEWS = [counterfactual_view(number, source=digest(SOURCE)) for number in range(2)]


class FinishedJob(Client):
    """A client of a gateway that has one finished job; nothing is sent."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")

    def counterfactuals(self, job: str, filters: Mapping[str, str]) -> Iterator[CounterfactualView]:
        return iter(VIEWS)

    def image(self, digest: str) -> bytes:
        return encode(RENDERED)


def dataset() -> CounterfactualDataset:
    return CounterfactualDataset("night", VIEWS, CLASSES, lambda _: encode(RENDERED))


def test_a_counterfactual_is_a_datum() -> None:
    image, target, metadata = dataset()[1]
    assert isinstance(image, np.ndarray)
    assert image.shape == (3, 4, 6)
    assert image.dtype == np.dtype(np.uint8)
    assert target.tolist() == [0, 1]
    assert dict(metadata) == {
        "id": "cf1",
        "source": "a.png",
        "method": "dillema",
        "factor": "weather",
        "from_value": "day",
        "to_value": "night",
    }


@pytest.mark.parametrize(
    "like",
    [
        np.empty((3, 1, 1), np.uint8),
        np.empty((3, 1, 1), np.float16),
        torch.empty((3, 1, 1), dtype=torch.uint8),
        torch.empty((3, 1, 1)),
        torch.empty((3, 1, 1), dtype=torch.bfloat16),
    ],
)
def test_images_are_as_those_of_the_caller_s_own_data_set(like: Any) -> None:
    image: Any = CounterfactualDataset("night", VIEWS, CLASSES, lambda _: encode(RENDERED), like)[0][0]
    assert type(image) is type(like)
    assert (image.dtype, tuple(image.shape)) == (like.dtype, (3, 4, 6))
    assert float(image[0, 0, 0]) == pytest.approx(200 if "uint8" in str(like.dtype) else 200 / 255, rel=0.01)


def test_a_dtype_without_a_range_is_refused() -> None:
    for like, kind in ((np.zeros(3, np.int64), "int64"), ([0.5], "list")):
        with pytest.raises(ValueError, match=f"is of {kind}; give an array or tensor of uint8, or of floats"):
            CounterfactualDataset("night", VIEWS, CLASSES, lambda _: encode(RENDERED), like)[0]


def test_an_augmented_batch_of_tensors_can_be_stacked() -> None:
    augment = CounterfactualAugmentation(FinishedJob(), "job")
    changed = torch.from_numpy(np.moveaxis(SOURCE, -1, 0).copy())
    for dtype in (torch.uint8, torch.float32, torch.bfloat16):
        source = changed if dtype == torch.uint8 else (changed / 255).to(dtype)
        batch = [source, torch.zeros_like(source)]
        images, _, rows = augment((batch, [[0, 1]] * 2, [{"id": 1}, {"id": 2}]))
        stacked = torch.stack(cast("list[torch.Tensor]", list(images)))
        assert (stacked.dtype, stacked.shape) == (dtype, (2, 3, 4, 6))
        assert ["counterfactual" in row for row in rows] == [True, False]
        assert float(stacked[0].float().mean()) == pytest.approx(200 if dtype == torch.uint8 else 200 / 255, rel=0.01)


def test_counterfactuals_without_a_ground_truth_are_left_out() -> None:
    assert len(CounterfactualDataset("night", VIEWS, ["car"], lambda _: b"")) == 0


@pytest.mark.parametrize("ordinal", [0, 1, 2])
def test_an_image_becomes_its_counterfactual_while_there_is_one(ordinal: int) -> None:
    augment = CounterfactualAugmentation(FinishedJob(), "job", ordinal=ordinal)
    first = np.moveaxis(SOURCE, -1, 0)
    images, targets, metadata = augment(([first, first / 255], [[0, 1], [0, 1]], [{"id": 1}, {"id": 2}]))
    bytes_, floats = (np.asarray(image) for image in images)
    rendered = ordinal < len(VIEWS)
    assert [bytes_.dtype, floats.dtype] == [np.dtype(np.uint8), np.dtype(np.float64)]
    assert bytes_.mean() == (200 if rendered else 10)
    assert np.isclose(floats.mean(), (200 if rendered else 10) / 255)
    assert targets == [[0, 1], [0, 1]]
    assert [row["id"] for row in metadata] == [1, 2]
    assert [cast(Mapping[str, Any], row).get("counterfactual") for row in metadata] == (
        [f"cf{ordinal}"] * 2 if rendered else [None] * 2
    )


def test_maite_s_own_tasks_run_on_both() -> None:
    class Model:
        metadata = cast("ModelMetadata", {"id": "brightness"})

        def __call__(self, batch: Any, /) -> list[Any]:
            return [np.array([np.mean(image) < 100, np.mean(image) >= 100], float) for image in batch]

    images: ic.Dataset = dataset()
    augmentation: ic.Augmentation = CounterfactualAugmentation(FinishedJob(), "job")
    predictions, _ = tasks.predict(model=Model(), dataset=images, augmentation=augmentation)
    assert [np.asarray(batch[0]).argmax() for batch in predictions] == [1, 1]
