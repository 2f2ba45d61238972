"""docs/reference/settings.md lists every setting with its default, and no other."""

from __future__ import annotations

import re

import pytest
from pydantic import SecretStr
from pydantic_settings import BaseSettings

from gateway.settings import Settings
from shared.service import ServiceSettings
from tests.support.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(CONTRAFACT_[A-Z0-9_]+)` \| (?:`(.*?)`|) ?\|", PAGE, re.MULTILINE))


def variables(settings: type[BaseSettings]) -> dict[str, object]:
    return {f"CONTRAFACT_{name.upper()}": field.default for name, field in settings.model_fields.items()}


@pytest.mark.parametrize("settings", [Settings, ServiceSettings])
def test_every_setting_is_described_with_its_default(settings: type[BaseSettings]) -> None:
    for name, default in variables(settings).items():
        assert name in ROWS, f"docs/reference/settings.md lacks {name}"
        text = default.get_secret_value() if isinstance(default, SecretStr) else str(default)
        assert ROWS[name] == text, f"docs/reference/settings.md gives another default of {name}"


def test_no_setting_is_described_that_does_not_exist() -> None:
    assert set(ROWS) == set(variables(Settings)) | set(variables(ServiceSettings))
