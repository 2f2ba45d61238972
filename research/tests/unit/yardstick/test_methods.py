"""The parameters of each method in the yardstick, its answer from results, and the comparison of methods."""

from __future__ import annotations

import json

import pytest

from gateway.methods import METHODS as KNOWN
from gateway.methods.shifts import Shift, apply_shift
from research.statistics.rates import wilson
from research.yardstick.contrafact import METHODS, SIZES, factors_of, merge, parameters_of
from research.yardstick.formats import Agreement, AtDose, Score, Spent
from research.yardstick.printing import format_comparison
from shared.schemas.results import JobResults
from tinyworld.objects.captions import read

RATE = wilson(9, 10).model_dump()
METRICS: dict[str, object] = {
    "accuracy": [],
    "error_rate": RATE,
    "error_rate_null": RATE,
    "delta_probability": None,
    "mean_absolute_delta_probability": None,
    "mean_absolute_delta_probability_null": None,
    "flips": RATE,
    "flips_null": RATE,
    "all_or_none": None,
}


def cell(factor: str, value: str) -> dict[str, object]:
    return {
        "cell": {"label": "bus", "factor": factor, "value": value, "direction": "to"},
        "sources": 20,
        "counterfactuals": 20,
        "delta_accuracy": -0.5,
        "delta_probability": None,
        "interval": {"low": -0.7, "high": -0.3, "level": 0.95, "kind": "betting"},
        "standing": "weakness",
    }


def results(model: str, evaluations: int) -> JobResults:
    """One job's results, as the API gives them."""
    fields = {"model": model, "relation": "labelled", "sources": 20, "counterfactuals": 20, "left_out": 0}
    return JobResults.model_validate_json(
        json.dumps(
            {
                "sources": 20,
                "sources_failed": 0,
                "provisional": True,
                "results": [
                    fields
                    | {"method": "lance", "cells": [cell("weather", "night"), cell("other", "x")], "metrics": METRICS}
                ],
                "funnels": [
                    {
                        "method": "lance",
                        "proposed": 30,
                        "refused_by_text": [],
                        "rendered": 25,
                        "refused_by_image": [],
                        "accepted": wilson(20, 30).model_dump(),
                    }
                ],
                "costs": [
                    {
                        "method": "lance",
                        "evaluations": evaluations,
                        "evaluations_per_rendered": None,
                        "evaluations_per_accepted": None,
                    }
                ],
                "made": {
                    "job": "job",
                    "task": "name it",
                    "profile": "tiny",
                    "seed": 0,
                    "parameters": {},
                    "services": {},
                    "versions": {},
                    "analysis_seed": 0,
                },
            }
        )
    )


@pytest.mark.parametrize("method", [name for name in METHODS if name in KNOWN])
def test_each_method_takes_what_it_is_asked(method: str) -> None:
    for size in SIZES.values():
        KNOWN[method].parameters.model_validate(parameters_of(method, size))
        assert set(factors_of(method, size)) <= set(size.factors)


def test_shifts_go_to_every_time_and_weather() -> None:
    shifts = parameters_of("shifts", SIZES["small"])["shifts"]
    assert isinstance(shifts, list)
    caption = "There is a red bus in a city. The scene is set at night in the rain."
    for shift in map(Shift.model_validate, shifts):
        field = "time" if shift.value in ("day", "sunset", "night") else "weather"
        if shift.value not in ("night", "rain"):
            assert read(apply_shift(caption, shift)[1]) == {**read(caption), field: shift.value}


def test_the_jobs_of_a_method_make_one_answer_about_the_factors_asked_for() -> None:
    jobs = [results("one", 700), results("two", 900)]
    answer = merge(jobs, "lance", ["weather"], "the command", [["one"], ["two"]], 12.34)
    assert (answer.method, answer.models) == ("contrafact lance", ["one", "two"])
    assert [(cell.model, cell.cell.value, cell.finding) for cell in answer.cells] == [
        ("one", "night", True),
        ("two", "night", True),
    ]
    # The second job finds the renderings of the first: they are paid once.
    assert answer.spent == Spent(seconds=12.3, source_images=20, counterfactuals=20, network_evaluations=700)


def score(method: str, hits: int, false: float, seconds: float) -> Score:
    nothing = wilson(0, 0)
    agreement = Agreement(n=0, bias=None, rmse=None, rank_correlation=None)
    return Score(
        method=method,
        models=24,
        doses=[AtDose(dose=dose, found=hits, missed=0, untested=0, recall=wilson(hits, 9)) for dose in (15, 30, 60)],
        improvements=nothing,
        found=hits,
        invented=0,
        undecided=0,
        precision=wilson(hits, hits),
        false_discovery_rate=false,
        false_discoveries_over_null_cells=nothing,
        first_findings=nothing,
        all_cells=agreement,
        cells_with_effect=agreement,
        weaknesses=agreement,
        coverage=nothing,
        provisional=nothing,
        outside_untested=nothing,
        unknown_cells=0,
        spent=Spent(seconds=seconds, network_evaluations=1_000),
    )


def test_the_method_to_take_first_finds_most_in_an_hour_and_invents_little() -> None:
    table = format_comparison([score("slow", 8, 0.0, 7200), score("quick", 6, 0.01, 3600), score("rash", 9, 0.3, 3600)])
    assert table.splitlines()[-1] == "Take first: quick"
    assert "| quick | 66.7% (6 of 9; " in table
    assert "| 3,600 | 1,000 | 6.0 |" in table
    assert "blind" not in format_comparison([score("blind", 0, 0.0, 10)]).splitlines()[-1]
