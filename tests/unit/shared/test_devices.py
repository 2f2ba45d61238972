"""Settings of torch while networks compute."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
import torch

from shared.schemas.service import WeightsInfo
from shared.service.devices import info_in_tf32, plain_float_32, tensor_float_32, unused_cuda
from tests.support.threads import HANG_SECONDS, background


def precisions() -> list[str]:
    backends: Any = torch.backends
    parts = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    return [part.fp32_precision for part in parts]


@pytest.mark.parametrize(("block", "inside"), [(tensor_float_32, "tf32"), (plain_float_32, "none")])
@pytest.mark.parametrize("device", ["cuda:0", "cuda", "cpu"])
def test_the_precision_of_matrices_and_convolutions_is_that_of_the_block(block: Any, inside: str, device: str) -> None:
    before = precisions()
    with block(torch, device):
        assert precisions() == (before if device == "cpu" else [inside] * 3)
    assert precisions() == before

    def fail() -> None:
        with block(torch, device):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert precisions() == before


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
    before = precisions()
    scoring, scored, first, second = (threading.Event() for _ in range(4))
    seen = []

    def score(started: threading.Event, end: threading.Event) -> None:
        with tensor_float_32(torch, "cuda:0"):
            started.set()
            end.wait(HANG_SECONDS)

    def predict() -> None:
        with plain_float_32(torch, "cuda:0"):
            seen.append(precisions())

    def end() -> None:
        scored.set()
        second.set()

    with background(partial(score, scoring, scored), release=end):
        assert scoring.wait(HANG_SECONDS)
        # Two scorers whose blocks overlap used to leave the process in TF32: the second restored the first one's value.
        with background(partial(score, first, second), predict, release=end):
            assert not seen
            assert not first.is_set()
    assert seen == [["none"] * 3]
    assert precisions() == before
