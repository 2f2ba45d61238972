"""Acceleration is off by default, is dropped with a reason where it is not supported, and draws the same images."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from diffusion_service import acceleration
from diffusion_service.acceleration import OFF, Acceleration
from diffusion_service.app import batches_at_once
from diffusion_service.attention import install
from diffusion_service.editors.controlnet import ControlNetEditor
from diffusion_service.loading import load
from shared.profiles.arithmetic import DtypeChoice
from shared.profiles.weights import Dtype, Weights
from shared.schemas.diffusion import ControlKind
from shared.service.settings import AttentionKernel, CompileMode, ServiceSettings
from tests.support.controlnet_items import KEY, images, item, weights


def editor(folder: Path, options: Acceleration) -> ControlNetEditor:
    torch.set_num_threads(1)
    controls: dict[ControlKind, Weights] = {"canny": weights(folder / "control")}
    networks = load(weights(folder / "base"), controls, device="cpu", acceleration=options)
    install(networks.unet)
    return ControlNetEditor(networks, None)


def test_all_is_off_by_default() -> None:
    settings = ServiceSettings()
    defaults = (settings.compile, settings.attention, settings.pinned_copies, settings.vae_dtype)
    assert Acceleration(*defaults) == OFF
    assert OFF.infos() == []


@pytest.mark.parametrize(
    ("changes", "device", "count"),
    [
        ({}, "cpu", 2),
        ({}, "cpu:0", 2),
        ({}, "cuda:0", 1),
        ({"compile": "default"}, "cpu", 1),
        ({"attention": "math"}, "cpu", 1),
    ],
)
def test_batches_are_computed_side_by_side_only_where_they_do_not_disturb_each_other(
    changes: dict[str, Any], device: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "contrafact.diffusion"):
        assert batches_at_once(ServiceSettings(batches_at_once=2, **changes), device) == count
    assert ("CONTRAFACT_BATCHES_AT_ONCE" in caplog.text) == (count == 1)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (Acceleration(compile="reduce-overhead"), "compile=reduce-overhead"),
        (Acceleration(attention="cudnn"), "attention=cudnn"),
        (Acceleration(attention="efficient"), "attention=efficient"),
        (Acceleration(pinned=True), "pinned=True"),
        (Acceleration(vae_dtype="float16"), "vae_dtype=float16"),
        (Acceleration(vae_dtype="bfloat16"), "vae_dtype=bfloat16"),
    ],
)
def test_a_cpu_drops_what_it_cannot_do_and_says_why(
    options: Acceleration, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "contrafact.diffusion"):
        assert options.on("cpu", "float32") == OFF
    assert reason in caplog.text


def test_nothing_is_compiled_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    cases: list[tuple[CompileMode, str]] = [("default", "cpu"), ("default", "cuda:0"), ("reduce-overhead", "cuda:0")]
    for mode, device in cases:
        caplog.clear()
        gpu_of_capability(monkeypatch, 9)
        assert replace(OFF, compile=mode).on(device, "float32") == OFF
        assert f"compile={mode}" in caplog.text
        assert "C++ compiler" in caplog.text


def test_nothing_is_compiled_for_a_cpu_without_vector_extensions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    with caplog.at_level(logging.WARNING, "contrafact.diffusion"):
        assert Acceleration(compile="default").on("cpu", "float32") == OFF
    assert "compile=default" in caplog.text
    assert "AVX2" in caplog.text


def gpu_of_capability(monkeypatch: pytest.MonkeyPatch, major: int) -> None:
    """Let torch describe any GPU as one of this compute capability."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (major, 0))


@pytest.mark.parametrize(
    ("options", "major", "dtype", "reason"),
    [
        (Acceleration(compile="default"), 6, "float16", "compile=default"),
        (Acceleration(compile="reduce-overhead"), 6, "float16", "compute capability 7.0"),
        (Acceleration(attention="flash"), 7, "float16", "compute capability 8.0"),
        (Acceleration(attention="cudnn"), 7, "float16", "compute capability 8.0"),
        (Acceleration(attention="flash"), 8, "float32", "weights are float32"),
        (Acceleration(attention="cudnn"), 9, "float32", "weights are float32"),
        (Acceleration(vae_dtype="bfloat16"), 7, "float16", "use float16"),
    ],
)
def test_a_gpu_drops_what_its_generation_cannot_do_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    options: Acceleration,
    major: int,
    dtype: Dtype,
    reason: str,
) -> None:
    monkeypatch.setattr(acceleration, "_compiler", lambda: "g++")
    gpu_of_capability(monkeypatch, major)
    assert options.on("cuda:0", dtype) == OFF
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("options", "major", "dtype"),
    [
        (Acceleration("reduce-overhead", "cudnn", True, "bfloat16"), 8, "bfloat16"),
        (Acceleration("default", "flash", True, "float16"), 9, "float16"),
        (Acceleration("default", "efficient", True, "float16"), 7, "float16"),
        (Acceleration("off", "math", True, "float32"), 6, "float32"),
    ],
)
def test_a_gpu_keeps_all_that_it_can_do(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    options: Acceleration,
    major: int,
    dtype: Dtype,
) -> None:
    monkeypatch.setattr(acceleration, "_compiler", lambda: "g++")
    gpu_of_capability(monkeypatch, major)
    assert options.on("cuda:1", dtype) == options
    assert not caplog.records


def test_every_value_of_a_setting_is_supported_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "_compiler", lambda: "g++")
    gpu_of_capability(monkeypatch, 9)
    values = {
        "compile": get_args(CompileMode),
        "attention": get_args(AttentionKernel),
        "vae_dtype": get_args(DtypeChoice),
    }
    assert {field.name for field in fields(Acceleration)} == {*values, "pinned"}
    for name, choices in values.items():
        for choice in choices:
            options = replace(OFF, **{name: choice})
            assert options.on("cuda:0", "bfloat16") == options


def test_enabled_options_are_listed() -> None:
    options = Acceleration("reduce-overhead", "cudnn", True, "bfloat16")
    (info,) = options.infos()
    assert info.id == "compile=reduce-overhead attention=cudnn vae_dtype=bfloat16"


def test_what_rounds_differently_is_part_of_the_revision() -> None:
    changed = [replace(OFF, compile="default"), replace(OFF, attention="math"), replace(OFF, vae_dtype="bfloat16")]
    assert len({info.id for options in changed for info in options.infos()}) == 3
    assert replace(OFF, pinned=True).infos() == []


@pytest.mark.parametrize(
    ("chosen", "weights", "device", "overflows", "expected"),
    [
        ("auto", torch.bfloat16, "cpu", False, torch.float32),
        ("auto", torch.float16, "cuda:0", False, torch.float16),
        ("auto", torch.float16, "cuda:0", True, torch.float32),
        ("auto", torch.bfloat16, "cuda:0", True, torch.bfloat16),
        ("bfloat16", torch.float16, "cuda:0", True, torch.bfloat16),
        ("float16", torch.float16, "cuda:0", True, torch.float32),
        ("float32", torch.float16, "cuda:0", False, torch.float32),
    ],
)
def test_an_autoencoder_that_overflows_is_never_in_float16(
    chosen: DtypeChoice,
    weights: torch.dtype,
    device: str,
    overflows: bool,
    expected: torch.dtype,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = replace(OFF, vae_dtype=chosen)
    assert options.coder_dtype(weights, device, overflows) == expected
    ignored = chosen == "float16" and overflows
    assert ("vae_dtype=float16" in caplog.text) == ignored


@pytest.mark.slow
@pytest.mark.parametrize(
    ("force_upcast", "expected"), [(None, torch.float16), (False, torch.float16), (True, torch.float32)]
)
def test_an_autoencoder_overflows_only_if_its_own_file_says_so(
    folder: Path, tmp_path: Path, force_upcast: bool | None, expected: torch.dtype
) -> None:
    """The class's default is that it does; Stable Diffusion 1.5's file says nothing, and it does not."""
    base = shutil.copytree(folder / "base", tmp_path / "base")
    config = json.loads((base / "vae" / "config.json").read_text())
    del config["force_upcast"]
    if force_upcast is not None:
        config["force_upcast"] = force_upcast
    (base / "vae" / "config.json").write_text(json.dumps(config))
    half = Acceleration(vae_dtype="float16")
    for vae in (None, weights(base / "vae")):
        networks = load(weights(base), {}, device="cpu", vae=vae, acceleration=half)
        assert networks.vae.dtype == expected


@pytest.mark.parametrize("kernel", ["flash", "math"])
def test_a_chosen_kernel_of_attention_draws_the_same_image(folder: Path, kernel: AttentionKernel) -> None:
    (expected,) = images(editor(folder, OFF).render(KEY, [item()]))
    (image,) = images(editor(folder, Acceleration(attention=kernel).on("cpu", "float32")).render(KEY, [item()]))
    assert np.abs(image.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.slow
@pytest.mark.skipif(acceleration._compiler() is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="torch.compile needs AVX2")
@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_compiled_networks_draw_the_same_image(folder: Path) -> None:
    (expected,) = images(editor(folder, OFF).render(KEY, [item()]))
    options = Acceleration(compile="default").on("cpu", "float32")
    compiled = editor(folder, options)
    (image,) = images(compiled.render(KEY, [item()]))
    assert np.abs(image.astype(int) - expected.astype(int)).max() <= 1
    unet: nn.Module = compiled._weights.unet
    assert unet._compiled_call_impl is not None
