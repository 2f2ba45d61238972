"""The dtype follows the device: half precision only where it is native."""

import os
from pathlib import Path

import pytest
import torch

from shared.profiles import arithmetic
from shared.profiles.arithmetic import cpu_has_bfloat16, native_dtype, native_weights
from shared.profiles.profile import load_profile
from shared.profiles.unets import MergedLora
from shared.service.settings import ServiceSettings

AMX = "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16 amx_tile\n"
ZEN_4 = "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n"
AVX2 = "processor\t: 0\nflags\t\t: fpu avx2 fma\n"
GRAVITON_3 = "processor\t: 0\nFeatures\t: fp asimd sve bf16 i8mm\n"
GRAVITON_2 = "processor\t: 0\nFeatures\t: fp asimd asimddp\n"


@pytest.mark.parametrize(
    ("text", "native"),
    [(AMX, True), (ZEN_4, True), (AVX2, False), (GRAVITON_3, True), (GRAVITON_2, False), ("", False)],
)
def test_bfloat16_is_native_where_the_processor_says_so(tmp_path: Path, text: str, native: bool) -> None:
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text(text)
    assert cpu_has_bfloat16({}, cpu_info) is native
    assert not cpu_has_bfloat16({}, tmp_path / "missing")


@pytest.mark.parametrize(
    ("limit", "native"),
    [
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, False),
        ({"ONEDNN_MAX_CPU_ISA": "avx512_core_vnni"}, False),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, True),
        ({"DNNL_MAX_CPU_ISA": "AVX2"}, False),
        ({"DNNL_MAX_CPU_ISA": "avx512_core_bf16"}, True),
        ({"ONEDNN_MAX_CPU_ISA": "ALL", "DNNL_MAX_CPU_ISA": "AVX2"}, True),
        ({"ONEDNN_MAX_CPU_ISA": "", "DNNL_MAX_CPU_ISA": "AVX2"}, False),
        ({"ATEN_CPU_CAPABILITY": "avx2"}, False),
        ({"ATEN_CPU_CAPABILITY": "avx512"}, True),
    ],
)
def test_a_processor_that_imitates_a_smaller_one_is_taken_for_it(
    tmp_path: Path, limit: dict[str, str], native: bool
) -> None:
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text(AMX)
    assert cpu_has_bfloat16(limit, cpu_info) is native


@pytest.mark.parametrize("native", [True, False])
def test_a_cpu_gets_bfloat16_where_native_and_float32_elsewhere(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr(arithmetic, "cpu_has_bfloat16", lambda: native)
    half = "bfloat16" if native else "float32"
    assert [native_dtype(torch, kind, "cpu") for kind in ("float32", "float16", "bfloat16")] == ["float32", half, half]


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((9, 0), "bfloat16"), ((8, 6), "bfloat16"), ((7, 5), "float16")],
)
def test_torch_says_which_gpu_computes_bfloat16_and_no_command_is_needed(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: str
) -> None:
    monkeypatch.setenv("PATH", "")  # no nvidia-smi
    monkeypatch.setattr(torch.cuda, "get_device_capability", {"cuda:1": capability}.__getitem__)
    assert native_dtype(torch, "bfloat16", "cuda:1") == expected
    assert native_dtype(torch, "float16", "cuda:1") == "float16"
    assert native_dtype(torch, "float32", "cuda:1") == "float32"


def test_every_set_of_weights_of_a_profile_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "cpu_has_bfloat16", lambda: False)
    profile = load_profile("modern")
    assert profile.diffusion.few_step is not None
    lora = MergedLora.model_validate(profile.diffusion.few_step.weights.model_dump())
    profile = profile.model_copy(update={"diffusion": profile.diffusion.model_copy(update={"loras": [lora]})})
    resolved = native_weights(torch, profile, "cpu")
    assert '"bfloat16"' in profile.model_dump_json()
    assert '"bfloat16"' not in resolved.model_dump_json()
    assert resolved.model_copy(update={"caption": profile.caption}).profile == profile.profile


def test_the_setting_overrides_but_leaves_float32_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTRAFACT_DTYPE", "bfloat16")
    dtype = ServiceSettings().dtype
    diffusion = native_weights(torch, load_profile("tiny").diffusion, "cpu", dtype)
    assert diffusion.base.dtype == diffusion.controlnets["canny"].dtype == "bfloat16"
    assert diffusion.segmenter is not None
    assert diffusion.segmenter.dtype == "float32", "the profile holds it there"


def test_this_machine_is_described_by_torch_and_by_us_alike() -> None:
    torch_says = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if os.uname().machine == "x86_64" and torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert cpu_has_bfloat16() == torch_says
    else:
        assert not (cpu_has_bfloat16() and torch.backends.cpu.get_cpu_capability() == "AVX2")


def test_a_model_under_test_keeps_the_precision_that_its_owner_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "cpu_has_bfloat16", lambda: False)
    evaluator = load_profile("tiny").evaluator
    half = evaluator.models_under_test["street-classifier"].model_copy(update={"dtype": "bfloat16"})
    resolved = native_weights(torch, evaluator.model_copy(update={"models_under_test": {"mine": half}}), "cpu")
    assert resolved.models_under_test["mine"].dtype == "bfloat16"
