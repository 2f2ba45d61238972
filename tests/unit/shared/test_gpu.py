"""Which GPUs a process sees."""

from __future__ import annotations

import pytest

from shared.service.gpu import see_one_gpu


@pytest.mark.parametrize(
    ("device", "visible", "name", "left"),
    [
        ("cuda:2", None, "cuda:0", "2"),
        ("cuda", None, "cuda:0", "0"),
        ("auto", None, "auto", "0"),
        ("cuda:1", "3,5", "cuda:0", "5"),
        ("cuda:1", "GPU-aa, GPU-bb", "cuda:0", "GPU-bb"),
        ("auto", "3,5", "auto", "3"),
        ("cuda:2", "3,5", "cuda:0", ""),  # there is no such device, and torch says so
        ("auto", "", "auto", ""),  # the operator hides all of them
        ("cpu", "3,5", "cpu", ""),
        ("cpu", None, "cpu", ""),
    ],
)
def test_a_process_sees_the_one_gpu_of_its_device(device: str, visible: str | None, name: str, left: str) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert see_one_gpu(device, environment) == name
    assert environment["CUDA_VISIBLE_DEVICES"] == left
