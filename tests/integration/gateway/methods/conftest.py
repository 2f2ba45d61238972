"""Clients of small services, which log their requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.logged_requests import LoggedServices
from tests.support.small_services import SmallServices, open_clients


@pytest.fixture
def services() -> Iterator[LoggedServices]:
    """Clients of the small services."""
    with open_clients(SmallServices(), LoggedServices) as clients:
        yield clients
