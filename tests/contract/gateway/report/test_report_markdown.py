"""The report as Markdown: verdict and findings first, names as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from gateway.analysis.findings import assess
from gateway.database.sessions import Sessions
from gateway.database.tables import Job
from gateway.report.build import build_report, report_key
from gateway.report.markdown import report_markdown
from shared.media.storage import DirectoryStore
from shared.schemas.effects import CellEffect
from shared.schemas.results import JobResults
from shared.words.wording import NO_PAIR_COUNTS
from tests.support.drawn_job import add_drawn_job
from tests.support.effects import cell, differences

Measured = tuple[Sessions, DirectoryStore, JobResults, str]


def test_markdown_begins_with_verdict_and_findings(measured: Measured) -> None:
    page = report_markdown(measured[2])
    verdict, _, findings = page.partition("## Findings")
    assert [line.split(" | ")[0] for line in verdict.splitlines() if "dillema |" in line] == ["| night-bus", "| sound"]
    (finding,) = (line for line in findings.splitlines() if line.startswith("1. `bus` at night"))
    assert "is not recognised: " in finding
    assert f" of {measured[2].results[0].findings[0].sources} lost, " in finding
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) > 2 for line in tables)
    assert findings.index("## What to do next") < findings.index("## Effects in cells") < findings.index("Provenance")
    assert len(page) < 65_536, "a comment on GitHub"


def test_markdown_keeps_names_as_text(measured: Measured) -> None:
    provenance = measured[2].made.model_copy(update={"task_description": "<img src=x> # **a** | b"})
    result = measured[2].results[0].model_copy(update={"model": "m|<b>"})
    page = report_markdown(measured[2].model_copy(update={"made": provenance, "results": [result]}))
    assert not re.search(r"(?<!\\)<(?!/?details|/?summary)", re.sub(r"`[^`]*`", "", page))
    widths = {
        len(re.findall(r"(?<!\\)\|", line)) for line in page.partition("## Findings")[0].splitlines() if "|" in line[:1]
    }
    assert widths == {4}


def test_a_report_of_an_empty_job_is_markdown_too(measured: Measured) -> None:
    sessions, store, _, _ = measured
    add_drawn_job(sessions, store, "none", per_class=0)
    assert NO_PAIR_COUNTS in report_markdown(build_report(sessions, store, "none"))


def test_a_forced_job_of_images_that_the_profile_does_not_know_says_so_first(measured: Measured) -> None:
    sessions, store, _, _ = measured
    add_drawn_job(sessions, store, "forced", per_class=1)
    with sessions.begin() as session:
        session.get_one(Job, "forced").spec = {"outside_domain_note": "3 of 3 images looked at are something else."}
    page = report_markdown(build_report(sessions, store, "forced"))
    assert page.index("3 of 3 images looked at") < page.index("| model")
    html = store.get(report_key("forced", "report")).decode()
    assert html.index("3 of 3 images looked at") < html.index('class="verdicts"')


def test_many_models_and_findings_fit_into_a_comment(measured: Measured) -> None:
    result = measured[2].results[0]
    many = result.model_copy(update={"cells": 100 * result.findings})
    page = report_markdown(measured[2].model_copy(update={"results": 20 * [many]}))
    assert len(page) < 65_536
    assert "1950 more findings" in page


def test_a_tested_drop_without_a_finding_is_no_green_mark(measured: Measured) -> None:
    """ "No weakness found in 10 tested cells" stood in green above 8 lost images of 16, and 4 of 12."""
    cells = {cell(f"still {k}"): differences(np.zeros(12)) for k in range(9)}
    row = verdict_row(measured[2], assess({**cells, cell("night"): differences(np.repeat([-1, 0], [8, 8]))}, seed=1))
    assert "❔ Not settled: `bus` at night: −50 points on 16 images, 95 % interval" in row
    assert "more images of `bus` that get this change would settle" in row
    assert "1 of 10 tested cells is a suspected weakness" in row
    few = verdict_row(measured[2], assess({**cells, cell("night"): differences(np.repeat([-1, 0], [4, 8]))}, seed=1))
    assert re.search(r"❔ No tested change costs more than (\d\d) points \(95 % limit\); 10 of 10 were tested", few)


def verdict_row(results: JobResults, cells: Sequence[CellEffect]) -> str:
    """The row of the verdict of a model with these cells."""
    result = results.results[0].model_copy(update={"cells": cells})
    page = report_markdown(results.model_copy(update={"results": [result]}))
    (row,) = (line for line in page.partition("## Findings")[0].splitlines() if " dillema | " in line)
    return row
