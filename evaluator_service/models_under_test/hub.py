"""Load transformers models safely: complete safetensors only, no remote code.

Limit the size of a model while it is built from its configuration, by the size of the weights beside it.

A configuration of a few hundred bytes can name a billion layers. A complete model has as many parameters as its
weights, so building stops at the first parameter beyond that. This needs no knowledge of the architecture's options.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from shared.problems import InvalidInput
from shared.profiles.weights import Weights
from shared.schemas.models import CONFIG_NAME

FACTOR = 4  # tied parameters count twice, and weights in half precision are built in single precision
SLACK_BYTES = 4 * 1024**2
SLACK_TENSORS = 200
MAX_NUMBER = 1_000_000
_LISTED = 5
_UNREAD = ".num_batches_tracked"  # a buffer that only training reads


def load_hub_model(kind: Any, weights: Weights) -> Any:
    """Load a model of an `AutoModelFor...` class onto the CPU.

    Raises InvalidInput if weights are missing or do not fit: transformers would only warn and initialise them randomly.
    It also raises if the configuration of a folder implies a much larger model than the folder's weights.
    """
    location = weights.location
    bounded = bound_by_weights(Path(location, weights.subfolder)) if weights.path else nullcontext()
    try:
        with bounded:
            model, report = kind.from_pretrained(
                location,
                dtype=getattr(torch, weights.dtype),
                use_safetensors=True,
                trust_remote_code=False,
                subfolder=weights.subfolder,
                revision=weights.hub_revision,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are reported below, all at once
            )
    except ImportError as error:  # timm's models are transformers' TimmWrapper, which imports timm
        raise InvalidInput(
            "this model needs a library that is not installed; for timm's models the operator installs the extra "
            f"contrafact[timm]: {' '.join(str(error).split())[:300]}"
        ) from error
    unfit = {*map(str, report["missing_keys"]), *(str(item[0]) for item in report["mismatched_keys"])}
    lacking = sorted(name for name in unfit if not name.endswith(_UNREAD))
    if lacking:
        more = f" and {len(lacking) - _LISTED} more" if len(lacking) > _LISTED else ""
        raise InvalidInput(
            f"the weights do not fit config.json: {', '.join(lacking[:_LISTED])}{more} missing or of another shape; "
            "save both with save_pretrained"
        )
    return model


def own_names(config: Any) -> list[str]:
    """The names that a model's configuration gives its outputs, by index. Raises InvalidInput if some are missing."""
    return names_by_index(config.id2label)


def names_by_index(id2label: Mapping[Any, Any]) -> list[str]:
    """Names of outputs in their order. Raises InvalidInput if some are missing."""
    labels = {int(index): str(label) for index, label in id2label.items()}
    if sorted(labels) != list(range(len(labels))):
        raise InvalidInput("id2label in config.json must name the outputs 0, 1, 2, ... without gaps")
    return [labels[index] for index in range(len(labels))]


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
