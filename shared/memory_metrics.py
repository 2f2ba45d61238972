"""Prometheus metrics of a service's memory: of its process, and of torch on its GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

PROCESS_MEMORY = "process_resident_memory_bytes"  # by ProcessCollector
GPU_MEMORY = "contrafact_gpu_memory_peak_bytes"


class _GpuMemory(Collector):
    """The most that torch has held on each GPU. Does not import torch; without a GPU there is no value."""

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(GPU_MEMORY, "Most bytes that torch has reserved on a GPU", labels=["device"])
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            for index in range(torch.cuda.device_count()):
                family.add_metric([f"cuda:{index}"], float(torch.cuda.max_memory_reserved(index)))
        return [family]


def add_memory_metrics(registry: CollectorRegistry) -> None:
    """Count the memory of this process in `registry`."""
    ProcessCollector(registry=registry)
    registry.register(_GpuMemory())
