"""The committed answers, scored again with the key of their own models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research.yardstick.__main__ import COMMITTED_KEY
from research.yardstick.formats import Answer, AnswerKey, Score
from research.yardstick.score import score

RESULTS = COMMITTED_KEY.parent / "results"
SCORES = sorted(RESULTS.rglob("*-score.json"))


def rounded(text: str) -> object:
    """JSON with floats that do not depend on the processor."""
    return json.loads(text, parse_float=lambda number: round(float(number), 6))


@pytest.mark.parametrize("path", SCORES, ids=lambda path: path.relative_to(RESULTS).as_posix())
def test_a_committed_answer_has_its_committed_score(path: Path) -> None:
    key = path.parent / "key.json"
    truth = AnswerKey.model_validate_json((key if key.exists() else COMMITTED_KEY).read_text(encoding="utf-8"))
    answer = Answer.model_validate_json(path.with_name(path.name.replace("-score", "")).read_text(encoding="utf-8"))
    committed = Score.model_validate_json(path.read_text(encoding="utf-8"))
    assert rounded(score(truth, answer).model_dump_json()) == rounded(committed.model_dump_json())


def test_every_answer_has_a_score() -> None:
    answers = {path for path in RESULTS.rglob("contrafact-*.json") if path not in SCORES}
    assert {path.with_name(f"{path.stem}-score.json") for path in answers} == set(SCORES)
