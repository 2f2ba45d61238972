"""A small job whose drops have too few images to be tested: no page and no table of it reads as a pass."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest
from rich.console import Console

from contrafact.printing import findings
from gateway.database.sessions import reading
from gateway.database.tables import Report
from gateway.report.advice import next_steps
from gateway.report.markdown import report_markdown
from shared.schemas.results import JobResults
from shared.words.verdicts import verdict_of
from shared.words.wording import more_images, points
from tests.support.drawn_job import serve_drawn_job
from tests.support.gateway_under_test import Gateway

PAGES = ("/jobs/drawn/view", "/jobs/drawn/report")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A job of 4 images of each class: every bus is lost at night."""
    with serve_drawn_job(tmp_path_factory.mktemp("small"), per_class=4) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def results(small: Gateway) -> JobResults:
    """Its results."""
    with reading(small.context.sessions) as session:
        report = session.get(Report, "drawn")
        assert report is not None
        return report.results


@pytest.mark.parametrize("path", PAGES)
def test_a_page_shows_an_unsettled_drop_and_no_pass(small: Gateway, results: JobResults, path: str) -> None:
    page = small.client.get(path).text
    cards = re.findall(r'<article class="verdict (\S+)" data-verdict="([^"]+)">(.*?)</article>', page, re.DOTALL)
    verdicts = [verdict_of(results, result) for result in results.results]
    assert [verdict.kind for verdict in verdicts] == ["not settled", "too few images"]
    assert [(style, kind) for style, kind, _ in cards] == [("is-open", verdict.kind) for verdict in verdicts]
    first, (_, _, card) = verdicts[0].unsettled[0], cards[0]
    assert f'<b class="figure">{points(first.delta_accuracy)}</b>' in card
    assert f"{first.images_missing} more" in card
    assert not any('<span class="mark" aria-hidden="true">✓' in card for *_, card in cards)


def test_markdown_and_terminal_name_the_drop(results: JobResults) -> None:
    page = report_markdown(results)
    assert "✅" not in page
    out = io.StringIO()
    Console(width=400, file=out).print(findings(results))
    result = results.results[0]
    first = verdict_of(results, result).unsettled[0]
    (row,) = (line for line in page.splitlines() if line.startswith(f"| {result.model} | dillema | ❔"))
    lines = out.getvalue().partition(f"{result.model} under dillema")[2].splitlines()[1:4]
    for text in (row, lines[1]):
        assert f"{points(first.delta_accuracy)} points on {first.sources} image" in text
        assert more_images(first) in text


def test_what_to_do_next_is_to_bring_the_missing_images(results: JobResults) -> None:
    first, *_ = next_steps(results)
    night = verdict_of(results, results.results[0]).unsettled[0]
    assert (night.cell.label, night.cell.value) == ("bus", "night")
    assert first.endswith(f"submit {more_images(night)}.")
