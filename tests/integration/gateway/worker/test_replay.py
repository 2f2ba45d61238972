"""Replaying a counterfactual: equal if nothing changed, otherwise with the differences and their causes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm.attributes import flag_modified

from gateway.database.tables import Counterfactual, Image, Job, RecordedCall
from gateway.model_services.clients import ModelServices
from gateway.report.build import build_report
from gateway.worker.replay import Replay, replay
from shared.media.images import encode
from shared.problems import NotFound
from shared.profiles.weights import Server
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import RenderReply, RenderRequest
from shared.schemas.service import SERVICES, ServiceInfo, WeightsInfo
from tests.support.databases import ON_SQLITE
from tests.support.diffusion_requests import pixels
from tests.support.json_values import value_at
from tests.support.small_services import SmallServices
from tests.support.work_site import Site


class Shaken(SmallServices):
    """The same services, whose images come out a little different while `shaken`."""

    shaken = False

    def _renderings(self, request: RenderRequest) -> RenderReply:
        reply = super()._renderings(request)
        if not self.shaken:
            return reply
        first = pixels(reply.images[0])
        first[0, :2] = np.where(first[0, :2] > 100, first[0, :2] - 3, first[0, :2] + 3)
        return reply.model_copy(update={"images": [ImagePayload(png=encode(first)), *reply.images[1:]]})


@pytest.fixture
def small() -> Shaken:
    return Shaken()


@pytest.fixture
def site(site: Site) -> Site:
    """With a finished job of one image."""
    site.add_job(images=1)
    site.worker().step()
    return site


def first_edit(site: Site) -> str:
    with site.sessions() as session:
        rendered = select(Counterfactual.id).where(
            Counterfactual.arm == "edit", Counterfactual.image_digest.is_not(None)
        )
        return session.scalars(rendered.order_by(Counterfactual.ordinal)).first() or ""


def again(site: Site, counterfactual: str | None = None) -> Replay:
    services = ModelServices(dict.fromkeys(SERVICES, site.url), deadline=20, wait=1)
    site.clients.append(services)
    return replay(site.sessions, site.store, services, counterfactual or first_edit(site))


@pytest.mark.slow
def test_nothing_changed_so_everything_is_equal_and_nothing_is_written(site: Site) -> None:
    with site.sessions() as session:
        ids = list(session.scalars(select(Counterfactual.id)))
        before = session.scalar(select(func.count()).select_from(RecordedCall))
    for counterfactual in ids:  # null arms and refused edits too
        replayed = again(site, counterfactual)
        assert (replayed.differences, replayed.causes) == ([], [])
        assert replayed.equal
        assert replayed.calls == replayed.recorded > 3
    with site.sessions() as session:
        assert session.scalar(select(func.count()).select_from(RecordedCall)) == before


@ON_SQLITE
def test_other_pixels_are_counted_and_the_service_is_named(site: Site) -> None:
    assert isinstance(site.small, Shaken)
    site.small.shaken = True
    replayed = again(site)
    assert not replayed.equal
    (difference,) = replayed.differences
    assert re.search(r"\b2 of 144 pixels\b.*\b3 of 255\b", difference)
    (cause,) = replayed.causes
    assert "diffusion_service" in cause
    assert "/v1/renderings" in cause


@ON_SQLITE
def test_a_server_that_answers_otherwise_is_reported(site: Site) -> None:
    assert isinstance(site.small, Shaken)
    server = Server(url="http://127.0.0.1:9/v1", model="editor", revision="1", licence="none", gigabytes=1)
    site.small.shaken, site.small.weights = True, [server.info("instruct")]
    assert any("diffusion_service" in cause and "server" in cause for cause in again(site).causes)


@ON_SQLITE
def test_other_weights_are_reported(site: Site) -> None:
    assert isinstance(site.small, Shaken)
    weights = [WeightsInfo(role="base", id="sd", revision="a" * 40, dtype="float16", licence="none")]
    plain = ServiceInfo(
        service="", profile="tiny", device="cpu", deterministic=True, revision="1", weights=[], version="0"
    )
    then = [plain.model_copy(update={"service": name}) for name in SERVICES]
    then[2] = then[2].model_copy(update={"weights": weights})
    build_report(site.sessions, site.store, "job", then)
    site.small.shaken, site.small.revision = True, "2"
    replayed = again(site)
    assert replayed.recorded == 0
    assert any("diffusion_service" in cause and f"sd@{'a' * 12}" in cause for cause in replayed.causes)
    assert any("llm_service" in cause for cause in replayed.causes)


@ON_SQLITE
def test_other_parameters_and_seeds_are_reported(site: Site) -> None:
    counterfactual = first_edit(site)
    with site.sessions.begin() as session:
        row = session.get_one(Counterfactual, counterfactual)
        row.seed += 1
        value_at(row.lineage, "parameters")["steps"] = 77
        flag_modified(row, "lineage")
    differences = again(site).differences
    assert any("steps: 77" in text for text in differences)
    assert any(text.startswith("seed: ") for text in differences)


@ON_SQLITE
def test_another_seed_of_the_job_gives_another_image(site: Site) -> None:
    with site.sessions.begin() as session:
        session.get_one(Job, "job").seed = 5
    replayed = again(site)
    assert not replayed.equal
    assert replayed.recorded < replayed.calls
    assert any(text.startswith("seed: ") for text in replayed.differences)
    assert any(text.startswith("image: ") for text in replayed.differences)
    with pytest.raises(NotFound, match="no counterfactual 'x'"):
        again(site, "x")


@pytest.mark.slow
def test_a_composition_is_replayed_with_its_backgrounds(site: Site) -> None:
    with site.sessions() as session:
        digests = list(session.scalars(select(Image.digest).order_by(Image.digest)))[:2]
    backgrounds = [{"digest": digest, "value": f"place {place}"} for place, digest in enumerate(digests)]
    site.add_job("composed", images=1, methods=[{"name": "compose", "parameters": {"backgrounds": backgrounds}}])
    site.worker().step()
    with site.sessions() as session:
        ids = list(session.scalars(select(Counterfactual.id).where(Counterfactual.job_id == "composed")))
    assert len(ids) >= 7
    for counterfactual in ids:
        replayed = again(site, counterfactual)
        assert (replayed.differences, replayed.causes) == ([], [])
