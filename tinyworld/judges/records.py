"""The record of a measured counterfactual: one line of JSON per image."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

RECORDS = "counterfactuals.jsonl"


class Record(BaseModel):
    """One image that was made and judged: a line of `counterfactuals.jsonl`. Paths are relative to its folder.

    `image` is empty where a check of the words refused the edit. `field`: what the edit changes ("other" where no field
    of the scene is named; `shown` then says nothing).

    `kept`: both oracles read the source's class, and find it where the source has it. `shown`: both read the edit's
    value (which a null arm was not asked for). `others`: the other fields on which they do not both read what it should
    be; `known`: those which they both read rightly on the source itself (None: they were not asked). `predicted`: by
    model under test, the class that it names on the source and on the image. `weights`: the generator's revision.
    `evaluations`: network evaluations; `attention`: how far the source's attention to the class overlaps the object.
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
    known: tuple[str, ...] | None = None
    evaluations: int | None = None
    attention: float | None = None

    @property
    def changed_besides(self) -> tuple[str, ...]:
        """The other fields that both oracles read rightly on the source and no longer on the image."""
        return self.others if self.known is None else tuple(name for name in self.others if name in self.known)

    @property
    def flipped(self) -> bool:
        """Whether a model under test that names the source rightly no longer does so."""
        return any(before == self.label != after for before, after in self.predicted.values())


def records(folder: Path) -> list[Record]:
    """The lines of a folder that a measuring command wrote."""
    path = folder / RECORDS
    if not path.exists():
        return []
    return [Record.model_validate_json(line) for line in path.read_text().splitlines()]
