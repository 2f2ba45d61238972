"""Prometheus metrics of a service's memory and disks: of its process, of torch on its GPU, and where files lie."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

PROCESS_MEMORY = "process_resident_memory_bytes"  # by ProcessCollector
GPU_MEMORY = "contrafact_gpu_memory_peak_bytes"
DISK_FREE, DISK_SIZE = "contrafact_disk_free_bytes", "contrafact_disk_size_bytes"


class _GpuMemory(Collector):
    """The most that torch has held on each GPU. Does not import torch; without a GPU there is no value."""

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(GPU_MEMORY, "Most bytes that torch has reserved on a GPU", labels=["device"])
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            for index in range(torch.cuda.device_count()):
                family.add_metric([f"cuda:{index}"], float(torch.cuda.max_memory_reserved(index)))
        return [family]


class _Disks(Collector):
    """Space of the disks with temporary files and with weights (`HF_HOME`), where that folder exists."""

    def collect(self) -> Iterable[GaugeMetricFamily]:
        free = GaugeMetricFamily(DISK_FREE, "Bytes that are free on the disk of a folder", labels=["path"])
        size = GaugeMetricFamily(DISK_SIZE, "Bytes of the disk of a folder", labels=["path"])
        for path in (tempfile.gettempdir(), os.environ.get("HF_HOME", "")):
            if os.path.isdir(path):
                usage = shutil.disk_usage(path)
                free.add_metric([path], float(usage.free))
                size.add_metric([path], float(usage.total))
        return [free, size]


def add_memory_metrics(registry: CollectorRegistry) -> None:
    """Count the memory and the disks of this process in `registry`."""
    ProcessCollector(registry=registry)
    registry.register(_GpuMemory())
    registry.register(_Disks())
