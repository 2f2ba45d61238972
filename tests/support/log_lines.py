"""Log lines of a process under test."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from shared.schemas.service import WeightsInfo
from shared.service.logging import JsonFormatter
from shared.service.model_service import MakeBatcher


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that is logged, by anybody, as our services write it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


class Nothing:
    """A loaded model of no use."""

    device = "cpu"
    weights = (WeightsInfo(role="none", id="none", revision="1", dtype="float32", licence="none"),)

    def __init__(self, make_batcher: MakeBatcher) -> None:
        """Needs nothing."""
