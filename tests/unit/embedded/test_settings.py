"""The environment's settings in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedded.run import DEADLINE_SECONDS, gateway_settings


def test_the_environment_sets_deadline_and_images_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`contrafact serve` ignored both."""
    settings = gateway_settings(tmp_path, "tiny")
    assert (settings.service_deadline_seconds, settings.images_in_flight) == (DEADLINE_SECONDS, 8)
    monkeypatch.setenv("CONTRAFACT_SERVICE_DEADLINE_SECONDS", "77")
    monkeypatch.setenv("CONTRAFACT_IMAGES_IN_FLIGHT", "3")
    settings = gateway_settings(tmp_path, "tiny")
    assert (settings.service_deadline_seconds, settings.images_in_flight) == (77, 3)
    assert gateway_settings(tmp_path, "tiny", 5).images_in_flight == 5
