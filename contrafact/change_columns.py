"""The columns of a counterfactual's changes in tables; several changes are joined by commas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shared.schemas.result_rows import ChangeView


class ChangeColumns(NamedTuple):
    """Factors, old and new values of the changes."""

    factor: str
    from_value: str
    to_value: str


def change_columns(changes: Sequence[ChangeView]) -> ChangeColumns:
    """The columns of one counterfactual."""
    return ChangeColumns(
        factor=", ".join(change.factor for change in changes),
        from_value=", ".join(change.from_value for change in changes),
        to_value=", ".join(change.to_value for change in changes),
    )
