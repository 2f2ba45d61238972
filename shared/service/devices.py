"""How a model service loads weights: its profile section, the device, threads, determinism and native types.

Callers pass in the modules `torch` and `transformers`; this module does not import them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Generic, TypeVar

from shared.profiles.arithmetic import native_weights
from shared.profiles.diffusion import Diffusion
from shared.profiles.instruct import InstructServer
from shared.profiles.profile import Caption, Language, Profile, load_profile
from shared.profiles.weights import Section, Server
from shared.schemas.service import Runtimes, WeightsInfo
from shared.service.load_progress import expect
from shared.service.model_service import MakeBatcher, Model, ModelService
from shared.service.settings import ServiceSettings
from shared.service.threads import compute_threads
from shared.service.turns import ComputeTurns

Weights = TypeVar("Weights", bound=Section)
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
_PRECISION = threading.Lock()  # held while something computes that depends on the process's precision of float32


@dataclass(frozen=True, slots=True)
class Loading(Generic[Weights]):
    """What a service builds its model from. `weights` is its section of the profile, in types native to `device`."""

    weights: Weights
    device: str
    settings: ServiceSettings
    make_batcher: MakeBatcher


def torch_service(
    torch: ModuleType,
    transformers: ModuleType,
    name: str,
    code_revision: str,
    section: Callable[[Profile], Weights],
    load: Callable[[Loading[Weights]], Model],
    settings: ServiceSettings | None = None,
    turns: ComputeTurns | None = None,
    onnx_provider: str = "",
) -> ModelService[Model]:
    """Create the service `name` around the model that `load` builds (see `shared.service.model_service`).

    `section` selects the service's section of the profile. `settings` default to the environment. `onnx_provider` is
    onnxruntime's execution provider, if the service uses one. Raises ProfileError for a profile that cannot be read.
    """
    service_settings = settings or ServiceSettings()
    weights = section(load_profile(service_settings.profile))

    server = _server_of(weights)

    def load_on_device(make_batcher: MakeBatcher) -> Model:
        transformers.utils.logging.disable_progress_bar()
        device = prepare_torch(torch, service_settings)
        native = native_weights(torch, weights, device, service_settings.dtype)
        expect(native)
        return load(Loading(native, device, service_settings, make_batcher))

    runtimes = Runtimes(cuda_build=torch.version.cuda or "", onnx_provider=onnx_provider)
    return ModelService(name, code_revision, service_settings, load_on_device, turns, server, runtimes)


def _server_of(section: Section) -> Server | None:
    """The external server without which a service with this section cannot work; None if there is none."""
    if isinstance(section, Caption | Language):
        return section.server
    instruct = section.instruct if isinstance(section, Diffusion) else None
    return instruct.server if isinstance(instruct, InstructServer) else None


def choose_device(torch: ModuleType, name: str) -> str:
    """Return torch's name of a device: for `auto` the first GPU, or `cpu` without one; other names are unchanged."""
    if name != "auto":
        return name
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def unused_cuda(torch: ModuleType) -> str:
    """A hint at the build of torch for CPUs, if the installed one is for CUDA and finds no GPU; otherwise empty."""
    if not torch.version.cuda or torch.cuda.is_available():
        return ""
    return (
        f"torch is a build for CUDA {torch.version.cuda}, and it finds no GPU on this machine. To save gigabytes, "
        f"install the build for CPUs first in a new environment: pip install torch --index-url {CPU_BUILDS}"
    )


@contextmanager
def tensor_float_32(torch: ModuleType, device: str) -> Iterator[None]:
    """Let an NVIDIA GPU compute float32 matrices and convolutions in TF32 inside the block; other devices as before.

    TF32 has float32's range and float16's precision. Use it for Contrafact's own scorers and segmenters. A model under
    test computes in `plain_float_32`: the setting applies to the whole process, so these blocks exclude each other.
    """
    with _float_32(torch, device, tf32=True):
        yield


@contextmanager
def plain_float_32(torch: ModuleType, device: str) -> Iterator[None]:
    """Let an NVIDIA GPU compute all of float32 as IEEE 754 inside the block; torch's default for convolutions is TF32.

    No other thread changes that meanwhile.
    """
    with _float_32(torch, device, tf32=False):
        yield


@contextmanager
def _float_32(torch: ModuleType, device: str, *, tf32: bool) -> Iterator[None]:
    if not device.startswith("cuda"):
        yield
        return
    cudnn, matrices = torch.backends.cudnn, torch.backends.cuda.matmul
    with _PRECISION:
        before = [part.fp32_precision for part in (matrices, cudnn.conv, cudnn.rnn)]
        matrices.fp32_precision = "tf32" if tf32 else "none"
        cudnn.allow_tf32 = tf32  # unlike `fp32_precision`, it leaves a state that code with the older flags can read
        try:
            yield
        finally:
            for part, value in zip((matrices, cudnn.conv, cudnn.rnn), before, strict=True):
                part.fp32_precision = value


def info_in_tf32(info: WeightsInfo, device: str) -> WeightsInfo:
    """The entry of `/v1/info` for weights that compute in `tensor_float_32`, which affects replies."""
    return info.model_copy(update={"dtype": "tf32"}) if device.startswith("cuda") and info.dtype == "float32" else info


def prepare_torch(torch: ModuleType, settings: ServiceSettings) -> str:
    """Apply the settings for threads and determinism; return the device to load weights on."""
    torch.set_num_threads(compute_threads(settings.threads, torch.get_num_threads()))
    torch.backends.cudnn.deterministic = settings.deterministic
    return choose_device(torch, settings.device)
