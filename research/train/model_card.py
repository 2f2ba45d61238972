"""Write the model card and the training record beside every set of weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import nn

TRAINING = "training.json"  # beside the weights: command, data and results
LARGE = 4096  # values in a matrix, from which on it is stored as 8-bit floats
_CARD = """---
license: apache-2.0
library_name: {library}
tags: [contrafact, tinyworld]
---
# {title}

{text}

Trained by `{command}` on pictures and captions that this project draws and writes itself; no other data.
Configuration, seed, data split, steps, seconds and results are in `training.json`.

| result | |
|---|---|
{rows}
"""


def title_of(name: str, domain: str) -> str:
    """The title of a card: the name, and whose it is where it is not the objects'."""
    return name if domain == "objects" else f"{name} of the {domain}"


def save_model(model: nn.Module, folder: Path, large: int = LARGE) -> int:
    """Write a transformers model as safetensors; returns its number of parameters.

    Matrices of `large` values and more are stored as 8-bit floats, the rest as fp16: judge what was written, not the
    model at hand.
    """
    half = model.to(dtype=torch.float16, device="cpu")
    half.save_pretrained(folder, max_shard_size="28MB")  # type: ignore[operator]
    halve(folder, large)
    count = sum(parameter.numel() for parameter in half.parameters())
    model.float()
    return count


def halve(folder: Path, large: int = LARGE) -> None:
    """Rewrite a folder's safetensors, matrices of `large` values and more as 8-bit floats (e4m3, up to ±448).

    Half of fp16's bytes; the loader casts them to the precision that it computes in.
    """
    for path in folder.glob("*.safetensors"):
        tensors = {
            name: tensor.to(torch.float8_e4m3fn) if tensor.ndim > 1 and tensor.numel() >= large else tensor
            for name, tensor in load_file(path).items()
        }
        save_file(tensors, path, metadata={"format": "pt"})


@dataclass(frozen=True, slots=True)
class Card:
    """A model card without its results. `record`: what `training.json` says beside command, results and parameters."""

    title: str
    text: str
    command: str
    record: Mapping[str, object]


class Processor(Protocol):
    """A tokenizer or image processor of transformers."""

    def save_pretrained(self, save_directory: Path, /) -> object:
        """Write it into a folder."""
        ...


def publish(
    model: nn.Module,
    processor: Processor,
    folder: Path,
    card: Card,
    judge: Callable[[], Mapping[str, object]],
    large: int = LARGE,
) -> None:
    """Save a model (as `save_model`) and its processor in a folder, judge what was saved there, and write the card."""
    parameters = save_model(model, folder, large)
    processor.save_pretrained(folder)
    results = judge()
    record = {"parameters": parameters, **card.record}
    write_card(folder, title=card.title, text=card.text, command=card.command, results=results, record=record)
    print(results, flush=True)


def write_card(
    folder: Path,
    *,
    title: str,
    text: str,
    command: str,
    results: Mapping[str, object],
    record: Mapping[str, object],
    library: str = "transformers",
) -> None:
    """Write README.md and training.json into a folder of weights."""
    rows = "\n".join(f"| {name} | {_cell(value)} |" for name, value in results.items())
    (folder / "README.md").write_text(_CARD.format(title=title, text=text, command=command, rows=rows, library=library))
    content = {"command": command, **record, "results": results}
    (folder / TRAINING).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    return str(value)
