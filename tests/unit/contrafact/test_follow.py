"""Following a job says what is known while the gateway is away, so that whoever shows progress is never silent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contrafact import client
from contrafact.client import Unreachable
from gateway.api.examples import EXAMPLES
from shared.schemas.jobs import JobDetail

RUNNING = JobDetail.model_validate(EXAMPLES[JobDetail] | {"state": "running"})
DONE = JobDetail.model_validate(EXAMPLES[JobDetail] | {"state": "done"})


class AwayForAWhile(client.Client):
    """A client whose gateway answers, is away twice, and answers again."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self._answers: Iterator[JobDetail | None] = iter([RUNNING, None, None, DONE])

    def job(self, job: str) -> JobDetail:
        answer = next(self._answers)
        if answer is None:
            raise Unreachable("the gateway does not answer")
        return answer


def test_what_is_known_comes_again_while_the_gateway_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.0)
    away = AwayForAWhile()
    states = [detail.state for detail in away.follow(RUNNING.id)]
    away.close()
    assert states == ["running", "running", "running", "done"]
