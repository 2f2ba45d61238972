"""Measure what networks compute: network evaluations, floating-point operations, seconds.

Forward hooks record the shape of each pass. The operations of each shape are counted later on one pass of this shape
(torch.utils.flop_counter), so that counting does not add to the seconds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True, slots=True)
class Pass:
    """A kind of forward pass: network, shapes of its inputs, with or without edited attention and gradients."""

    network: str
    shapes: tuple[tuple[int, ...], ...]
    edited: bool
    trained: bool


@dataclass(slots=True)
class Spent:
    """The computation of an arm. `cpu_seconds` are those of all threads of this process."""

    passes: Counter[Pass] = field(default_factory=Counter)
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def sample_evals(self) -> int:
        """Latents through the UNet; a backward pass counts as two."""
        passes = ((forward, count) for forward, count in self.passes.items() if forward.network.startswith("unet"))
        return sum(count * forward.shapes[0][0] * (3 if forward.trained else 1) for forward, count in passes)


class Meter:
    """Watches networks by forward hooks. Each pass with gradients counts as forward and backward."""

    def __init__(self, networks: Mapping[str, nn.Module]) -> None:
        self._networks = dict(networks)
        self._examples: dict[Pass, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._flops: dict[Pass, int] = {}
        self._spent: Spent | None = None
        for name, network in networks.items():
            network.register_forward_hook(partial(self._note, name), with_kwargs=True)

    @contextmanager
    def watching(self, spent: Spent) -> Iterator[None]:
        """Add the computation inside the block to `spent`."""
        self._spent = spent
        _finish()
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
            _finish()
        finally:
            spent.seconds += time.perf_counter() - wall
            spent.cpu_seconds += time.process_time() - cpu
            self._spent = None

    def flops(self, spent: Spent) -> int:
        """Floating-point operations of all passes, backward ones included; a multiply-add is two."""
        return sum(count * self._flops_of(forward) for forward, count in spent.passes.items())

    def _note(self, name: str, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], __: Any) -> None:
        if self._spent is None:
            return
        arguments = [*inputs, *named.values()]
        shapes = tuple(tuple(value.shape) for value in arguments if isinstance(value, Tensor))
        edited = bool(named.get("cross_attention_kwargs"))
        forward = Pass(name, shapes, edited, torch.is_grad_enabled())
        self._spent.passes[forward] += 1
        if forward not in self._examples:
            self._examples[forward] = tuple(map(_apart, inputs)), {key: _apart(value) for key, value in named.items()}

    def _flops_of(self, forward: Pass) -> int:
        if forward not in self._flops:
            inputs, named = self._examples[forward]
            grads = torch.enable_grad() if forward.trained else torch.no_grad()
            # Fused attention is a separate operation, which the counter supports on some devices only.
            with grads, sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                output = self._networks[forward.network](*inputs, **named)
                if forward.trained:
                    torch.autograd.backward(_first_tensor(output).float().sum())
            self._flops[forward] = counter.get_total_flops()
        return self._flops[forward]


def _apart(value: Any) -> Any:
    """A tensor detached from its graph, so that the pass can be repeated; other values unchanged."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def _first_tensor(output: Any) -> Tensor:
    """The tensor of a network's output."""
    tensor = output if isinstance(output, Tensor) else output[0]
    assert isinstance(tensor, Tensor)
    return tensor


def _finish() -> None:
    """Wait for the GPU, since its calls return before their work is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
