"""Load a causal language model in Hub layout with its tokenizer, and a LoRA adapter over it; safetensors only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from peft import PeftConfig, PeftModel, PeftType
from transformers import AutoModelForCausalLM, AutoTokenizer

from shared.profiles.profile import Adapter
from shared.profiles.weights import Weights
from shared.schemas.service import WeightsInfo

_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"


def load_causal(weights: Weights, role: str = "language") -> tuple[Any, Any, WeightsInfo]:
    """Return model, tokenizer and weights info. Raises ValueError for a tokenizer without a chat template."""
    at = {"revision": weights.hub_revision, "subfolder": weights.subfolder}
    tokenizer = AutoTokenizer.from_pretrained(weights.location, **at)
    if not tokenizer.chat_template:
        raise ValueError(f"{weights.id} has no chat template; choose an instruction-tuned model")
    model = AutoModelForCausalLM.from_pretrained(
        weights.location, dtype=getattr(torch, weights.dtype), use_safetensors=True, variant=weights.variant, **at
    )
    return model, tokenizer, weights.info(role, getattr(model.config, "_commit_hash", None))


def with_adapter(model: Any, adapter: Adapter, base: WeightsInfo) -> tuple[Any, WeightsInfo]:
    """Add a LoRA adapter to `model`, whose weights are `base`; return it with the adapter's weights info.

    Raises ValueError for an adapter of another kind, one that was trained on another revision of the weights, or one
    whose layers the model lacks; OSError if its files are missing or not safetensors.
    """
    folder, commit = _folder(adapter)
    config = PeftConfig.from_pretrained(folder)
    if config.peft_type != PeftType.LORA:
        raise ValueError(f"{adapter.id} is an adapter of kind {config.peft_type}; only LoRA is supported")
    # `train_perturber` writes a commit or digest as revision; other tools may write a branch, which cannot be compared.
    if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", config.revision or "") and config.revision != base.revision:
        raise ValueError(
            f"{adapter.id} was trained on revision {config.revision[:12]} of its base, and {base.id} is revision "
            f"{base.revision[:12]}; train the adapter again, or load the weights that it belongs to"
        )
    adapted = PeftModel.from_pretrained(model, folder, config=config)
    return adapted.merge_and_unload() if adapter.merged else adapted, adapter.info("adapter", commit)


def _folder(adapter: Adapter) -> tuple[str, str | None]:
    """Return the local folder of the adapter's files, and their Hub commit.

    They are looked up here because peft falls back to pickled weights if it finds no safetensors.
    """
    if adapter.path is None:
        paths = [
            Path(
                hf_hub_download(
                    adapter.location, name, subfolder=adapter.subfolder or None, revision=adapter.hub_revision
                )
            )
            for name in (_CONFIG, _TENSORS)
        ]
        commit = re.search("/snapshots/([0-9a-f]{40})/", paths[1].as_posix())
        return str(paths[1].parent), commit and commit[1]
    folder = Path(adapter.location, adapter.subfolder)
    if missing := [name for name in (_CONFIG, _TENSORS) if not (folder / name).is_file()]:
        raise FileNotFoundError(f"{folder} lacks {' and '.join(missing)}; name the folder of a LoRA adapter of peft")
    return str(folder), None
