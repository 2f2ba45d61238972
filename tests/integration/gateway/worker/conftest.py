"""A worker on a bad day."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from fastapi import Request, Response

from gateway.database.sessions import Sessions
from tests.support.bad_days import Day
from tests.support.small_services import SmallServices, serve


@pytest.fixture
def day(sessions: Sessions, tmp_path: Path) -> Iterator[Day]:
    small = SmallServices()

    @small.app.middleware("http")
    async def spoil(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        wrong = today.answer(await request.body()) if request.method == "POST" else None
        return wrong or await answer(request)

    with serve(small) as url:
        today = Day(sessions, tmp_path, small, url)
        yield today
        today.site.close()
