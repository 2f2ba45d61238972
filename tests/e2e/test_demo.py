"""The demo: it finds the planted weakness and nothing else, and a second run repeats no work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import datasets
import pytest
from sqlalchemy import func, select

from embedded.demo import run_demo, run_roads_demo
from gateway.database.sessions import open_engine
from gateway.database.tables import RecordedCall
from shared.schemas.effects import Cell
from shared.schemas.results import Arm
from tests.support.paths import REPOSITORY


def recorded_calls(directory: Path) -> int:
    engine = open_engine(f"sqlite:///{directory / 'data' / 'contrafact.db'}")
    with engine.connect() as connection:
        count = connection.scalar(select(func.count()).select_from(RecordedCall))
    engine.dispose()
    return count or 0


def readme_lines() -> list[str]:
    """What README quotes of the demo, without the lines with figures and folders, which differ."""
    quoted = (REPOSITORY / "README.md").read_text(encoding="utf-8").split("It ends with:\n\n```\n")[1].split("```")[0]
    lines = [" ".join(line.split()) for line in quoted.splitlines()]
    return [line for line in lines if line and not re.search(r"\d|contrafact-demo", line)]


@pytest.mark.slow
def test_the_demo_finds_what_was_planted_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTRAFACT_URL", "")  # the demo sets it; put back at the end
    first = run_demo(tmp_path, per_class=30)  # as `make demo`
    findings = {result.model: result.findings for result in first.results}
    planted = Cell(label="bus", factor="weather", value="night", direction="to")
    assert [effect.cell for effect in findings["street-classifier-night-bus"]][:1] == [planted]
    assert findings["street-classifier"] == []
    printed = " ".join(capsys.readouterr().out.split())
    assert "• `bus` at night" in printed
    missing = [line for line in readme_lines() if line not in printed]
    assert missing == [], "README quotes it"
    page = (tmp_path / "report.html").read_text()
    assert "street-classifier-night-bus" in page
    assert 'src="http' not in page
    assert (tmp_path / "finding.png").stat().st_size > 10_000

    calls = recorded_calls(tmp_path)
    second = run_demo(tmp_path, per_class=30, publish=tmp_path / "suite")
    assert second.results == first.results
    assert recorded_calls(tmp_path) == calls
    published = datasets.load_dataset(str(tmp_path / "suite"), cache_dir=str(tmp_path / "cache"))["test"]
    assert set(published["arm"]) == set(get_args(Arm))
    assert published.features["label"].names == ["bus", "car", "truck"]
    assert min(published[0]["image"].size) > 0


@pytest.mark.slow
def test_the_demo_over_driving_scenes_says_what_counterfactuals_cost_each_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTRAFACT_URL", "")
    measured = run_roads_demo(tmp_path, 12)
    assert {result.model for result in measured.results} == {"road-segmenter", "road-segmenter-night-pedestrian"}
    for result in measured.results:
        assert result.metric == "iou"
        assert result.segmentation is not None
        originals = dict(zip(result.segmentation.classes, result.segmentation.originals.iou, strict=True))
        assert (originals["road"] or 0) > 0.8
        assert result.segmentation.counterfactuals.mean_iou is not None
    assert recorded_calls(tmp_path) > 0
    assert "Drew 12 driving scenes" in capsys.readouterr().out
    assert "confusion" in (tmp_path / "report.html").read_text().lower()


@pytest.mark.slow
def test_the_demo_of_detectors_shows_the_pedestrians_that_one_of_them_misses_at_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTRAFACT_URL", "")
    measured = run_roads_demo(tmp_path, 23, "detection")
    figures = {result.model: result.detection for result in measured.results}
    sound, planted = figures["road-detector"], figures["road-detector-night-pedestrian"]
    assert sound is not None
    assert planted is not None
    place = sound.classes.index("pedestrian")
    assert abs(sound.originals.classes[place].found - planted.originals.classes[place].found) <= 2
    assert 2 * planted.counterfactuals.classes[place].found < sound.counterfactuals.classes[place].found
    assert not next(result.findings for result in measured.results if result.model == "road-detector")
    assert "road-detector-night-pedestrian" in (tmp_path / "report.html").read_text()
