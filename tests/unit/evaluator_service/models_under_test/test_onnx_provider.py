"""What runs ONNX models, found by running one."""

from __future__ import annotations

import onnxruntime
import pytest

from evaluator_service.models_under_test.onnx_file import onnx_provider
from evaluator_service.repair_worker import TrainerSettings


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_the_plain_package_of_onnxruntime_computes_on_the_cpu(device: str) -> None:
    assert "CUDAExecutionProvider" not in onnxruntime.get_available_providers(), "the package for CPUs is installed"
    assert onnx_provider(device) == "CPUExecutionProvider"


def test_the_trainer_has_the_limit_of_images_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTRAFACT_MAX_IMAGE_PIXELS", "100")
    monkeypatch.setenv("CONTRAFACT_CACHED_BYTES", "5")
    assert TrainerSettings().max_image_pixels == 100
    assert TrainerSettings().cached_bytes == 5
