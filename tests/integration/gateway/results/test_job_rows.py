"""Streaming the rows of a job: complete, in order, and never more in memory than one fetch."""

from __future__ import annotations

import tracemalloc

import pytest

from gateway.analysis.effects import Outcomes
from gateway.database.sessions import Sessions, reading
from gateway.results.job_rows import load_rows
from gateway.results.stream import stream_sources
from tests.support.worked_jobs import EDITS, add_worked_job


def peak(sessions: Sessions, job_id: str) -> int:
    """Bytes that loading a job took at most, beyond what was there before."""
    with reading(sessions) as session:
        load_rows(session, job_id)  # statements are compiled, classes made
        tracemalloc.start()
        load_rows(session, job_id)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return most


@pytest.mark.slow
def test_a_source_image_comes_with_its_counterfactuals_and_predictions(sessions: Sessions) -> None:
    add_worked_job(sessions, "job", 700)
    with reading(sessions) as session:
        streamed = list(stream_sources(session, "job"))
        (rows,) = load_rows(session, "job").models.values()
    assert [rows.source.position for rows in streamed] == list(range(700))
    for source in streamed:
        assert [row.ordinal for row in source.counterfactuals] == list(range(EDITS + 1))
        assert set(source.predictions_of("m")) == {source.source.id, *(row.id for row in source.counterfactuals)}
        assert {row.source_image_id for row in source.counterfactuals} == {source.source.id}
    assert isinstance(rows.scores, Outcomes)
    assert (len(rows.scores.source), rows.left_out) == (700 * EDITS, 0)
    assert len(set(rows.scores.null_arm.tolist())) == 700
    assert len(rows.screened) == len(rows.scores.cells) == EDITS + 1


@pytest.mark.slow
def test_loading_a_job_needs_memory_for_its_arrays_alone(sessions: Sessions) -> None:
    small, large = 400, 1_200
    add_worked_job(sessions, "small", small)
    add_worked_job(sessions, "large", large)
    more = peak(sessions, "large") - peak(sessions, "small")
    per_counterfactual = more / ((large - small) * EDITS)
    assert per_counterfactual < 500, f"{per_counterfactual:.0f} bytes"  # its rows and their JSON are ten times that
