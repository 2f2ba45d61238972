"""Classify exceptions of a model's code: out of memory, device failure, or neither.

The messages of the exceptions decide, so this module imports neither torch nor onnxruntime.
"""

from __future__ import annotations

import re

from shared.problems import OutOfMemory, Problem

_MEMORY = re.compile(
    r"(CUDA|HIP|XPU) (driver )?(error: )?out of memory|MPS backend out of memory|DefaultCPUAllocator"
    r"|CU(BLAS|DNN)_STATUS_ALLOC_FAILED|CUDA failure 2:|Failed to allocate memory",
    re.IGNORECASE,
)
_FAILURE = re.compile(
    r"(CUDA|HIP|XPU|cuDNN|cuBLAS|cuFFT|NCCL) (driver |kernel |internal )?error|CU(BLAS|DNN|FFT|SOLVER|SPARSE)_STATUS_"
    r"|(CUDA|CUDNN|CUBLAS) failure \d+|device-side assert|No CUDA GPUs are available|NVML_SUCCESS == ",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host ran out of memory; a smaller batch may fit."""
    if isinstance(error, OutOfMemory | MemoryError):
        return True
    return _of_a_library(error) and _MEMORY.search(str(error)) is not None


def is_device_failure(error: BaseException) -> bool:
    """Whether the accelerator failed. CUDA errors are sticky: nothing else succeeds in this process."""
    return _of_a_library(error) and not is_out_of_memory(error) and _FAILURE.search(str(error)) is not None


def _of_a_library(error: BaseException) -> bool:
    """Whether torch (a `RuntimeError`) or onnxruntime raised it; a problem's message may quote another service."""
    runtime = isinstance(error, RuntimeError) or type(error).__module__.startswith("onnxruntime")
    return runtime and not isinstance(error, Problem)
