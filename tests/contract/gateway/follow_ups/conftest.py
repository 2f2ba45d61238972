"""A finished job with a weakness, to confirm and to dose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.drawn_job import confirmable_job
from tests.support.gateway_under_test import Gateway, serve_gateway


@pytest.fixture
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A finished job `drawn` whose model `m1` fails on buses at night, with its report."""
    with serve_gateway(tmp_path_factory.mktemp("gateway")) as served:
        confirmable_job().restore(served.context.sessions, served.context.store)
        yield served


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """As `gateway`, for tests of a module that only read, or are refused."""
    with serve_gateway(tmp_path_factory.mktemp("unchanged")) as served:
        confirmable_job().restore(served.context.sessions, served.context.store)
        yield served
