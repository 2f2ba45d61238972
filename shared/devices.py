"""How a model service loads weights: its profile section, the device, threads, determinism and native types.

The modules `torch` and `transformers` are passed in: nothing here imports them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Generic, TypeVar

from shared.arithmetic import native_weights
from shared.load_progress import expect
from shared.profiles import Profile, load_profile
from shared.service import MakeBatcher, Model, ModelService, ServiceSettings
from shared.threads import compute_threads
from shared.turns import ComputeTurns
from shared.weights import Section

Weights = TypeVar("Weights", bound=Section)


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
) -> ModelService[Model]:
    """The service `name` around the model that `load` builds (see `shared.service`); `section` is of the profile.

    `settings` are those of the environment by default. Raises ProfileError for a profile that cannot be read.
    """
    chosen = settings or ServiceSettings()
    weights = section(load_profile(chosen.profile))

    def load_on_device(make_batcher: MakeBatcher) -> Model:
        transformers.utils.logging.disable_progress_bar()
        device = prepare_torch(torch, chosen)
        native = native_weights(torch, weights, device, chosen.dtype)
        expect(native)
        return load(Loading(native, device, chosen, make_batcher))

    return ModelService(name, code_revision, chosen, load_on_device, turns)


def choose_device(torch: ModuleType, name: str) -> str:
    """`auto` is the first GPU if there is one; other names are torch's own (`cpu`, `cuda:1`, ...)."""
    if name != "auto":
        return name
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def prepare_torch(torch: ModuleType, settings: ServiceSettings) -> str:
    """Set threads and determinism as the settings have them; returns the device to load weights on."""
    torch.set_num_threads(compute_threads(settings.threads, torch.get_num_threads()))
    torch.backends.cudnn.deterministic = settings.deterministic
    return choose_device(torch, settings.device)
