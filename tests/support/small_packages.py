"""Models under test as users send them: a small ResNet in Hub layout, zipped, and the same exported to ONNX."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForImageClassification

from shared.schemas.models import ONNX_NAME, PROCESSOR_NAME
from tests.support.small_evaluator import write_classifier


class Logits(torch.nn.Module):
    """A model of transformers as a function of tensors."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values=pixel_values).logits
        return logits


def hub_files(folder: Path, seed: int = 1) -> dict[str, bytes]:
    """The files of `write_classifier`'s model, by name."""
    write_classifier(folder, seed)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def exported(folder: Path, batch: int | None = None) -> bytes:
    """The classifier in a folder as ONNX, of a fixed batch size where one is given."""
    return as_onnx(Logits(AutoModelForImageClassification.from_pretrained(folder)), batch)


def as_onnx(model: torch.nn.Module, batch: int | None = None, names: Sequence[str] = ("logits",)) -> bytes:
    """A function of pictures of 64 × 64 as ONNX; `names` of its outputs."""
    output = io.BytesIO()
    axes = {name: {0: "batch"} for name in ("pixel_values", *names)} if batch is None else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is the old one, which needs no further library
        torch.onnx.export(
            model.eval(),
            (torch.zeros(batch or 1, 3, 64, 64),),
            output,  # type: ignore[arg-type]  # this exporter writes to a buffer, too
            dynamo=False,
            input_names=["pixel_values"],
            output_names=list(names),
            dynamic_axes=axes,
        )
    return output.getvalue()


def onnx_files(folder: Path) -> dict[str, bytes]:
    """The model in a folder as ONNX, with its image processor."""
    return {ONNX_NAME: exported(folder), PROCESSOR_NAME: (folder / PROCESSOR_NAME).read_bytes()}


def changed(data: bytes, **values: object) -> bytes:
    """A JSON object with other values."""
    return json.dumps({**json.loads(data), **values}).encode()
