"""Counterfactuals for MAITE's image classification protocols (PyPI `maite`): a data set and an augmentation.

MAITE's models and data sets go into `contrafact.test` as they are. The protocols are structural, so that this module
needs no part of `maite` to run; its types are checked against them where it is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from contrafact.change_columns import change_columns
from contrafact.client import Client
from shared.images import decode, digest
from shared.schemas.result_rows import CounterfactualView
from shared.schemas.suites import SuiteFilters

if TYPE_CHECKING:
    from maite.protocols import AugmentationMetadata, DatasetMetadata, DatumMetadata

GetImage = Callable[[str], bytes]
Batch = tuple[Sequence[ArrayLike], Sequence[ArrayLike], Sequence["DatumMetadata"]]


class CounterfactualMetadata(TypedDict):
    """MAITE's metadata of a counterfactual: its id, its source image's name, its method and its change."""

    id: str
    source: str
    method: str
    factor: str
    from_value: str
    to_value: str


class CounterfactualDataset:
    """Accepted counterfactuals as a MAITE data set: channels × height × width uint8, one-hot targets, their changes.

    Counterfactuals of images without a ground truth are left out.
    """

    def __init__(
        self, name: str, views: Iterable[CounterfactualView], classes: Sequence[str], get_image: GetImage
    ) -> None:
        """`classes` are those of the targets, in their order; `get_image` returns the PNG of a digest."""
        place = {label: index for index, label in enumerate(classes)}
        self._views = [view for view in views if view.image and view.source.ground_truth in place]
        self._place, self._get_image = place, get_image
        self.metadata: DatasetMetadata = {"id": name, "index2label": dict(enumerate(classes))}

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, ind: int, /) -> tuple[NDArray[np.uint8], NDArray[np.float32], CounterfactualMetadata]:
        view = self._views[ind]
        assert view.image is not None
        target = np.zeros(len(self._place), np.float32)
        target[self._place[view.source.ground_truth or ""]] = 1
        return _channels_first(self._get_image(view.image)), target, _metadata_of(view)


def job_dataset(client: Client, job: str, filters: Mapping[str, str] | None = None) -> CounterfactualDataset:
    """The accepted counterfactuals of a job; `filters` as in its results (`{"value": "night"}`)."""
    views = client.counterfactuals(job, {**(filters or {}), "verdict": "accepted"})
    return CounterfactualDataset(f"contrafact-job-{job}", views, client.job(job).classes, client.image)


def suite_dataset(client: Client, suite: str) -> CounterfactualDataset:
    """The counterfactuals of a suite, as long as the job that it was made from exists."""
    detail = client.suite(suite)
    views = client.counterfactuals(detail.made_from, {**_filters(detail.filters), "verdict": "accepted"})
    return CounterfactualDataset(f"contrafact-suite-{detail.name}", views, detail.classes, client.image)


class CounterfactualAugmentation:
    """A MAITE augmentation: each image of a batch becomes its `ordinal`-th accepted counterfactual of a finished job.

    An image is found by its pixels. An image with fewer counterfactuals stays unchanged. Images keep their type: uint8,
    or floats from 0 to 1. A changed image's metadata have `counterfactual`, `method`, `factor`, `from_value` and
    `to_value` as well.
    """

    def __init__(self, client: Client, job: str, filters: Mapping[str, str] | None = None, ordinal: int = 0) -> None:
        self._get_image, self._ordinal = client.image, ordinal
        self._by_source: dict[str, list[CounterfactualView]] = {}
        for view in client.counterfactuals(job, {**(filters or {}), "verdict": "accepted"}):
            self._by_source.setdefault(view.source.image, []).append(view)
        self.metadata: AugmentationMetadata = {"id": f"contrafact-job-{job}"}

    def __call__(self, batch: Batch, /) -> Batch:
        images, targets, metadata = batch
        changed = [self._counterfactual_of(image, datum) for image, datum in zip(images, metadata, strict=True)]
        return [image for image, _ in changed], targets, [datum for _, datum in changed]

    def _counterfactual_of(self, image: ArrayLike, datum: DatumMetadata) -> tuple[ArrayLike, DatumMetadata]:
        array = np.asarray(image)
        floats = np.issubdtype(array.dtype, np.floating)
        pixels = np.rint(array * 255).astype(np.uint8) if floats else array.astype(np.uint8)
        views = self._by_source.get(digest(np.ascontiguousarray(np.moveaxis(pixels, 0, -1))), [])
        if self._ordinal >= len(views):
            return image, datum
        view = views[self._ordinal]
        assert view.image is not None
        rendered = _channels_first(self._get_image(view.image))
        change = {**_metadata_of(view), **datum, "counterfactual": view.id}
        return (rendered / 255).astype(array.dtype) if floats else rendered, cast("DatumMetadata", change)


def _channels_first(png: bytes) -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.moveaxis(decode(png), -1, 0))


def _metadata_of(view: CounterfactualView) -> CounterfactualMetadata:
    change = change_columns(view.changes)
    return {
        "id": view.id,
        "source": view.source.name,
        "method": view.method,
        "factor": change.factor,
        "from_value": change.from_value,
        "to_value": change.to_value,
    }


def _filters(filters: SuiteFilters) -> dict[str, str]:
    values = filters.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
