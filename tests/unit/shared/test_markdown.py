"""Text that a user wrote, as Markdown that forges read."""

from __future__ import annotations

import re

import pytest

from shared.words.markdown import plain

DIGEST = "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567"


@pytest.mark.parametrize("text", ["see GH-12", "!12", "a/b!12", "#12", "%3", "$4", DIGEST, f"at {DIGEST[:7]}."])
def test_nothing_in_a_text_is_a_link_of_a_forge(text: str) -> None:
    """A forge looks at each piece of text between tags."""
    pieces = re.split(r"</?span>", plain(text).replace("\\", ""))
    assert "".join(pieces) == text
    assert not any(re.search(r"GH-\d|[!#%$]\d|[0-9a-f]{7}", piece) for piece in pieces)


def test_words_and_figures_stay_readable() -> None:
    assert plain("a facade, 95 % of 1,000 images; wow! 12 of them") == "a facade, 95 % of 1,000 images; wow! 12 of them"
