"""Limit the size of a model while it is built from its configuration, by the size of the weights beside it.

A configuration of a few hundred bytes can name a billion layers. A complete model has as many parameters as its
weights, so building stops at the first parameter beyond that. This needs no knowledge of the architecture's options.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import safe_open
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from shared.problems import InvalidInput
from shared.schemas.models import CONFIG_NAME

FACTOR = 4  # tied parameters count twice, and weights in half precision are built in single precision
SLACK_BYTES = 4 * 1024**2
SLACK_TENSORS = 200
MAX_NUMBER = 1_000_000


@contextmanager
def bound_by_weights(folder: Path) -> Iterator[None]:
    """Within the block, modules may register about as many parameters as the folder's safetensors have.

    Raises InvalidInput for more parameters, and for a number in `config.json` above both MAX_NUMBER and the weights'
    bytes. Folders without safetensors and modules that other threads build are not limited.
    """
    files = list(folder.glob("*.safetensors"))
    if not files:
        yield
        return
    weight_bytes = sum(path.stat().st_size for path in files)
    _refuse_large_numbers(folder / CONFIG_NAME, max(MAX_NUMBER, weight_bytes))
    most_bytes, most_tensors = FACTOR * weight_bytes + SLACK_BYTES, FACTOR * sum(map(_tensors, files)) + SLACK_TENSORS
    sizes: dict[tuple[int, str], int] = {}  # loading registers the same parameters repeatedly
    total, builder = 0, threading.get_ident()

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal total
        if threading.get_ident() != builder:
            return
        size = 0 if parameter is None else parameter.numel() * parameter.element_size()
        total += size - sizes.get((id(module), name), 0)
        sizes[id(module), name] = size
        if total > most_bytes or len(sizes) > most_tensors:
            raise InvalidInput(
                f"{CONFIG_NAME} describes a model of at least {total:,} bytes in {len(sizes):,} tensors, but its "
                f"weights have {weight_bytes:,} bytes; save both with save_pretrained"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _tensors(path: Path) -> int:
    with safe_open(path, "pt") as file:
        return len(file.keys())


def _refuse_large_numbers(path: Path, most: int) -> None:
    if not path.is_file():
        return
    waiting: list[tuple[str, object]] = [("", json.loads(path.read_bytes()))]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(str(key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(name, inner) for inner in value]
        elif isinstance(value, int) and abs(value) > most:
            raise InvalidInput(
                f"{CONFIG_NAME} has {name[:100]!r} above {most:,}, which is too large for the size of the weights; "
                "save both with save_pretrained"
            )
