"""Measure seconds of the networks' forward passes, and peak memory, of this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from benchmarks.measure import peak_memory

NETWORKS = {
    "UNet2DConditionModel": "unet",
    "ControlNetModel": "controlnet",
    "Encoder": "encoder",
    "Decoder": "decoder",
    "UperNetForSemanticSegmentation": "segmenter",
    "DepthAnythingForDepthEstimation": "depth",
    "Blip2VisionModel": "vision tower",
    "Blip2QFormerModel": "q-former",
    "OPTForCausalLM": "language model",
    "ResNetForImageClassification": "resnet-50",
    "ViTForImageClassification": "vit",
}
GIB = 2**30
FORGET_PEAK = "5"  # proc(5): written to clear_refs, resets VmHWM


@dataclass(slots=True)
class Passes:
    """Forward passes of one network over the same number of rows: how many, and their CPU seconds."""

    network: str
    rows: int
    count: int = 0
    cpu_seconds: float = 0.0


@dataclass(slots=True)
class Work:
    """What a piece of work took: wall and CPU seconds, resident memory before and at its peak in GiB, passes."""

    name: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    gib_before: float = 0.0
    gib_peak: float = 0.0
    passes: list[Passes] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        """The same for JSON."""
        return asdict(self)


class ServiceMeter:
    """Measures pieces of work one after the other; hooks on every module of the process note the networks' passes."""

    def __init__(self, finished: Callable[[list[Work]], object] = len) -> None:
        """`finished` gets all work so far after each piece."""
        self.work: list[Work] = []
        self._finished = finished
        self._passes: dict[tuple[str, int], Passes] = {}
        self._started: dict[int, float] = {}
        self._process = psutil.Process()
        self._hooks = [
            register_module_forward_pre_hook(self._start),
            register_module_forward_hook(self._stop),
        ]

    @contextmanager
    def measure(self, name: str) -> Iterator[Work]:
        """Measure a block; its figures are complete after it."""
        work = Work(name, gib_before=self._process.memory_info().rss / GIB)
        self._passes = {}
        _forget_peak()
        wall, cpu = time.perf_counter(), time.process_time()
        yield work
        work.seconds, work.cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        work.gib_peak = max(work.gib_before, peak_memory(self._process) / GIB)  # one is read before the other
        work.passes = list(self._passes.values())
        self.work.append(work)
        self._finished(self.work)

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _start(self, module: nn.Module, _: Any) -> None:
        if type(module).__name__ in NETWORKS:
            self._started[id(module)] = time.process_time()

    def _stop(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        network = NETWORKS.get(type(module).__name__)
        if network is None:
            return
        seconds = time.process_time() - self._started.pop(id(module))
        rows = next((len(value) for value in (*inputs, *_tensors(output)) if isinstance(value, Tensor)), 1)
        passes = self._passes.setdefault((network, rows), Passes(network, rows))
        passes.count += 1
        passes.cpu_seconds += seconds


def _tensors(output: Any) -> list[Any]:
    if isinstance(output, Mapping):
        return list(output.values())
    return list(output) if isinstance(output, tuple) else [output]


def _forget_peak() -> None:
    """Let the peak of this process's memory begin anew, where the system can; else it is that since the start."""
    path = Path(f"/proc/{os.getpid()}/clear_refs")
    if path.exists() and os.access(path, os.W_OK):
        path.write_text(FORGET_PEAK)
