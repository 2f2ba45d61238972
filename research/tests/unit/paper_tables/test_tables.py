"""The papers' tables: judgements of known scenes, rows, and printed tables."""

from __future__ import annotations

import pytest

from research.judges.trials import source_picture
from research.paper_tables.__main__ import RESULTS, rows
from research.paper_tables.arms import ARMS, scenes_of
from research.paper_tables.faults import faults
from research.paper_tables.judging import JudgedCounterfactual, factor_figures, judge_counterfactuals, text_checks
from research.paper_tables.printing import rate
from research.paper_tables.rows import ArmRow, Distance, ModelFigures
from research.paper_tables.tables import tables
from research.statistics.rates import wilson
from shared.media.images import encode
from shared.schemas.effects import FailurePoints, Rate
from shared.schemas.metrics import Accuracy, AllOrNone, PaperMetrics
from shared.schemas.results import (
    ChangeView,
    CheckCount,
    Cost,
    CounterfactualView,
    Funnel,
    ModelOpinion,
    PredictionView,
    SourceImageView,
    VerdictView,
)
from tinyworld.objects.captions import describe
from tinyworld.objects.proposals import rephrase
from tinyworld.objects.world import CLASSES, Scene

SCENES = scenes_of(8)
MODEL = "street-classifier"


def prediction(rank: int) -> PredictionView:
    return PredictionView(predicted="bus", probability=0.9, ground_truth_probability=0.5, rank=rank, top=[], scores={})


def view(
    position: int, ordinal: int, old: str, new: str, *, refused_by: str = "", image: str | None = None, rank: int = 1
) -> CounterfactualView:
    """An edit of a scene's time of day, as the API shows it."""
    caption = f"There is a {SCENES[position].label}. It is {old}."
    return CounterfactualView(
        id=f"{position}-{ordinal}",
        source=SourceImageView(
            id="s", position=position, name="", ground_truth=SCENES[position].label, image="original"
        ),
        method="lance",
        ordinal=ordinal,
        seed=0,
        changes=[ChangeView(factor="weather", from_phrase=old, to_phrase=new, from_value=old, to_value=new)],
        caption=caption,
        new_caption=rephrase(caption, old, new),
        image=image,
        null_image=None,
        control_image=None,
        verdict=VerdictView(accepted=not refused_by, check=refused_by, reason=""),
        scores={},
        kind="classification",
        predictions=[
            ModelOpinion(
                model=MODEL, original=prediction(1), null_arm=None, counterfactual=prediction(rank), flipped=rank != 1
            )
        ],
    )


@pytest.fixture(scope="module")
def judged() -> list[JudgedCounterfactual]:
    """The renderer's own counterfactuals of eight scenes, each with one that words refused, and copies unchanged."""
    views, images = [], {}
    for position, scene in enumerate(SCENES):
        other = "night" if scene.time != "night" else "sunset"
        images[f"true-{position}"] = encode(source_picture(scene.changed(time=other)))
        images[f"copy-{position}"] = encode(source_picture(scene))
        views += [
            view(position, 0, scene.time, other, image=f"true-{position}", rank=1 + position % 2),
            view(position, 1, scene.time, other, image=f"copy-{position}"),
            view(position, 2, scene.time, "wednesday", refused_by="word diff"),
            view(position, 3, scene.time, other, refused_by="paraphrase"),
        ]
    return judge_counterfactuals(views, SCENES, images.__getitem__)


def test_oracles_and_grammar_judge_each_edit(judged: list[JudgedCounterfactual]) -> None:
    assert [counterfactual.field for counterfactual in judged] == ["time", "time", "other", "time"] * len(SCENES)
    everything, weather = factor_figures(judged)
    assert (everything.factor, weather.factor) == ("all", "weather")
    assert everything.as_asked.count == 24, "wednesday is no time of day"
    assert (everything.accepted.count, everything.accepted.n) == (16, 32)
    assert everything.shown.count <= 8 < everything.shown.n, "the copies do not show the edit"
    assert everything.shown.count >= 6, "the renderer's counterfactuals do"
    assert everything.kept_flipped.n == 4
    delta = everything.deltas[MODEL]
    assert (delta.sources, delta.mean) == (8, -0.25)
    assert delta.low < -0.25 < delta.high
    checks = text_checks(judged)
    assert checks is not None
    assert (checks.precision.count, checks.precision.n) == (8, 16)
    assert (checks.recall.count, checks.recall.n) == (8, 8)


def test_faults_are_counted_by_class_and_by_value(judged: list[JudgedCounterfactual]) -> None:
    by_group = faults([counterfactual.view for counterfactual in judged])
    by_class = {group.name: group for group in by_group if group.of == "class"}
    assert set(by_class) == set(CLASSES)
    assert (by_class["bus"].originals.count, by_class["bus"].originals.n) == (0, 1), "each source once"
    wrong = {name for name, group in by_class.items() if group.counterfactuals.count}
    assert wrong == {scene.label for position, scene in enumerate(SCENES) if position % 2}
    assert all((group.counterfactuals.n, group.nulls.n) == (2, 0) for group in by_class.values()), "no refused ones"
    by_value = {group.name: group for group in by_group if group.of == "value"}
    assert set(by_value) <= {"night", "sunset"}
    assert sum(group.counterfactuals.count for group in by_value.values()) == 4
    assert sum(sum(group.called.values()) for group in by_group) == 8


def test_scenes_are_the_models_own_and_every_class_in_turn() -> None:
    assert [scene.label for scene in SCENES] == list(CLASSES)
    assert scenes_of(3) == SCENES[:3]
    assert all(isinstance(scene, Scene) and describe(scene, 0).text for scene in SCENES)


def metrics(k_right: int) -> PaperMetrics:
    right = wilson(k_right, 10)
    return PaperMetrics(
        accuracy=[
            Accuracy(k=k, originals=wilson(9, 10), nulls=right, counterfactuals=right, delta=-0.2, delta_null=0.0)
            for k in (1, 5)
        ],
        error_rate=wilson(10 - k_right, 10),
        error_rate_null=wilson(1, 10),
        delta_probability=-0.1,
        mean_absolute_delta_probability=0.123,
        mean_absolute_delta_probability_null=0.01,
        flips=right,
        flips_null=right,
        all_or_none=AllOrNone(k=2, all_fail=wilson(1, 5), none_fail=wilson(2, 5)),
    )


def row(arm: str, judged: list[JudgedCounterfactual]) -> ArmRow:
    points = FailurePoints(corruption="fog", sources=8, first=[1, 0, 2, 0, 0], never=5, median=None)
    return ArmRow(
        arm=arm,
        method=ARMS[arm].method,
        command="by hand",
        machine="a desk",
        sources=8,
        parameters={},
        weights={},
        seconds=160.0,
        funnel=Funnel(
            method=ARMS[arm].method,
            proposed=32,
            refused_by_text=[CheckCount(check="word diff", count=8)],
            rendered=16,
            refused_by_image=[],
            accepted=wilson(16, 32),
        ),
        cost=Cost(
            method=ARMS[arm].method, evaluations=1_600, evaluations_per_rendered=100, evaluations_per_accepted=100
        ),
        distance=Distance(value=0.0123, error=0.004, features="by hand"),
        perplexity_before=2.5,
        perplexity_after=2.75,
        text_checks=text_checks(judged),
        factors=factor_figures(judged),
        models=[ModelFigures(model=MODEL, metrics=metrics(7), failure_points=[points] if arm == "corruptions" else [])],
        faults=faults([counterfactual.view for counterfactual in judged]),
    )


def test_tables_print_the_figures_of_their_rows(judged: list[JudgedCounterfactual]) -> None:
    some = [row(arm, judged) for arm in ("corruptions", "lance-direct", "dillema-keep")]
    assert ArmRow.model_validate_json(some[0].model_dump_json()) == some[0]
    text = tables(some)
    assert "|  | DILLEMA, keep | LANCE, direct | Corruptions |" in text
    assert "| seconds per accepted | 10.0 | 10.0 | 10.0 |" in text
    assert "| network evaluations per accepted | 100 | 100 | 100 |" in text
    assert "| KID × 1000 | 12.3 ± 4.0 |" in text
    assert "| perplexity before → after | 2.50 → 2.75 |" in text
    assert f"| originals | {rate(wilson(9, 10))}; {rate(wilson(9, 10))} | – |" in text
    assert "| weather | street-classifier | 8 | -25.0 (" in text
    assert "█████" in text
    assert "20 % (1/5; 1–62), k = 2" in text
    assert "| fog | street-classifier | 8 | 1 | 0 | 2 | 0 | 0 | 5 |" in text
    assert "| night | street-classifier | 0 % (0/" in text
    assert "| wednesday |" not in text
    assert "DILLEMA, third question" in text
    assert "| night-bus-60 | bus, night | 95.8% → 37.5% | 87.5% |" in text
    assert rate(Rate(count=0, n=0, value=None, low=0, high=1)) == "–"


def test_committed_rows_can_be_read() -> None:
    sizes = {int(path.name.removesuffix(".json.gz").rsplit("-", 1)[1]) for path in RESULTS.glob("*.json.gz")}
    for sources in sizes:
        committed = rows(sources)
        assert {arm_row.sources for arm_row in committed} == {sources}
        assert tables(committed)
