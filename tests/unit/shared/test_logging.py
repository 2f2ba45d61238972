"""Log lines: one JSON object each, with its context, and without secrets."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from shared.service.logging import JsonFormatter, bound, mask, request_id, request_id_from

KEY = "cf_" + "aB3_-" * 9


def line(message: str, *arguments: object, **extra: object) -> dict[str, object]:
    record = logging.makeLogRecord({"name": "contrafact.x", "levelname": "INFO", "msg": message, "args": arguments})
    vars(record).update(extra)
    written: dict[str, object] = json.loads(JsonFormatter().format(record))
    return written


def test_bound_fields_are_in_every_line_until_the_block_ends() -> None:
    with bound(request_id="r1", job="j"):
        with bound(request_id="r2"):
            assert (line("x")["request_id"], line("x")["job"], request_id()) == ("r2", "j", "r2")
        assert line("x", seconds=0.5)["request_id"] == "r1"
    assert "request_id" not in line("x")
    assert request_id() == ""


def test_a_line_stays_one_line_whatever_is_logged() -> None:
    assert line("%s", 'a\n{"level": "error"}')["message"] == 'a\n{"level": "error"}'


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"GET /jobs/{KEY}", KEY),
        (f"Authorization: Bearer {KEY}", KEY),
        ("Authorization: bearer hf_abcdefghijkl", "hf_abcdefghijkl"),
        ("postgresql+psycopg://ann:s3cr%40t@db/contrafact", "s3cr%40t"),
        ("redis://:s3cret@cache:6379/0", "s3cret"),
        ("https://user:p:w@host/path", "p:w"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, secret: str) -> None:
    assert secret not in mask(text)
    assert secret not in json.dumps(line("%s", text, address=text))
    assert "***" in mask(text)


def test_a_traceback_is_one_masked_field() -> None:
    try:
        raise OSError(f"cannot reach redis://:s3cret@cache:6379/0 with {KEY}")
    except OSError:
        written = line("lost", exc_info=sys.exc_info())
    traceback = str(written["traceback"])
    assert traceback.startswith("Traceback (most recent call last)")
    assert "redis://***@cache:6379/0" in traceback
    assert "s3cret" not in traceback
    assert KEY not in traceback
    assert not {"exc_info", "exc_text"} & set(written)


def test_time_is_in_utc_to_the_millisecond() -> None:
    assert line("x", created=1_767_225_600.25, msecs=250.0)["time"] == "2026-01-01T00:00:00.250+00:00"


def test_a_field_of_a_line_replaces_a_bound_one() -> None:
    with bound(job="j", image="a"):
        written = line("x", job="k")
    assert (written["job"], written["image"], written["level"], written["logger"]) == ("k", "a", "info", "contrafact.x")


def test_a_line_has_no_terminal_codes() -> None:
    """uvicorn's messages carry a coloured copy of themselves."""
    written = line("Running on %s", "port 1", color_message="Running on \x1b[1m%s\x1b[0m")
    assert written["message"] == "Running on port 1"
    assert "color_message" not in written


def test_ordinary_lines_stay_as_they_are() -> None:
    text = "http://127.0.0.1:8000/jobs/1?a=b@c took 3:20, job cf_1"
    assert mask(text) == text


@pytest.mark.parametrize("header", [None, "", "a b", "a\nb", "x" * 65, "ä", '"'])
def test_a_strange_request_id_is_replaced(header: str | None) -> None:
    assert request_id_from(header) != header
    assert len(request_id_from(header)) == 16


def test_a_plain_request_id_is_kept() -> None:
    assert request_id_from("0af7-65.x_Y") == "0af7-65.x_Y"
