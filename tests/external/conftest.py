"""The chart's examples, installed once by Helm for all tests of the chart."""

from __future__ import annotations

import pytest

from tests.support.chart_objects import EXAMPLES, Object, example_values, installed


@pytest.fixture(scope="session")
def releases() -> dict[str, Object]:
    """Helm's releases of all examples."""
    return dict(zip(EXAMPLES, installed([example_values(name) for name in EXAMPLES]), strict=True))


@pytest.fixture(params=EXAMPLES)
def release(request: pytest.FixtureRequest, releases: dict[str, Object]) -> Object:
    """One of them after the other."""
    return releases[request.param]
