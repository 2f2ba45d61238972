"""Measure seconds per pass of each network at Stable Diffusion 1.5's size (random weights), and extrapolate loops.

A whole loop takes an hour on a CPU, so only a few passes are measured (512 × 512 pixels, single precision). The cost of
a loop is extrapolated: its passes on the tiny weights times their seconds here. For an unmeasured number of rows, the
cost per row is that of the nearest measured number. As a check, one whole step of the public pipeline is also measured;
the sum of its passes must be close to it. Seconds do not depend on the weights' values.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.cost_arms import Arm
from benchmarks.cost_meter import Pass, Spent
from benchmarks.cost_pipelines import LoopSettings, PipelineLoop
from benchmarks.cost_report import no_ratio
from benchmarks.cost_weights import Shape, write_random
from shared.schemas.diffusion import Rendering

PROMPT = "a red bus in a city at night"
SIBLINGS = 4  # rows of our batches: few-step renderings of one source, without guidance


class Kind(NamedTuple):
    """Passes of one network, with a backward pass or without."""

    network: str
    trained: bool = False


@dataclass(slots=True)
class Prices:
    """CPU seconds of passes by kind and number of rows, and of one pipeline step, as a whole and by passes."""

    seconds: dict[Kind, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    pipeline_step: float = 0.0
    parameters: dict[str, int] = field(default_factory=dict)

    def of(self, forward: Pass) -> float | None:
        """CPU seconds of a pass; None for networks that were not measured."""
        network = "unet" if forward.network.startswith("unet") else forward.network
        measured = self.seconds.get(Kind(network, forward.trained))
        if not measured:
            return None
        rows = forward.shapes[0][0]
        nearest = min(measured, key=lambda size: abs(size - rows))
        return rows * measured[nearest] / nearest

    def loop(self, spent: Spent) -> float:
        """CPU seconds of all passes of a loop."""
        return sum(count * (self.of(forward) or 0.0) for forward, count in spent.passes.items())

    def pipeline_passes(self) -> float:
        """CPU seconds of the pipeline step's passes in total."""
        rows = {"unet": (2, 1), "controlnet": (2, 1), "decoder": (1, 1), "text encoder 0": (1, 2)}
        return sum(self.seconds[Kind(name)][size] * count for name, (size, count) in rows.items())


class PassClock:
    """Notes the CPU seconds of every forward pass of some networks."""

    def __init__(self, networks: Mapping[str, nn.Module], prices: Prices) -> None:
        self._started: dict[str, float] = {}
        self._prices = prices
        self._handles = [
            handle
            for name, network in networks.items()
            for handle in (
                network.register_forward_pre_hook(lambda *_, name=name: self._start(name), with_kwargs=True),
                network.register_forward_hook(
                    lambda *arguments, name=name: self._stop(name, arguments), with_kwargs=True
                ),
            )
        ]

    def _start(self, name: str) -> None:
        self._started[name] = time.process_time()

    def _stop(self, name: str, arguments: tuple[Any, ...]) -> None:
        _, inputs, named, _ = arguments
        rows = next(len(tensor) for tensor in (*inputs, *named.values()) if isinstance(tensor, Tensor))
        self._prices.seconds[Kind(name)][rows] = time.process_time() - self._started[name]

    def remove(self) -> None:
        """Stop noting."""
        for handle in self._handles:
            handle.remove()


def measure_prices(shape: Shape, how: LoopSettings) -> Prices:
    """Write random weights of a shape, and measure the passes of the loops."""
    with tempfile.TemporaryDirectory() as folder:
        loop = PipelineLoop(write_random(Path(folder), shape, [PROMPT]), None, "cpu")
    prices = Prices(
        parameters={name: sum(p.numel() for p in module.parameters()) for name, module in loop.networks.items()}
    )
    clock = PassClock(loop.networks, prices)
    with torch.no_grad():
        prices.pipeline_step = _one_step(loop, how)
        for network in (loop.pipeline.unet, loop.pipeline.controlnet, loop.pipeline.vae):
            network.to(memory_format=torch.channels_last)  # as our loader does
        _our_passes(loop, (1, SIBLINGS))
    clock.remove()
    prices.seconds[Kind("unet", trained=True)][1] = _trained_pass(loop)
    return prices


def _one_step(loop: PipelineLoop, how: LoopSettings) -> float:
    side = int(loop.pipeline.unet.config.sample_size) * loop.pipeline.vae_scale_factor
    source = loop.source(np.full((side, side, 3), 127, np.uint8))
    started = time.process_time()
    loop.render(source, [Rendering(prompt=PROMPT, seed=0)], LoopSettings("one step", how.scheduler, 1, 7.5))
    return time.process_time() - started


def _our_passes(loop: PipelineLoop, sizes: Sequence[int]) -> None:
    """The UNet alone for one row (inversion), UNet and ControlNet for a batch of siblings, the encoder."""
    p = loop.pipeline
    for rows in sizes:
        latents, states = _inputs(loop, rows)
        if rows > 1:
            p.controlnet(
                latents, 10, encoder_hidden_states=states, return_dict=False,
                controlnet_cond=torch.rand(rows, 3, *(p.vae_scale_factor * side for side in latents.shape[2:])),
            )  # fmt: skip
        p.unet(latents, 10, encoder_hidden_states=states)
    side = int(p.unet.config.sample_size) * p.vae_scale_factor
    p.vae.encode(torch.rand(1, 3, side, side))


def _trained_pass(loop: PipelineLoop) -> float:
    """Forward and backward through the UNet for one row, its weights trainable, as LANCE's null-text inversion does."""
    unet = loop.pipeline.unet.requires_grad_(True)
    latents, states = _inputs(loop, 1)
    states.requires_grad_()
    started = time.process_time()
    torch.autograd.backward(unet(latents, 10, encoder_hidden_states=states, return_dict=False)[0].square().mean())
    return time.process_time() - started


def _inputs(loop: PipelineLoop, rows: int) -> tuple[Tensor, Tensor]:
    config, tokens = loop.pipeline.unet.config, loop.pipeline.text_encoder.config.max_position_embeddings
    latents = torch.randn(rows, config.in_channels, config.sample_size, config.sample_size)
    states = torch.randn(rows, tokens, config.cross_attention_dim)
    return latents.contiguous(memory_format=torch.channels_last), states


def full_size_table(prices: Prices, arms: Sequence[Arm]) -> list[str]:
    """Seconds of the passes, and of each arm's loop per counterfactual, compared with the papers' arms."""
    lines = [
        f"{kind.network}{', forward and backward' if kind.trained else ''}, {rows} row(s): {seconds:.1f} CPU s"
        for kind, sizes in prices.seconds.items()
        for rows, seconds in sorted(sizes.items())
    ]
    lines.append(
        f"the pipeline's one guided step and decoding, whole: {prices.pipeline_step:.0f} CPU s; "
        f"its passes: {prices.pipeline_passes():.0f}"
    )
    costs = {arm.name: prices.loop(arm.spent) / arm.produced for arm in arms if arm.produced}
    lines += [f"{name}: {seconds:,.0f} CPU s per counterfactual, extrapolated" for name, seconds in costs.items()]
    for theirs in arms:
        for ours in arms:
            if theirs.papers and not ours.papers and theirs.method == ours.method and ours.produced:
                share = costs[theirs.name] / costs[ours.name]
                lines.append(f"{theirs.name} against {ours.name}: {share:.1f} × the CPU seconds, per produced")
                if theirs.good and ours.good:
                    per_good = share * (theirs.produced / theirs.good) / (ours.produced / ours.good)
                    lines[-1] += f"; {per_good:.1f} × per good one, with the tiny weights' shares"
                else:
                    lines[-1] += f"; per good one {no_ratio(theirs, ours, 'good')}"
    return lines
