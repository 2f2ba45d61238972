"""The compose files as an engine sees them: variables filled in, the override merged, by podman-compose's own code."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import podman_compose
import yaml
from podman_compose import rec_merge, rec_subs

ROOT = Path(__file__).parents[2]
_interpolate = podman_compose.var_interpolate
# It defines three classes at each call, which takes 4 CPU seconds for the 2,500 texts of a file.
podman_compose.var_interpolate = lambda text, values: _interpolate(text, values) if "$" in text else text
BASE = ROOT / "docker-compose.yml"
GPU = ROOT / "docker-compose.gpu.yml"
VLLM = ROOT / "docker-compose.vllm.yml"
TGI = ROOT / "docker-compose.tgi.yml"
SECRETS = {
    "POSTGRES_PASSWORD": "1a",
    "VALKEY_PASSWORD": "2b",
    "S3_ACCESS_KEY": "3c",
    "S3_SECRET_KEY": "4d",
    "GRAFANA_PASSWORD": "5e",
    "CONTRAFACT_API_KEY": "cf_" + "6f" * 32,
}


def composed(*files: Path, variables: dict[str, str] | None = None) -> dict[str, Any]:
    """The services, networks and volumes of these files, the later over the earlier. Raises ValueError as `:?` says.

    With a GPU, which has no default, the profile is `paper`, with TGI `paper-tgi`, with vLLM `modern-24gb`, unless
    `variables` names another.
    """
    chosen = SECRETS if variables is None else variables
    profile = "modern-24gb" if VLLM in files else "paper-tgi" if TGI in files else "paper"
    return deepcopy(
        _composed(files, tuple(({"CONTRAFACT_PROFILE": profile} | chosen if GPU in files else chosen).items()))
    )


@cache
def _composed(files: tuple[Path, ...], variables: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for file in files:
        later = rec_subs(deepcopy(_read(file)), dict(variables))
        _replace_tests(merged, later)
        rec_merge(merged, later)
    return merged


def _replace_tests(earlier: dict[str, Any], later: dict[str, Any]) -> None:
    """The specification replaces a health check's `test`; podman-compose would append to it."""
    for name, service in later["services"].items():
        if "test" in service.get("healthcheck", {}):
            earlier.get("services", {}).get(name, {}).get("healthcheck", {}).pop("test", None)


@cache
def _read(file: Path) -> dict[str, Any]:
    plain = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return {key: value for key, value in plain.items() if not key.startswith("x-")}
