"""What the phrases of tinyworld's captions mean."""

from __future__ import annotations

from collections.abc import Mapping

from tinyworld.domain.wording import Slot, slot_of
from tinyworld.objects.phrases import SLOTS


def value_of(phrase: str, *, field: str | None = None, slots: Mapping[str, Slot] = SLOTS) -> str:
    """Canonical value of a phrase ("after dark" → "night"); KeyError when it is no phrase of tinyworld."""
    wordings = slots[slot_of(phrase, slots, field=field)].wordings
    return next(value for value, wording in wordings.items() if phrase in wording.all)
