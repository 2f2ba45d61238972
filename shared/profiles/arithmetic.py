"""Choose the floating-point type that a device computes natively, when weights are loaded.

Callers pass in the module `torch`, which describes the GPUs; this module does not import it.

Half precision saves time only where the hardware computes it. The tiny UNet is five times *slower* in bfloat16 than in
float32 on an x86 processor that has AVX2 alone, because every operation converts there and back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from shared.profiles.evaluator import ModelUnderTest
from shared.profiles.weights import Dtype, Section, Weights

DtypeChoice = Literal["auto", "float32", "float16", "bfloat16"]
CPU_INFO = Path("/proc/cpuinfo")
# Features by which Linux names native bfloat16: Intel's AMX, AVX512-BF16 (Intel and AMD), Arm's BF16 extension.
NATIVE_FEATURES = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
# The environment can restrict oneDNN and ATen to these instruction sets, in which bfloat16 is emulated.
_ONEDNN_WITHOUT_BFLOAT16 = frozenset(
    {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}
)
_ATEN_WITHOUT_BFLOAT16 = frozenset({"DEFAULT", "AVX2"})
AMPERE = 8  # NVIDIA's first major compute capability with native bfloat16
_Section = TypeVar("_Section", bound=Section)


def native_weights(torch: ModuleType, section: _Section, device: str, requested: DtypeChoice = "auto") -> _Section:
    """Return a profile section with each set of weights in the type that `device` (torch's name) computes natively.

    A `requested` type other than `auto` overrides the choice. Weights that the profile declares float32 stay float32:
    the thresholds of the checks are calibrated for that precision. Models under test keep their declared precision.
    """
    choose = partial(native_dtype, torch, device=device) if requested == "auto" else lambda _: requested
    return _with_dtypes(section, choose)


def native_dtype(torch: ModuleType, preferred: Dtype, device: str) -> Dtype:
    """Return the type to compute in on `device`, given the type that the profile prefers.

    float32 stays float32. A CPU gets bfloat16 if it is native, else float32; a GPU without bfloat16 gets float16.
    """
    kind = device.partition(":")[0]
    if preferred == "float32":
        return "float32"
    if kind == "cpu":
        return "bfloat16" if cpu_has_bfloat16() else "float32"
    if kind == "cuda" and preferred == "bfloat16":
        major, _ = torch.cuda.get_device_capability(device)
        return "bfloat16" if major >= AMPERE else "float16"
    return preferred


def cpu_has_bfloat16(environment: Mapping[str, str] = os.environ, cpu_info: Path = CPU_INFO) -> bool:
    """Whether this processor computes bfloat16 natively with the instruction sets that oneDNN and ATen may use.

    Only Linux reports it; the result is False elsewhere.
    """
    # oneDNN reads the older name only where the newer one is unset or empty.
    onednn = environment.get("ONEDNN_MAX_CPU_ISA") or environment.get("DNNL_MAX_CPU_ISA") or ""
    aten = environment.get("ATEN_CPU_CAPABILITY", "")
    limited = onednn.upper() in _ONEDNN_WITHOUT_BFLOAT16 or aten.upper() in _ATEN_WITHOUT_BFLOAT16
    return not limited and bool(_cpu_features(cpu_info) & NATIVE_FEATURES)


@lru_cache(maxsize=4)
def _cpu_features(cpu_info: Path) -> frozenset[str]:
    try:
        lines = cpu_info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    listed = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(listed, "").split())


def _with_dtypes(section: _Section, choose: Callable[[Dtype], Dtype]) -> _Section:
    update: dict[str, Any] = {}
    if isinstance(section, ModelUnderTest):
        return section
    if isinstance(section, Weights) and section.dtype != "float32":
        update["dtype"] = choose(section.dtype)
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            update[name] = _with_dtypes(value, choose)
        elif isinstance(value, dict):
            update[name] = {
                key: _with_dtypes(item, choose) if isinstance(item, Section) else item for key, item in value.items()
            }
        elif isinstance(value, list):
            update[name] = [_with_dtypes(item, choose) if isinstance(item, Section) else item for item in value]
    return section.model_copy(update=update)
