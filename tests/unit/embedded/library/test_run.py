"""Tests in several threads of one process."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

import contrafact
from embedded.library.run import RUNNING
from tests.support.threads import background
from tests.support.work_site import wait_for


def test_a_test_that_waits_for_another_thread_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """It was silent for as long as the other test ran."""
    written, errors = [""], list[str]()

    def waits() -> None:
        try:
            contrafact.test(list, [], task="name it")
        except ValueError as error:
            errors.append(str(error))

    def has_said() -> bool:
        written.append(capsys.readouterr().err)
        return "Another thread" in "".join(written)

    with ExitStack() as stack, RUNNING:
        stack.enter_context(background(waits))
        wait_for(has_said)
        assert not errors
    assert "empty" in errors[0]
