"""Which weights the services must have, and whether they fit the memory of their GPUs."""

from __future__ import annotations

import pytest

from gateway.operations.doctor import (
    gigabytes,
    host_memory,
    memory,
    needed_weights,
    service_faults,
)
from shared.profiles.profile import load_profile
from shared.profiles.unets import MergedLora
from shared.profiles.weights import Weights
from shared.schemas.service import GpuInfo, ServiceName
from tests.support.service_infos import PAPER, info

SERVICES_OF_PAPER: tuple[ServiceName, ...] = (
    "caption_service",
    "llm_service",
    "diffusion_service",
    "evaluator_service",
)


def test_weights_are_compared_with_the_profile() -> None:
    weights = needed_weights(PAPER)["diffusion_service"]

    def faults(**changes: object) -> str:
        return "; ".join(service_faults(info("diffusion_service", **changes), "paper", weights))  # type: ignore[arg-type]

    assert faults() == ""
    assert "version" in faults(version="0.0")
    assert "CONTRAFACT_PROFILE" in faults(profile="tiny")
    base, control, *others = info("diffusion_service").weights
    assert control.id in faults(weights=[base, *others])
    other = base.model_copy(update={"revision": "f" * 40})
    assert f"its {base.id} is revision ffffffffffff" in faults(weights=[other, control, *others])


def test_few_step_weights_are_needed_and_count_as_a_second_unet() -> None:
    modern = load_profile("modern")
    weights = needed_weights(modern)["diffusion_service"]
    (lora,) = [source for source in weights if isinstance(source, Weights) and source.id == "ByteDance/SDXL-Lightning"]
    assert lora.gigabytes == pytest.approx(5.1)
    (fault,) = service_faults(info("diffusion_service"), "paper", [lora])
    assert "ByteDance/SDXL-Lightning" in fault


def test_the_weights_of_all_services_on_a_gpu_must_fit_it() -> None:
    small = GpuInfo(uuid="GPU-1", name="A10G", gigabytes=24.0)
    large = replace_gpu(small, uuid="GPU-2", gigabytes=80.0)
    weights = needed_weights(PAPER)
    names: tuple[ServiceName, ...] = ("caption_service", "diffusion_service", "evaluator_service")
    shared = list(memory({name: info(name, large) for name in names}, weights))
    assert [fine for fine, _ in shared] == [True, True]
    assert "23.8 GB" in shared[0][1]
    both = {"caption_service": info("caption_service", small), "diffusion_service": info("diffusion_service", small)}
    tight = replace_gpu(small, gigabytes=16.0)
    both = {name: service.model_copy(update={"gpu": tight}) for name, service in both.items()}
    fine, sentence = next(memory(both, weights))  # type: ignore[arg-type]
    assert not fine
    assert "GPU" in sentence
    ((fine, sentence),) = memory({"caption_service": info("caption_service")}, weights)
    assert (fine, "memory is unknown" in sentence) == (False, True)


@pytest.mark.parametrize(
    ("memory_of_gpu", "loaded", "fits"), [(48.0, True, True), (40.0, False, False), (40.0, True, True)]
)
def test_a_language_server_beside_the_services_counts_with_its_cache(
    memory_of_gpu: float, loaded: bool, fits: bool
) -> None:
    """40 GB hold the services alone: where the server has loaded all the same, it has a GPU of its own."""
    gpu = GpuInfo(uuid="GPU-1", name="one", gigabytes=memory_of_gpu)
    names = SERVICES_OF_PAPER if loaded else tuple(name for name in SERVICES_OF_PAPER if name != "llm_service")
    weights, server = memory({name: info(name, gpu) for name in names}, needed_weights(PAPER))
    assert weights[0]
    assert server[0] == fits
    total = 24.3 if loaded else 23.8
    assert all(f"{gigabytes:.1f} GB" in server[1] for gigabytes in (10.0, 7.1, total + 17.1))


def test_a_server_is_counted_once_and_not_to_one_of_several_gpus() -> None:
    modern = needed_weights(load_profile("modern"))
    gpus = [GpuInfo(uuid=f"GPU-{number}", name="one", gigabytes=24.0) for number in range(2)]
    infos = {
        "diffusion_service": info("diffusion_service", gpus[0]),
        "evaluator_service": info("evaluator_service", gpus[1]),
    }
    *services, server = memory(infos, modern)  # type: ignore[arg-type]
    assert len(services) == 2
    assert server[0]
    assert all(words in server[1] for words in ("Qwen/Qwen3-VL-8B-Instruct-FP8", "10.6 GB", "4.8 GB"))
    assert server[1].count("GB") == 2, "the memory of no GPU"


def test_merged_loras_take_no_memory() -> None:
    used = {"path": "x", "dtype": "bfloat16", "licence": "none", "gigabytes": 0.2, "file": "a.safetensors"}
    modern = load_profile("modern")
    diffusion = modern.diffusion.model_copy(update={"loras": [MergedLora.model_validate(used)]})
    weights = needed_weights(modern.model_copy(update={"diffusion": diffusion}))["diffusion_service"]
    assert len(weights) == len(needed_weights(modern)["diffusion_service"]) + 1
    assert gigabytes(weights) == gigabytes(needed_weights(modern)["diffusion_service"])


def replace_gpu(gpu: GpuInfo, **changes: object) -> GpuInfo:
    return gpu.model_copy(update=changes)


@pytest.mark.parametrize(("limit", "fits"), [(17.0, False), (42.9, True)])
def test_what_a_pipeline_offloads_must_fit_into_its_containers_memory(limit: float, fits: bool) -> None:
    service = info("diffusion_service", host_gigabytes=limit)
    ((answer, sentence),) = host_memory({"diffusion_service": service}, load_profile("modern-24gb"))
    assert answer == fits
    assert "18.0 GB" in sentence
    assert ("DIFFUSION_MEMORY" in sentence) != fits
    assert not [*host_memory({"diffusion_service": service}, load_profile("paper"))], "it offloads nothing"
    unlimited = service.model_copy(update={"host_gigabytes": None})
    assert not [*host_memory({"diffusion_service": unlimited}, load_profile("modern-24gb"))]
