"""The yardstick over the public API: models saved by it, jobs over all of them, one answer."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch

from research.system.folders import WEIGHTS
from research.train.classifier import new_classifier
from research.yardstick.classifiers import YARDSTICK, model_folder, save
from research.yardstick.contrafact import Size, answers
from research.yardstick.formats import Answer
from research.yardstick.plants import TESTED_CLASSES, Planned
from shared.service.endpoints import Services


@pytest.mark.slow
def test_two_jobs_make_one_answer_and_the_second_renders_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = Planned("first", 1), Planned("second", 2)
    for model in (first, second):
        torch.manual_seed(model.seed)
        save(new_classifier(), model, {})
    size = Size(sources=1, factors=("weather",), counterfactuals=2)
    (answer,) = answers(size, "the test", ["dillema"], [[first], [second]])
    assert Answer.model_validate_json(answer.model_dump_json()) == answer
    assert answer.models == ["first", "second"]
    assert answer.method == "contrafact dillema"
    assert answer.spent.source_images == len(TESTED_CLASSES)
    assert answer.spent.network_evaluations
    cells = {name: {cell.cell for cell in answer.cells if cell.model == name} for name in answer.models}
    assert cells["first"] == cells["second"] != set()  # the same counterfactuals, seen by both
    assert not any(cell.finding for cell in answer.cells)  # of four images nothing can be found


@pytest.mark.slow
def test_designs_share_renderings_and_name_their_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = Planned("first", 1)
    # Nothing is rendered for a model that is not right on the originals, as an untrained one is not.
    shutil.copytree(WEIGHTS / "models_under_test" / "street-classifier", model_folder(model.name))
    size = Size(sources=4, factors=("weather",), counterfactuals=3, values=("night",))
    designs = answers(size, "the test", ["dillema"], [[model]], ["balanced", "adaptive"])
    balanced = next(designs)
    rendered = recorded_renderings()
    (adaptive,) = designs
    assert len(recorded_renderings() - rendered) < len(rendered)  # what is rendered once is not rendered again
    assert [answer.method for answer in (balanced, adaptive)] == [
        "contrafact dillema balanced",
        "contrafact dillema adaptive",
    ]
    for answer in (balanced, adaptive):
        assert {cell.cell.value for cell in answer.cells if cell.cell.direction == "to"} == {"night"}
        assert answer.spent.source_images == 4 * len(TESTED_CLASSES)
        assert not any(cell.finding for cell in answer.cells)  # of four images a class nothing can be found
    assert 0 < (adaptive.spent.counterfactuals or 0) <= (balanced.spent.counterfactuals or 0)


def recorded_renderings() -> set[str]:
    """The keys of all renderings that the yardstick's system has made so far."""
    with closing(sqlite3.connect(f"file:{YARDSTICK / 'contrafact' / 'contrafact.db'}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT key FROM recorded_calls WHERE endpoint = ?", (Services.render.path,))
        return {key for (key,) in rows}
