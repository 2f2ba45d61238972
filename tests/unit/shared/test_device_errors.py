"""Which library errors mean a lack of memory, a broken device, or neither."""

from __future__ import annotations

import pytest

from shared.problems import DependencyFailed, OutOfMemory
from shared.service.device_errors import is_device_failure, is_out_of_memory


class Fail(Exception):
    """As onnxruntime's, which derive from `Exception`."""


Fail.__module__ = "onnxruntime.capi.onnxruntime_pybind11_state"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be async"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("CUDA driver error: unknown error"),
        RuntimeError("No CUDA GPUs are available"),
        RuntimeError("HIP error: invalid device function"),
        Fail("[ONNXRuntimeError] : 1 : FAIL : CUDA failure 700: an illegal memory access was encountered ; GPU=0"),
    ],
    ids=lambda error: str(error)[:40],
)
def test_accelerator_errors_are_device_failures(error: Exception) -> None:
    assert is_device_failure(error)
    assert not is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemory("one image needs 12 GB"),
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
        Fail("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer of size 9"),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:40],
)
def test_a_lack_of_memory_is_no_device_failure(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert not is_device_failure(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("the caption “CUDA error: out of memory” is too long"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        DependencyFailed("the model at http://model answered: CUDA error: an illegal memory access"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_and_quotations_are_neither(error: Exception) -> None:
    assert not is_out_of_memory(error)
    assert not is_device_failure(error)
