"""Renderings that are not finite: their edits are rejected, and so are the edits of a broken null arm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import select

from gateway.database.sessions import Sessions
from gateway.database.tables import Counterfactual
from gateway.methods.lance import LanceParameters, lance
from gateway.model_services.clients import ModelServices
from shared.media.storage import DirectoryStore
from shared.schemas.diffusion import EditReply, EditRequest, Rendering, RenderReply, RenderRequest
from tests.support.databases import ON_SQLITE
from tests.support.lance_services import SOURCE, TASK, LanceServices
from tests.support.small_services import CAPTION, SmallServices, open_clients, serve
from tests.support.work_site import Site, work_until


class Overflowing(SmallServices):
    """Of the renderings that `may_overflow`, those with the seed of the first one are not finite."""

    def __init__(self, may_overflow: Callable[[Rendering], bool]) -> None:
        self._may_overflow = may_overflow
        self._seeds: list[int] = []
        super().__init__()

    def _renderings(self, request: RenderRequest) -> RenderReply:
        reply = super()._renderings(request)
        pairs = zip(request.renderings, reply.images, strict=True)
        images = [None if self._overflows(rendering) else image for rendering, image in pairs]
        return reply.model_copy(update={"images": images})

    def _overflows(self, rendering: Rendering) -> bool:
        if not self._may_overflow(rendering):
            return False
        self._seeds.append(rendering.seed)
        return rendering.seed == self._seeds[0]


@contextmanager
def job_with(
    may_overflow: Callable[[Rendering], bool], sessions: Sessions, directory: Path
) -> Iterator[list[Counterfactual]]:
    """The rows of a finished job of one image with two edits."""
    small = Overflowing(may_overflow)
    with serve(small) as url:
        site = Site(sessions, DirectoryStore(directory / "objects"), small, url)
        site.add_job(images=1)
        worker = site.worker()
        work_until(worker, lambda: site.state() == "done")
        assert [image.state for image in site.images()] == ["done"]
        for client in site.clients:
            client.close()
    with sessions() as session:
        yield list(session.scalars(select(Counterfactual).order_by(Counterfactual.ordinal)))


@ON_SQLITE
def test_a_null_arm_that_is_not_finite_refuses_its_edit_and_has_no_row(sessions: Sessions, tmp_path: Path) -> None:
    with job_with(lambda rendering: rendering.prompt == CAPTION, sessions, tmp_path) as rows:
        edits = [row for row in rows if row.arm == "edit"]
        nulls = [row for row in rows if row.arm == "null"]
    (refused,) = [row for row in edits if not row.accepted]
    (accepted,) = [row for row in edits if row.accepted]
    assert (refused.check, refused.null_ordinal) == ("null arm", None)
    assert refused.image_digest is not None
    assert [null.ordinal for null in nulls] == [accepted.null_ordinal]
    assert nulls[0].seed == accepted.seed != refused.seed


@ON_SQLITE
def test_an_edit_that_is_not_finite_is_refused_and_its_neighbour_stays(sessions: Sessions, tmp_path: Path) -> None:
    with job_with(lambda rendering: rendering.prompt != CAPTION, sessions, tmp_path) as rows:
        edits = [row for row in rows if row.arm == "edit"]
    assert sorted((row.accepted, row.check, row.image_digest is None) for row in edits) == [
        (False, "not finite", True),
        (True, "", False),
    ]


class OverflowingEdits(LanceServices):
    """Null arms (edits whose prompt is the caption) are not finite, nor is any edit under the fraction 0.4."""

    def _edits(self, request: EditRequest) -> EditReply:
        reply = super()._edits(request)
        images = [
            [
                None if edit.prompt == CAPTION or fraction == 0.4 else image
                for fraction, image in zip(request.self_fractions, row, strict=True)
            ]
            for edit, row in zip(request.edits, reply.images, strict=True)
        ]
        return reply.model_copy(update={"images": images})


def test_a_sweep_keeps_a_finite_attempt_and_its_broken_null_arm_refuses_it() -> None:
    limits = {"caption": {"default": -2.0}}
    chosen = {
        "self_fractions": [0.4, 0.7],
        "steps": 4,
        "caption_prompt": "",
        "thresholds": limits,
        "reference": "null",
    }
    with open_clients(OverflowingEdits(), ModelServices) as services:
        rows = list(lance(SOURCE, TASK, services, LanceParameters.model_validate(chosen), 1))
    rendered = [row for row in rows if row.image is not None]
    assert rendered
    assert {row.lineage["self_fraction"] for row in rendered} == {0.7}
    assert not any(row.verdict.accepted for row in rows)
    assert "null arm" in {row.verdict.check for row in rendered}
    assert {row.arm for row in rows} == {"edit"}
    assert all(row.lineage["sweep"][0]["check"] == "not finite" for row in rendered)
