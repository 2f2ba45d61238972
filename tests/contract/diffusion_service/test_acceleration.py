"""What makes networks faster on some devices is off by default, dropped with a reason, and draws the same images."""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from diffusion_service import acceleration
from diffusion_service.acceleration import OFF, Acceleration
from diffusion_service.app import batches_at_once
from diffusion_service.attention import install
from diffusion_service.editors.controlnet import ControlNetEditor
from diffusion_service.stable_diffusion import load
from shared.service import ServiceSettings
from tests.support.controlnet_items import KEY, images, item, weights
from tests.support.small_diffusion import write_diffusion


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diffusion")
    write_diffusion(folder)
    return folder


def editor(folder: Path, wanted: Acceleration) -> ControlNetEditor:
    torch.set_num_threads(1)
    controls = {"canny": weights(folder / "control")}
    networks = load(weights(folder / "base"), controls, device="cpu", acceleration=wanted)
    install(networks.unet)
    return ControlNetEditor(networks, None)


def test_all_is_off_by_default() -> None:
    settings = ServiceSettings()
    given = (settings.compile, settings.attention, settings.pinned_copies, settings.vae_dtype)
    assert Acceleration(*given) == OFF
    assert OFF.infos() == []


@pytest.mark.parametrize(
    ("changed", "device", "count"),
    [
        ({}, "cpu", 2),
        ({}, "cpu:0", 2),
        ({}, "cuda:0", 1),
        ({"compile": "default"}, "cpu", 1),
        ({"attention": "math"}, "cpu", 1),
    ],
)
def test_batches_are_computed_side_by_side_only_where_they_do_not_disturb_each_other(
    changed: dict[str, Any], device: str, count: int
) -> None:
    assert batches_at_once(ServiceSettings(batches_at_once=2, **changed), device) == count


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (Acceleration(compile="reduce-overhead"), "compile=reduce-overhead is ignored on cpu: CUDA graphs need a GPU"),
        (Acceleration(attention="cudnn"), "attention=cudnn is ignored on cpu"),
        (Acceleration(pinned=True), "pinned=True is ignored on cpu"),
        (Acceleration(vae_dtype="float16"), "vae_dtype=float16 is ignored on cpu: half precision costs colour depth"),
    ],
)
def test_a_cpu_drops_what_it_cannot_do_and_says_why(
    wanted: Acceleration, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "contrafact.diffusion"):
        assert wanted.on("cpu") == OFF
    assert reason in caplog.text


def test_nothing_is_compiled_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert Acceleration(compile="default").on("cuda:0") == OFF
    assert "needs a C++ compiler" in caplog.text


def test_a_gpu_keeps_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "_compiler", lambda: "g++")
    wanted = Acceleration("reduce-overhead", "cudnn", True, "bfloat16")
    assert wanted.on("cuda:1") == wanted
    (info,) = wanted.infos()
    assert info.id == "compile=reduce-overhead attention=cudnn vae_dtype=bfloat16"


def test_what_rounds_differently_is_part_of_the_revision() -> None:
    changed = [replace(OFF, compile="default"), replace(OFF, attention="math"), replace(OFF, vae_dtype="bfloat16")]
    assert len({info.id for one in changed for info in one.infos()}) == 3
    assert replace(OFF, pinned=True).infos() == []
    assert {one.name for one in fields(Acceleration)} == {"compile", "attention", "pinned", "vae_dtype"}


@pytest.mark.parametrize(
    ("chosen", "device", "overflows", "expected"),
    [
        ("auto", "cpu", False, torch.float32),
        ("auto", "cuda:0", False, torch.float16),
        ("auto", "cuda:0", True, torch.float32),
        ("bfloat16", "cuda:0", True, torch.bfloat16),
        ("float16", "cuda:0", True, torch.float32),
        ("float32", "cuda:0", False, torch.float32),
    ],
)
def test_an_autoencoder_that_overflows_is_never_in_float16(
    chosen: str, device: str, overflows: bool, expected: torch.dtype
) -> None:
    wanted = replace(OFF, vae_dtype=chosen)
    assert wanted.coder_dtype(torch.float16, device, overflows) == expected


def test_a_plain_kernel_of_attention_draws_the_same_image(folder: Path) -> None:
    (expected,) = images(editor(folder, OFF).render(KEY, [item()]))
    (made,) = images(editor(folder, Acceleration(attention="math").on("cpu")).render(KEY, [item()]))
    assert np.abs(made.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.slow
@pytest.mark.skipif(acceleration._compiler() is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_compiled_networks_draw_the_same_image(folder: Path) -> None:
    (expected,) = images(editor(folder, OFF).render(KEY, [item()]))
    wanted = Acceleration(compile="default").on("cpu")
    compiled = editor(folder, wanted)
    (made,) = images(compiled.render(KEY, [item()]))
    assert np.abs(made.astype(int) - expected.astype(int)).max() <= 1
    unet: nn.Module = compiled._weights.unet
    assert unet._compiled_call_impl is not None
