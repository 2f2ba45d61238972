"""Error rates of the checks in a profile: the worst kind of fault counts, and writing round-trips."""

from __future__ import annotations

import tomllib

import pytest

from shared.profiles import SHIPPED, Profile, load_profile
from tinyworld.calibrate.check_errors import ENOUGH, check_errors, with_errors

JUDGED = [
    *(("weather", "good", place >= 4) for place in range(40)),
    *(("weather", "class", place < 1) for place in range(40)),
    *(("weather", "unedited", place < 6) for place in range(40)),
    *(("object", kind, kind == "good") for kind in ("good", "class") for _ in range(ENOUGH - 1)),
]


def test_the_kind_that_passes_most_represents_the_invalid_images() -> None:
    errors = check_errors(JUDGED)
    assert set(errors) == {"default", "weather"}  # too few of the other factor
    weather = errors["weather"]
    assert (weather.valid, weather.valid_accepted, weather.invalid, weather.invalid_accepted) == (40, 36, 40, 6)
    assert errors["default"].valid == 40 + ENOUGH - 1
    with pytest.raises(ValueError, match="take more scenes"):
        check_errors([("weather", "good", True)])


def test_errors_are_written_once_and_read_as_they_were() -> None:
    errors = check_errors(JUDGED)
    text = (SHIPPED / "tiny.toml").read_text(encoding="utf-8")
    once = with_errors(text, errors)
    assert with_errors(once, errors) == once
    data = tomllib.loads(once)
    assert data["calibration"]["tinyworld"]["weather"] == errors["weather"].model_dump()
    assert data["thresholds"] == tomllib.loads(text).get("thresholds")


def test_the_shipped_profiles_errors_fit_their_schema() -> None:
    profile: Profile = load_profile("tiny")
    for by_factor in profile.calibration.values():
        assert "default" in by_factor
