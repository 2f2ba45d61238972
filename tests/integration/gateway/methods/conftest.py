"""Clients of services: small ones, which log their requests, and the shipped language model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.captioned_services import Services, captioned
from tests.support.logged_requests import LoggedServices
from tests.support.small_services import SmallServices, open_clients


@pytest.fixture
def services() -> Iterator[LoggedServices]:
    """Clients of the small services."""
    with open_clients(SmallServices(), LoggedServices) as clients:
        yield clients


@pytest.fixture(scope="module")
def shipped() -> Iterator[Services]:
    """Clients of the shipped language model, with one caption; the other services are small."""
    with captioned() as services:
        yield services
