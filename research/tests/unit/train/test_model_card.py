"""Weights are stored in half of fp16's bytes, and transformers loads them in the requested dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSemanticSegmentation,
    Blip2ForConditionalGeneration,
    CLIPModel,
    LlamaForCausalLM,
)

from evaluator_service.models_under_test.hub import load_hub_model
from research.system.folders import ORACLE_WEIGHTS, WEIGHTS
from research.train.model_card import halve, save_model
from shared.profiles.weights import Weights

KINDS: dict[Path, Any] = {
    WEIGHTS / "captioner": Blip2ForConditionalGeneration,
    WEIGHTS / "scorer": CLIPModel,
    WEIGHTS / "language": LlamaForCausalLM,
    WEIGHTS / "segmenter": AutoModelForSemanticSegmentation,
    WEIGHTS / "masked_words": AutoModelForMaskedLM,
    WEIGHTS / "models_under_test/street-classifier": AutoModelForImageClassification,
    ORACLE_WEIGHTS / "oracle-b": AutoModelForImageClassification,
}


@pytest.mark.parametrize("folder", KINDS, ids=lambda folder: folder.name)
def test_a_saved_model_takes_fewer_bytes_and_is_read_in_any_precision(folder: Path, tmp_path: Path) -> None:
    model = KINDS[folder].from_pretrained(folder, dtype=torch.float32)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    parameters = save_model(model, tmp_path)
    assert parameters == model.num_parameters()
    assert model.dtype == torch.float32
    written = (tmp_path / "model.safetensors").stat().st_size
    assert written <= 1.6 * parameters, "in half precision two bytes each"
    for dtype in (torch.float32, torch.float16):
        after = KINDS[folder].from_pretrained(tmp_path, dtype=dtype).state_dict()
        usual = KINDS[folder].from_pretrained(folder, dtype=dtype).state_dict()
        assert {key: tensor.dtype for key, tensor in after.items()} == {k: tensor.dtype for k, tensor in usual.items()}
        for key, tensor in before.items():
            if tensor.is_floating_point():
                near, least = (2**-4, 2**-10) if tensor.ndim > 1 else (2**-11, 2**-24)
                torch.testing.assert_close(after[key].float(), tensor, rtol=near, atol=least)
            else:
                assert torch.equal(after[key], tensor)


def test_large_matrices_are_stored_in_eight_bits_and_nothing_else(tmp_path: Path) -> None:
    model = CLIPModel.from_pretrained(WEIGHTS / "scorer", dtype=torch.float32)
    save_model(model, tmp_path)
    halve(tmp_path)  # once more, which changes nothing
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    with safe_open(tmp_path / "model.safetensors", "pt") as tensors:
        assert tensors.metadata() == {"format": "pt"}
        stored = {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118 - not a dict
    assert stored == {
        name: "F8_E4M3" if len(shape) > 1 and shape.numel() >= 4096 else "F16" for name, shape in shapes.items()
    }
    assert set(stored.values()) == {"F8_E4M3", "F16"}


def test_only_matrices_of_the_requested_size_are_stored_in_eight_bits(tmp_path: Path) -> None:
    large = 50_000
    model = CLIPModel.from_pretrained(WEIGHTS / "scorer", dtype=torch.float32)
    save_model(model, tmp_path, large)
    values = {name: parameter.numel() for name, parameter in model.named_parameters()}
    with safe_open(tmp_path / "model.safetensors", "pt") as tensors:
        stored = {name: tensors.get_slice(name).get_dtype() for name in values}
    assert {name for name, kind in stored.items() if kind == "F8_E4M3"} == {
        name for name, count in values.items() if count >= large
    }
    assert min(count for count in values.values() if count >= large) > 4096


def test_a_model_under_test_is_loaded_whole_from_eight_bits(tmp_path: Path) -> None:
    shipped = AutoModelForImageClassification.from_pretrained(
        WEIGHTS / "models_under_test" / "street-classifier", dtype=torch.float32
    )
    save_model(shipped, tmp_path)
    weights = Weights(path=tmp_path, licence="", gigabytes=1, dtype="float32")
    loaded = load_hub_model(AutoModelForImageClassification, weights)
    pixels = torch.rand(2, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(pixels).logits, shipped.eval()(pixels).logits, rtol=0.2, atol=0.5)
