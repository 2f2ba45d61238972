"""Counterfactuals for MAITE's image classification protocols (PyPI `maite`): a data set and an augmentation.

MAITE's models and data sets go into `contrafact.test` as they are. The protocols are structural, so that this module
needs no part of `maite` to run; its types are checked against them where it is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from contrafact.arrays import as_array, channels_first_like, holds_floats
from contrafact.client import Client
from contrafact.outcome import change_columns
from shared.media.images import Pixels, decode, digest
from shared.schemas.results import CounterfactualView

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
    """Counterfactuals as a MAITE data set: images (channels × height × width), one-hot targets, their changes.

    Counterfactuals of images without a ground truth are left out.
    """

    def __init__(
        self,
        name: str,
        views: Iterable[CounterfactualView],
        classes: Sequence[str],
        get_image: GetImage,
        like: ArrayLike | None = None,
    ) -> None:
        """`classes` are those of the targets, in their order; `get_image` returns the PNG of a digest.

        The images are arrays or tensors as `like` is, of its dtype; floats are from 0 to 1. Default: arrays of uint8.
        """
        place = {label: index for index, label in enumerate(classes)}
        self._views = [view for view in views if view.image and view.source.ground_truth in place]
        self._place, self._get_image = place, get_image
        self._like = np.empty(0, np.uint8) if like is None else like
        self.metadata: DatasetMetadata = {"id": name, "index2label": dict(enumerate(classes))}

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, ind: int, /) -> tuple[ArrayLike, NDArray[np.float32], CounterfactualMetadata]:
        view = self._views[ind]
        assert view.image is not None
        target = np.zeros(len(self._place), np.float32)
        target[self._place[view.source.ground_truth or ""]] = 1
        return channels_first_like(self._like, decode(self._get_image(view.image))), target, _metadata_of(view)


def job_dataset(
    client: Client, job: str, filters: Mapping[str, str] | None = None, *, like: ArrayLike | None = None
) -> CounterfactualDataset:
    """The accepted counterfactuals of a job; `filters` as in its results (`{"value": "night"}`).

    `like` is an image as the model under test takes it, such as `dataset[0][0]` of your own data set: the
    counterfactuals are arrays or tensors of its dtype, floats from 0 to 1. Default: arrays of uint8.
    """
    views = client.counterfactuals(job, {**(filters or {}), "verdict": "accepted"})
    return CounterfactualDataset(f"contrafact-job-{job}", views, client.job(job).classes, client.image, like)


def suite_dataset(client: Client, suite: str, *, like: ArrayLike | None = None) -> CounterfactualDataset:
    """The counterfactuals of a suite, which are those of its job that count; the job may be deleted.

    `like` as in `job_dataset`.
    """
    detail = client.suite(suite)
    views = client.suite_counterfactuals(detail.id)
    return CounterfactualDataset(f"contrafact-suite-{detail.name}", views, detail.classes, client.image, like)


class CounterfactualAugmentation:
    """A MAITE augmentation: each image of a batch becomes its `ordinal`-th accepted counterfactual of a finished job.

    An image is found by its pixels. An image with fewer counterfactuals stays unchanged. Images stay arrays or tensors,
    of their dtype: uint8, or floats from 0 to 1. A changed image's metadata have `counterfactual`, `method`, `factor`,
    `from_value` and `to_value` as well.
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
        views = self._by_source.get(digest(_pixels(image)), [])
        if self._ordinal >= len(views):
            return image, datum
        view = views[self._ordinal]
        assert view.image is not None
        change = {**_metadata_of(view), **datum, "counterfactual": view.id}
        rendered = channels_first_like(image, decode(self._get_image(view.image)))
        return rendered, cast("DatumMetadata", change)


def _pixels(image: ArrayLike) -> Pixels:
    """The pixels (height × width × channels, uint8) of an image of a batch."""
    array = as_array(image)
    values = np.rint(cast(NDArray[np.float64], array) * 255) if holds_floats(array) else array
    return np.ascontiguousarray(np.moveaxis(values.astype(np.uint8), 0, -1))


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
