"""What must not grow with the size of a job: statements per image, and messages in the broker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session

from gateway.database.counts import count_rows
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import LOCAL_OWNER, Job
from gateway.jobs import jobs
from gateway.jobs.jobs import progress
from gateway.queue import leases
from shared.media.storage import DirectoryStore
from shared.problems import InvalidInput
from tests.support.block_counts import blocks
from tests.support.databases import ON_SQLITE
from tests.support.rows import add_job
from tests.support.small_services import SmallServices, serve
from tests.support.work_site import QUICK, Site, work_until

SIZES = (16, 18, 20)  # within the share of one message and one claim, and enough for a hint at exchanged channels


def kinds_of(engine: Engine, site: Site, images: int) -> Counter[str]:
    """The statements of a worker for a job with `images` images, by their text without the lengths of lists."""
    site.add_job(f"job-{images}", images=images, models=("m1",), pictures=images)
    counted: Counter[str] = Counter()

    def note(_: Any, __: Any, statement: str, ___: Any, ____: Any, many: bool) -> None:
        counted[" ".join(statement.split()[:3])] += 1

    worker = site.worker()
    event.listen(engine, "before_cursor_execute", note)
    while site.state(f"job-{images}") == "running":
        worker.step()
    event.remove(engine, "before_cursor_execute", note)
    assert site.state(f"job-{images}") == "done"
    return counted


@pytest.mark.slow
def test_an_image_costs_the_same_statements_in_a_job_of_any_size(sessions: Sessions, tmp_path: Path) -> None:
    small = SmallServices()
    engine = sessions.kw["bind"]
    with serve(small) as url:
        site = Site(sessions, DirectoryStore(tmp_path / "objects"), small, url)
        kinds_of(engine, site, 1)  # records what all images share
        few, some, many = (sum(kinds_of(engine, site, images).values()) for images in SIZES)
        for client in site.clients:
            client.close()
    assert (some - few) / (SIZES[1] - SIZES[0]) == (many - some) / (SIZES[2] - SIZES[1])


@ON_SQLITE
def test_how_far_a_job_has_come_is_answered_by_indexes(sessions: Sessions) -> None:
    add_job(sessions, "job", 3)
    queries: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, ___: Any, many: bool) -> None:
        queries.append((statement, parameters))

    engine = sessions.kw["bind"]
    event.listen(engine, "before_cursor_execute", note)
    with reading(sessions) as session:
        progress(session, session.get_one(Job, "job"))
        jobs.failures(session, "job")
    event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        plans = [connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values).all() for text, values in queries]
    lines = [str(row[3]) for plan in plans for row in plan]
    assert not [line for line in lines if line.startswith("SCAN")]
    used = {word for line in lines for word in line.split() if word.startswith("ix_")}
    assert used == {
        "ix_source_images_job_id_state",
        "ix_source_images_job_id_updated_at",
    }


COPIES = """
    INSERT INTO source_images SELECT (
        jsonb_populate_record(one, jsonb_build_object(
            'id', 'copy-' || n, 'position', n, 'turn', n, 'state', CASE WHEN n < :done THEN 'done' ELSE 'pending' END
        ))
    ).* FROM source_images AS one, generate_series(1, :images) AS n WHERE job_id = 'large'
"""


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_job_is_shown_from_its_row_whatever_its_size(sessions: Sessions) -> None:
    def show(session: Session) -> None:
        jobs.show(session, LOCAL_OWNER, "large")

    add_job(sessions, "large", 1)
    small = blocks(sessions, show)
    with sessions.begin() as session:
        session.execute(text(COPIES), {"images": 20_000, "done": 10_000})
        session.execute(text("ANALYZE source_images"))
    assert blocks(sessions, show) <= small + 10, "before any VACUUM"


@pytest.mark.slow
def test_the_counters_of_a_job_are_those_of_its_rows(site: Site) -> None:
    worker = site.worker()

    def counts_of(job: str) -> dict[str, int]:
        work_until(worker, lambda: site.state(job) != "running")
        with site.sessions() as session:
            counts = session.get_one(Job, job).counts
            assert Counter(counts) == count_rows(session, job)
        return counts

    site.add_job("good", images=3)
    counts = counts_of("good")
    assert (counts["images"], counts["labelled"], counts["done"]) == (3, 3, 3)
    assert counts["dillema/proposed"] > 0 < counts["dillema/null"]
    site.small.troubles = [InvalidInput("too strange")] * QUICK.max_attempts
    site.add_job("bad", images=1, pictures=6)
    assert counts_of("bad")["failed"] == 1


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_claims_read_as_little_in_a_job_of_any_size(sessions: Sessions) -> None:
    claims = (lambda s: leases.claim(s, 60), lambda s: leases.claim_analysis(s, 60), leases.work_waits)
    add_job(sessions, "large", 1)
    small = [blocks(sessions, work) for work in claims]
    with sessions.begin() as session:
        session.execute(text(COPIES), {"images": 20_000, "done": 10_000})
    with sessions.kw["bind"].connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE source_images"))
    large = [blocks(sessions, work) for work in claims]
    assert all(after <= before + 30 for before, after in zip(small, large, strict=True)), (small, large)
