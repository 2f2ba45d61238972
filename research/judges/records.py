"""The record of a measured counterfactual: one line of JSON per image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from PIL import Image
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from research.pictures.rendered_once import Pixels

RECORDS = "counterfactuals.jsonl"


class Record(BaseModel):
    """One rendered and judged image: a line of `counterfactuals.jsonl`. Paths are relative to its folder.

    `image` is empty if a text check refused the edit. `field`: the field that the edit changes ("other" if it is no
    field of the scene; `shown` is then meaningless).

    `kept`: both oracles read the source's class, and detect the object in its place. `shown`: both read the edit's
    value (meaningless for a null arm). `others`: other fields that at least one oracle does not read as expected.
    `readable_fields`: fields that both read correctly on the source (None: not measured); older files have `known`.
    `predicted`: by model under test, its prediction on the source and on the image. `weights`: the generator's
    revision. `evaluations`: network evaluations. `attention`: overlap of the source's attention to the class with the
    object (IoU).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    arm: Literal["edit", "null"]
    source: str
    image: str
    label: str
    field: str
    factor: str
    from_value: str
    to_value: str
    caption: str
    new_caption: str
    withheld: bool
    accepted: bool
    check: str
    scores: dict[str, float]
    kept: bool
    shown: bool
    others: tuple[str, ...]
    predicted: dict[str, tuple[str, str]]
    weights: str
    method: str = "dillema"
    readable_fields: Annotated[
        tuple[str, ...] | None, Field(validation_alias=AliasChoices("readable_fields", "known"))
    ] = None
    evaluations: int | None = None
    attention: float | None = None

    @property
    def changed_besides(self) -> tuple[str, ...]:
        """The other fields that both oracles read correctly on the source, but not on the image."""
        return (
            self.others
            if self.readable_fields is None
            else tuple(name for name in self.others if name in self.readable_fields)
        )

    @property
    def flipped(self) -> bool:
        """Whether a model under test is right on the source and wrong on the image."""
        return any(before == self.label != after for before, after in self.predicted.values())


def records(folder: Path) -> list[Record]:
    """The lines of a folder that a measuring command wrote."""
    path = folder / RECORDS
    if not path.exists():
        return []
    return [Record.model_validate_json(line) for line in path.read_text().splitlines()]


def read_picture(path: Path) -> Pixels:
    """The picture of a record, as RGB: height × width × 3, 0 … 255."""
    return np.asarray(Image.open(path).convert("RGB"), np.uint8)
