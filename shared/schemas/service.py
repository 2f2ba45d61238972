"""Contract of `GET /v1/info`: what every model service reports about itself."""

from __future__ import annotations

from typing import Literal

from shared.schemas.base import Contract

ServiceName = Literal["caption_service", "llm_service", "diffusion_service", "evaluator_service"]
SERVICES: tuple[ServiceName, ...] = ("caption_service", "llm_service", "diffusion_service", "evaluator_service")


class WeightsInfo(Contract):
    """One set of weights that a service has loaded. `revision` is a hub commit, or the digest of local files."""

    role: str
    id: str
    revision: str
    dtype: str
    licence: str


class GpuInfo(Contract):
    """The GPU that a service computes on; services with the same `uuid` share it. `gigabytes` is its total memory."""

    uuid: str
    name: str
    gigabytes: float
    driver: str = ""


class Runtimes(Contract):
    """What a service computes with. `cuda_build`: the CUDA version that its torch is built for; empty for CPUs only.

    `onnx_provider`: onnxruntime's execution provider for ONNX models; empty in services that run none.
    """

    cuda_build: str = ""
    onnx_provider: str = ""


NO_RUNTIMES = Runtimes()


class ServiceInfo(Contract):
    """`GET /v1/info`. `revision` changes whenever a reply to the same request may change: it keys recorded calls.

    `gpu` is None on other devices, and if nvidia-smi is not installed. `host_gigabytes` is the memory limit of its
    container, None without one.
    """

    service: str
    profile: str
    device: str
    deterministic: bool
    revision: str
    weights: list[WeightsInfo]
    version: str
    gpu: GpuInfo | None = None
    runtimes: Runtimes = NO_RUNTIMES
    host_gigabytes: float | None = None
