"""The committed answers, scored again with the key of their own models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research.system.packed import read_text
from research.yardstick.__main__ import COMMITTED_KEY
from research.yardstick.formats import Answer, AnswerKey, Score
from research.yardstick.score import score

RESULTS = COMMITTED_KEY.parent / "results"
SCORES = sorted(RESULTS.glob("*-score.json"))


def rounded(text: str) -> object:
    """JSON with floats that do not depend on the processor."""
    return json.loads(text, parse_float=lambda number: round(float(number), 6))


@pytest.mark.parametrize("path", SCORES, ids=lambda path: path.relative_to(RESULTS).as_posix())
def test_a_committed_answer_has_its_committed_score(path: Path) -> None:
    truth = AnswerKey.model_validate_json(read_text(COMMITTED_KEY))
    answer = Answer.model_validate_json(read_text(path.with_name(path.name.replace("-score.json", ".json.gz"))))
    committed = Score.model_validate_json(path.read_text(encoding="utf-8"))
    assert rounded(score(truth, answer).model_dump_json()) == rounded(committed.model_dump_json())


def test_every_answer_has_a_score() -> None:
    answers = RESULTS.glob("contrafact-*.json.gz")
    assert {path.with_name(path.name.replace(".json.gz", "-score.json")) for path in answers} == set(SCORES)
