"""What a measuring command writes of each image that it made and judged: one line of JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

RECORDS = "counterfactuals.jsonl"


class Record(BaseModel):
    """One image that was made and judged: a line of `counterfactuals.jsonl`. Paths are relative to its folder.

    `kept`: both oracles read the source's class, and find it where the source has it. `shown`: both read the edit's
    value (which a null arm was not asked for). `others`: the other fields on which they do not both read what it should
    be. `predicted`: by model under test, the class that it names on the source and on the image. `weights`: the
    generator's revision.
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
