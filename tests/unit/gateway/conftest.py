"""An empty object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.media.storage import DirectoryStore


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """An empty store in a directory."""
    return DirectoryStore(tmp_path)
