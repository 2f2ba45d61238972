"""Settings of torch while networks compute."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch

from shared.devices import info_in_tf32, plain_float_32, tensor_float_32, unused_cuda
from shared.schemas.service import WeightsInfo
from tests.support.threads import HANG_SECONDS, background


@pytest.mark.parametrize(("device", "inside"), [("cuda:0", "tf32"), ("cuda", "tf32"), ("cpu", None)])
def test_matrices_are_multiplied_in_tf32_on_a_gpu_inside_the_block_only(device: str, inside: str | None) -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    with tensor_float_32(torch, device):
        assert torch.backends.cuda.matmul.fp32_precision == (inside or before)
    assert torch.backends.cuda.matmul.fp32_precision == before

    def fail() -> None:
        with tensor_float_32(torch, device):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert torch.backends.cuda.matmul.fp32_precision == before


@pytest.mark.parametrize(
    ("device", "dtype", "reported"),
    [("cuda:0", "float32", "tf32"), ("cuda:0", "float16", "float16"), ("cpu", "float32", "float32")],
)
def test_weights_that_compute_in_tf32_say_so(device: str, dtype: str, reported: str) -> None:
    info = WeightsInfo(role="scorer", id="a", revision="1", dtype=dtype, licence="none")
    assert info_in_tf32(info, device).dtype == reported


@pytest.mark.parametrize(("build", "gpu", "hint"), [("13.0", False, True), ("13.0", True, False), (None, False, False)])
def test_a_build_for_cuda_without_a_gpu_is_pointed_out(
    monkeypatch: pytest.MonkeyPatch, build: str | None, gpu: bool, hint: bool
) -> None:
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert ("https://download.pytorch.org/whl/cpu" in unused_cuda(torch)) == hint


def test_a_model_under_test_never_computes_while_another_thread_uses_tf32() -> None:
    matrices, before = torch.backends.cuda.matmul, torch.backends.cuda.matmul.fp32_precision
    scoring, scored, first, second = (threading.Event() for _ in range(4))
    seen = []

    def score(started: threading.Event, end: threading.Event) -> None:
        with tensor_float_32(torch, "cuda:0"):
            started.set()
            end.wait(HANG_SECONDS)

    def predict() -> None:
        with plain_float_32("cuda:0"):
            seen.append(matrices.fp32_precision)

    def end() -> None:
        scored.set()
        second.set()

    with background(partial(score, scoring, scored), release=end):
        assert scoring.wait(HANG_SECONDS)
        # Two scorers whose blocks overlap used to leave the process in TF32: the second restored the first one's value.
        with background(partial(score, first, second), predict, release=end):
            assert not seen
            assert not first.is_set()
    assert seen == [before]
    assert matrices.fp32_precision == before
