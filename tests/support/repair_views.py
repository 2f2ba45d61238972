"""Repairs as the API shows them."""

from __future__ import annotations

from datetime import UTC, datetime

from shared.schemas.repairs import RepairProgress, RepairRequest, RepairView


def finished_repair() -> RepairView:
    """A repair that took no time, without figures."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return RepairView(
        id="repair",
        job="job",
        model="a model",
        state="done",
        failure="",
        request=RepairRequest(model="a model"),
        progress=RepairProgress(done=0, total=0),
        result=None,
        created_at=now,
        finished_at=now,
    )
