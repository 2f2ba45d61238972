"""Names of changes in reports and pages: replaced, added, and rejected edits."""

from __future__ import annotations

import pytest

from gateway.report.words import change_name
from shared.schemas.results import ChangeView


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("day", "night", "time of day: day → night"),
        ("", "snow", "weather: → snow"),
        ("day", "", "time of day: day"),
        ("fog", "snow", "weather: fog → snow"),
    ],
)
def test_changes_are_named_by_what_they_replace_add_or_were_to_take_away(old: str, new: str, name: str) -> None:
    change = ChangeView(factor="weather", from_phrase=old, to_phrase=new, from_value=old, to_value=new)
    assert change_name(change) == name
