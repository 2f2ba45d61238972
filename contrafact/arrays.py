"""Arrays and tensors of other libraries. Tensors are recognised by their methods: torch need not be installed."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shared.media.images import Pixels


def is_tensor(values: object) -> bool:
    """Whether `values` is a tensor of torch."""
    return hasattr(values, "detach") and hasattr(values, "new_tensor")


def holds_floats(values: object) -> bool:
    """Whether an array or tensor has a floating dtype, bfloat16 included."""
    return "float" in str(getattr(values, "dtype", ""))


def as_array(values: object) -> NDArray[np.generic]:
    """A tensor of any device and dtype, a list of tensors, or what else NumPy reads, as an array.

    Tensors of floats become float64, because NumPy has no bfloat16.
    """
    if is_tensor(values):
        tensor = cast(Any, values).detach().cpu()
        return np.asarray((tensor.double() if holds_floats(tensor) else tensor).numpy())
    if isinstance(values, list | tuple) and any(map(is_tensor, values)):
        return np.stack([as_array(row) for row in values])
    return np.asarray(values)


def channels_first_like(image: ArrayLike, pixels: Pixels) -> ArrayLike:
    """Pixels (height × width × 3, uint8) as channels × height × width: an array or tensor as `image` is, of its dtype.

    Floats are from 0 to 1; a tensor is on the device of `image`. Raises ValueError unless the dtype is uint8 or floats.
    """
    first = np.ascontiguousarray(np.moveaxis(pixels, -1, 0))
    values: NDArray[np.generic] = first / 255 if holds_floats(image) else first
    dtype = getattr(image, "dtype", None)
    if not holds_floats(image) and str(dtype).removeprefix("torch.") != "uint8":
        kind = type(image).__name__ if dtype is None else dtype
        raise ValueError(f"an image is of {kind}; give an array or tensor of uint8, or of floats from 0 to 1")
    return cast(ArrayLike, cast(Any, image).new_tensor(values)) if is_tensor(image) else values.astype(dtype)
