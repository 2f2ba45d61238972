"""Commands with `--domain`."""

from __future__ import annotations

import pytest

from tinyworld.domain.names import run_for_domain


@pytest.mark.parametrize(
    ("arguments", "ran"),
    [
        ([], "objects"),
        (["--domain", "roads", "reader-a"], "roads"),
        (["--seconds", "2", "--domain=roads"], "roads"),
    ],
)
def test_a_command_runs_for_the_domain_that_it_is_given(
    arguments: list[str], ran: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["command", *arguments])
    calls: list[str] = []
    run_for_domain(objects=lambda: calls.append("objects"), roads=lambda: calls.append("roads"))
    assert calls == [ran]


def test_an_unknown_domain_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["command", "--domain", "seas"])
    with pytest.raises(SystemExit):
        run_for_domain(objects=lambda: None, roads=lambda: None)
