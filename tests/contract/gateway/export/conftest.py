"""A gateway with a finished job that tests export."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.drawn_job import add_drawn_job
from tests.support.gateway_under_test import Gateway, serve_gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with serve_gateway(tmp_path_factory.mktemp("gateway")) as served:
        add_drawn_job(served.context.sessions, served.context.store, per_class=4)
        yield served
