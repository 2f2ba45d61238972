"""Networks with random weights, much faster than by their own initialisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from shared.chunks import chunks

Network = TypeVar("Network", bound=nn.Module)
SHARD = "2GB"  # the largest file of saved weights
RANDOM_VALUES = (
    1_000_003  # random values, which repeat through a network; a prime number, so that no two rows are equal
)


def random_network(build: Callable[[], Network], dtype: torch.dtype = torch.float32) -> Network:
    """The network of `build` in `dtype`, with random weights of the usual scale.

    The weights of norms are 1, biases 0, running variances 1. Needs no more memory than the weights in `dtype`.
    """
    with torch.device("meta"):
        network = build()
        nn.Module.to(network, dtype)  # diffusers' `to` warns about float32 layers, which these networks do not have
    network.to_empty(device="cpu")
    if callable(tie := getattr(network, "tie_weights", None)):
        tie()
    noise = torch.empty(RANDOM_VALUES, dtype=dtype).uniform_(-1, 1)
    for name, weight in network.named_parameters():
        if weight.ndim > 1:
            bound = math.prod(weight.shape[1:]) ** -0.5
            for values in chunks(weight.data.view(-1), RANDOM_VALUES):
                torch.mul(noise[: len(values)], bound, out=values)
        else:
            weight.data.fill_(float(name.endswith("weight")))
    for name, buffer in network.named_buffers():
        buffer.fill_(name.endswith("running_var"))
    return network


def parameters(network: nn.Module) -> int:
    """The number of parameters of a network."""
    return sum(weight.numel() for weight in network.parameters())
