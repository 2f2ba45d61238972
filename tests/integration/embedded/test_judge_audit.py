"""The audit of a judge behind a real server names each scripted judge for what it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from embedded.judge_audit import FAULTS, KnownEdit, audit_judge, audit_lines, known_edits
from shared.profiles.judge_audit import LABEL, PAIRWISE, REST, VALUE, counting_questions
from shared.profiles.weights import Server
from tests.support.language_servers import listening
from tests.support.scripted_judges import JUDGES, judge_server

EDITS = 24
NATURES = {
    "honest": ("sound",) * 4,
    "says-yes": ("says yes to all", "says yes to all", "says yes to all", "unreadable"),
    "blind": ("does not look",) * 4,
    "yes-biased": ("leans to yes", "leans to yes", "leans to yes", "sound"),
    "noisy": ("errs often",) * 3,  # asked in both orders, it errs less
    "refuses-a-tenth": ("sound",) * 3,  # of both orders it refuses one nearly twice as often
    "verbose": ("unreadable",) * 4,
}


@pytest.fixture(scope="module")
def edits() -> list[KnownEdit]:
    return list(known_edits(EDITS, seed=1))


@pytest.fixture(scope="module")
def served(edits: list[KnownEdit]) -> Iterator[tuple[str, list[str]]]:
    calls: list[str] = []
    with listening(judge_server(edits, calls)) as url:
        yield url, calls


def judge(url: str, name: str) -> Server:
    return Server(url=f"{url}/v1", model=name, revision="1", licence="none", gigabytes=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGES)
def test_each_judge_is_named_for_what_it_is(name: str, edits: list[KnownEdit], served: tuple[str, list[str]]) -> None:
    url, calls = served
    audit = audit_judge(judge(url, name), edits)
    assert calls.count(name) == 21 * EDITS
    natures = tuple(audit.questions[question].nature for question in (LABEL, VALUE, REST, PAIRWISE))
    assert natures[: len(NATURES[name])] == NATURES[name], "\n".join(audit_lines(audit))
    counting = counting_questions(audit, judge(url, name))
    assert set(counting.names) == {question for question, of in audit.questions.items() if of.nature == "sound"}
    assert counting_questions(audit, judge(url, "another")).names == ()
    assert (audit.prompt_tokens, audit.completion_tokens) == ((6 + 3 + 12 + 12) * 100 * EDITS, 21 * EDITS)
    label = audit.questions[LABEL]
    if name == "honest":
        assert (label.auroc, audit.missed) == ((1.0, 1.0, 1.0), dict.fromkeys(FAULTS, 0.0))
        assert counting.shown[0] == VALUE, "half as dear as a pair, and misses no more"
    if name == "refuses-a-tenth":
        assert 0 < label.refused < 0.2 * 6 * EDITS
        assert label.sensitivity is not None
        assert label.sensitivity[0] == 1.0, "no refusal is a verdict"
    if name == "verbose":
        assert (label.unreadable, label.auroc) == (6 * EDITS, None)
