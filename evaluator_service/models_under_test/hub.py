"""Load transformers models safely: complete safetensors only, no remote code."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from evaluator_service.models_under_test.config_bounds import bound_by_weights
from shared.problems import InvalidInput
from shared.weights import Weights

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
