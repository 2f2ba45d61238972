"""Clients of small services, which log their requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared.schemas.service import SERVICES
from tests.support.logged_requests import LoggedServices
from tests.support.small_services import SmallServices, serve


@pytest.fixture
def services() -> Iterator[LoggedServices]:
    """Clients of the small services."""
    with serve(SmallServices()) as url:
        clients = LoggedServices(dict.fromkeys(SERVICES, url))
        yield clients
        clients.close()
