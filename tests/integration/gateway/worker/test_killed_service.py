"""A model service that is killed while it renders the edits of an image."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from sqlalchemy import func, select, update

from gateway.database.sessions import Sessions
from gateway.database.tables import Counterfactual, RecordedCall, SourceImage
from shared.media.storage import DirectoryStore
from shared.schemas.diffusion import RenderReply, RenderRequest
from tests.support.databases import ON_SQLITE
from tests.support.processes import UVICORN, Program, free_port, http_ready
from tests.support.small_services import SmallServices
from tests.support.threads import background
from tests.support.work_site import Site, wait_for, work_until


class FogIsHeld(SmallServices):
    """Does not finish pictures in fog while there is a file."""

    def _renderings(self, request: RenderRequest) -> RenderReply:
        while "fog" in request.renderings[0].prompt and Path(os.environ["HELD"]).exists():
            time.sleep(0.05)
        return super()._renderings(request)


def create_app() -> FastAPI:
    return FogIsHeld().app


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Program]:
    url, log = f"http://127.0.0.1:{free_port()}", tmp_path / "service.log"
    command = [*UVICORN, "--log-level", "info", "--port", url.rsplit(":", 1)[1], f"{__name__}:create_app"]
    program = Program(url, command, http_ready(f"{url}/v1/info"), log, {"HELD": str(tmp_path / "held")})
    program.start()
    yield program
    program.kill()


@ON_SQLITE
@pytest.mark.slow
def test_edits_that_are_finished_are_kept_and_the_others_are_made_once_more(
    service: Program, sessions: Sessions, tmp_path: Path
) -> None:
    (tmp_path / "held").touch()
    service.wait()
    site = Site(sessions, DirectoryStore(tmp_path / "objects"), SmallServices(), service.name)
    site.add_job(images=1)
    worker = site.worker(wait=60)

    def rendered() -> int:
        with sessions() as session:
            return session.scalar(select(func.count()).where(RecordedCall.endpoint == "/v1/renderings")) or 0

    try:
        with background(worker.step, release=service.kill):
            wait_for(lambda: rendered() == 3)
            service.kill()
        (image,) = site.images()
        assert (image.state, image.attempts, image.lost_leases) == ("pending", 0, 1)
        (tmp_path / "held").unlink()
        service.start()
        service.wait()
        with sessions.begin() as session:
            session.execute(update(SourceImage).values(not_before=None))  # as if the pause was over
        work_until(worker, lambda: site.state() == "done")
    finally:
        site.close()
    (image,) = site.images()
    assert (image.attempts, image.lost_leases, image.failure) == (0, 1, "")
    with sessions() as session:
        rows = session.scalar(select(func.count()).select_from(Counterfactual))
    assert rows == 4  # two edits, null arm, sham arm
    assert service.log.read_text().count('"POST /v1/renderings HTTP/1.1" 200') == rows
