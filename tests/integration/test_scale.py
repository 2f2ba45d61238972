"""What must not grow with a job: the statements that an image costs, and the messages in the broker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from gateway.database import Sessions
from shared.storage import DirectoryStore
from tests.integration.small_services import SmallServices, serve
from tests.integration.work_site import Site

SIZES = (4, 8, 20)


def kinds_of(engine: Engine, site: Site, images: int) -> Counter[str]:
    """The statements that a worker makes of a job of so many images, by their text without lists' lengths."""
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


def test_an_image_costs_the_same_statements_in_a_job_of_any_size(sessions: Sessions, tmp_path: Path) -> None:
    small = SmallServices()
    engine = sessions.kw["bind"]
    with serve(small) as url:
        site = Site(sessions, DirectoryStore(tmp_path / "objects"), small, url)
        few, some, many = (sum(kinds_of(engine, site, images).values()) for images in SIZES)
        for client in site.clients:
            client.close()
    assert (some - few) / (SIZES[1] - SIZES[0]) == (many - some) / (SIZES[2] - SIZES[1])
