"""Gateways that tests of several folders use; modules that need other settings override them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.auth.keys import create_key
from tests.support.gateway_under_test import Gateway, key_of, serve_gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway without jobs."""
    with serve_gateway(tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that asks for API keys."""
    with serve_gateway(tmp_path, authentication=True) as gateway:
        yield gateway


@pytest.fixture
def key(locked: Gateway) -> str:
    """A key of the user ann."""
    with locked.context.sessions.begin() as session:
        return create_key(session, "ann")


@pytest.fixture
def ann(gateway: Gateway) -> dict[str, str]:
    """The headers of a key of the user ann; for modules whose gateway asks for keys."""
    return key_of(gateway, "ann")
