"""Optional accelerations of the networks: off by default, ignored on devices that do not support them.

compile     `torch.compile` of UNet and ControlNets (`default`), optionally with CUDA graphs (`reduce-overhead`)
attention   the kernel of scaled dot-product attention: `flash`, `efficient`, `cudnn`, `math`; `auto` lets torch choose
pinned      inputs go to the GPU from page-locked memory, without waiting for the copy
vae_dtype   precision of the autoencoder; `auto`: the weights' on a GPU, unless they overflow in it; float32 on CPUs

Measurements: docs/measurements.md.
"""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from shared.profiles.arithmetic import AMPERE, DtypeChoice
from shared.profiles.weights import Dtype
from shared.schemas.service import WeightsInfo
from shared.service.settings import AttentionKernel, CompileMode

logger = logging.getLogger("contrafact.diffusion")
_Network = TypeVar("_Network", bound=nn.Module)
_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
_ON_GPUS_ONLY = ("efficient", "cudnn")
_OF_AMPERE = ("flash", "cudnn")  # GPU kernels that compute half precision only
_VOLTA = 7  # the first major compute capability that torch.compile's Triton supports


@dataclass(frozen=True, slots=True)
class Acceleration:
    """The enabled accelerations; see the module's docstring."""

    compile: CompileMode = "off"
    attention: AttentionKernel = "auto"
    pinned: bool = False
    vae_dtype: DtypeChoice = "auto"

    def on(self, device: str, dtype: Dtype) -> Acceleration:
        """The accelerations that `device` supports for networks in `dtype`; the others are logged and switched off."""
        supported = self
        for name, reason in _reasons(self, device, dtype):
            logger.warning("%s=%s is ignored on %s: %s", name, getattr(self, name), device, reason)
            supported = replace(supported, **{name: getattr(OFF, name)})
        return supported

    def mark_for_compilation(self, network: _Network) -> _Network:
        """Mark the network to be compiled at its first call for each shape, if enabled."""
        if self.compile != "off":
            network.compile(mode=None if self.compile == "default" else self.compile)
        return network

    def kernels(self) -> AbstractContextManager[Any]:
        """Context in which attention uses the chosen kernel, or the plain one for inputs that it does not support."""
        if self.attention == "auto":
            return nullcontext()
        return sdpa_kernel([_KERNELS[self.attention], SDPBackend.MATH], set_priority=True)

    def eagerly(self) -> AbstractContextManager[Any]:
        """Context in which nothing is compiled: for passes with injected attention, or with gradients."""
        return nullcontext() if self.compile == "off" else torch.compiler.set_stance("force_eager")

    def start_step(self) -> None:
        """Tell CUDA graphs that the output of the last step is no longer needed."""
        if self.compile == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]

    def copy_output(self, output: Tensor) -> Tensor:
        """Copy a step's output if the next step would overwrite it."""
        return output.clone() if self.compile == "reduce-overhead" else output

    def move(self, tensor: Tensor, device: torch.device) -> Tensor:
        """Move a tensor to the device."""
        if self.pinned:
            return tensor.pin_memory().to(device, non_blocking=True)
        return tensor.to(device)

    def coder_dtype(self, weights_dtype: torch.dtype, device: str, overflows: bool) -> torch.dtype:
        """Precision of an autoencoder; `overflows`: its weights, which have `weights_dtype`, overflow in float16."""
        if self.vae_dtype == "float16" and overflows:
            logger.warning("vae_dtype=float16 is ignored: this autoencoder overflows in it (force_upcast)")
        elif self.vae_dtype != "auto":
            requested: torch.dtype = getattr(torch, self.vae_dtype)
            return requested
        # On CPUs half precision loses colour depth and saves no time. bfloat16 has float32's range: nothing overflows.
        overflows = overflows and weights_dtype == torch.float16
        return torch.float32 if device == "cpu" or overflows else weights_dtype

    def infos(self) -> list[WeightsInfo]:
        """The entries of `/v1/info` for settings that change rounding; empty if all are off."""
        parts = {"compile": self.compile, "attention": self.attention, "vae_dtype": self.vae_dtype}
        settings = " ".join(f"{name}={value}" for name, value in parts.items() if value != getattr(OFF, name))
        return [WeightsInfo(role="acceleration", id=settings, revision="", dtype="", licence="")] if settings else []


OFF = Acceleration()


def _reasons(requested: Acceleration, device: str, dtype: Dtype) -> list[tuple[str, str]]:
    """Settings that are not supported, with the reason."""
    gpu = device.partition(":")[0] == "cuda"
    reasons = _gpu_reasons(requested, device, dtype) if gpu else _cpu_reasons(requested)
    if requested.compile != "off" and "compile" not in dict(reasons) and not _compiler():
        reasons.append(("compile", "torch.compile needs a C++ compiler (g++, or $CXX), and there is none"))
    return reasons


def _cpu_reasons(requested: Acceleration) -> list[tuple[str, str]]:
    reasons = []
    if requested.compile == "reduce-overhead":
        reasons.append(("compile", "CUDA graphs need a GPU; use default"))
    elif requested.compile != "off" and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        # On other CPUs torch 2.13 generates C++ code that uses `at::vec` without including it.
        reasons.append(("compile", "torch.compile needs a CPU with AVX2, or another vector extension that torch knows"))
    if requested.attention in _ON_GPUS_ONLY:
        reasons.append(("attention", "that kernel is for GPUs; use flash or math"))
    if requested.pinned:
        reasons.append(("pinned", "it only speeds up copies to a GPU"))
    if requested.vae_dtype in ("float16", "bfloat16"):
        reasons.append(("vae_dtype", "half precision costs colour depth on a CPU and saves no time"))
    return reasons


def _gpu_reasons(requested: Acceleration, device: str, dtype: Dtype) -> list[tuple[str, str]]:
    major, _ = torch.cuda.get_device_capability(device)
    reasons = []
    if requested.compile != "off" and major < _VOLTA:
        reasons.append(("compile", "torch.compile needs a GPU of compute capability 7.0 or higher"))
    if requested.attention in _OF_AMPERE and major < AMPERE:
        reasons.append(("attention", "that kernel needs a GPU of compute capability 8.0 or higher; use efficient"))
    elif requested.attention in _OF_AMPERE and dtype == "float32":
        reasons.append(
            ("attention", "that kernel supports half precision only, and the weights are float32; use efficient")
        )
    if requested.vae_dtype == "bfloat16" and major < AMPERE:
        reasons.append(("vae_dtype", "a GPU below compute capability 8.0 emulates bfloat16; use float16"))
    return reasons


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++"))
