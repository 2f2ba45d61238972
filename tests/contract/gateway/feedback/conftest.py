"""What tests of studies share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.drawn_job import serve_drawn_job
from tests.support.gateway_under_test import Gateway


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Gateway]:
    """A finished job `drawn` of nine source images, with its report, on SQLite."""
    with serve_drawn_job(tmp_path, per_class=3) as served:
        yield served
