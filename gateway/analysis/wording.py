"""How figures are written in words, everywhere alike."""

from __future__ import annotations


def points(share: float) -> str:
    """A difference in percentage points with its sign: −42, +3, 0."""
    rounded = round(100 * share)
    return f"{'−' if rounded < 0 else '+' if rounded > 0 else ''}{abs(rounded)}"
