"""Adaptive and even jobs on tables with known truth."""

from __future__ import annotations

from research.simulated_designs import DesignSetting, adaptive_job, even_job


def test_an_adaptive_job_finds_what_an_even_one_of_its_size_would_not() -> None:
    setting = DesignSetting(pool=300, edits=1_200, drop=0.6)
    results = [adaptive_job(setting, seed) for seed in range(2)]
    assert all(result == {"0/0"} and edits <= setting.edits for result, edits in results)


def test_an_adaptive_job_finds_no_less_when_most_images_are_rendered() -> None:
    setting = DesignSetting(pool=60, edits=1_200, drop=0.35)
    adaptive, even = (sum(len(job(setting, seed)[0]) for seed in range(8)) for job in (adaptive_job, even_job))
    assert adaptive > even
