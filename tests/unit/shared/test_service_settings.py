"""Settings with which a model service could never do its work are refused when it starts."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shared.schemas.base import MAX_IMAGES_PER_MESSAGE
from shared.schemas.language import FillRequest, ScoreRequest
from shared.service.settings import LARGEST_SUBMISSION, ServiceSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("capacity", "15"),
        ("capacity", str(LARGEST_SUBMISSION - 1)),
        ("upload_memory_mib", "-1"),
        ("upload_memory_mib", "1"),
        ("upload_memory_mib", "63"),
    ],
)
def test_a_setting_with_which_nothing_succeeds_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"CONTRAFACT_{name.upper()}", value)
    with pytest.raises(ValidationError) as refusal:
        ServiceSettings()
    assert [error["loc"] for error in refusal.value.errors()] == [(name,)]


def test_the_smallest_settings_are_taken() -> None:
    ServiceSettings(capacity=LARGEST_SUBMISSION, upload_memory_mib=64)
    assert ServiceSettings(upload_memory_mib=0).upload_memory_mib == 0


def test_the_smallest_queue_holds_the_largest_requests() -> None:
    texts = ScoreRequest.model_json_schema()["properties"]["texts"]["maxItems"]
    gaps = FillRequest.model_json_schema()["properties"]["gaps"]["maxItems"]
    images_with_texts = MAX_IMAGES_PER_MESSAGE + LARGEST_SUBMISSION // 4  # of an embedding
    assert max(texts, gaps, images_with_texts, MAX_IMAGES_PER_MESSAGE + 1) <= LARGEST_SUBMISSION
