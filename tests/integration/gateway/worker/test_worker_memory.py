"""What a step keeps in memory: not all images of its source image at once."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import pytest
from sqlalchemy import select

from gateway.database.sessions import reading
from gateway.database.tables import Image
from gateway.methods.corruptions import ALL
from gateway.model_services import image_shelf
from gateway.model_services.clients import ModelServices
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.queue import leases
from gateway.worker import image_step, image_work
from shared.schemas.diffusion import SEVERITIES
from shared.schemas.service import SERVICES
from tests.support.work_site import Site

SIZE = (384, 512)
SAVED_BYTES = 2 * 1024**2
IMAGES_PER_REQUEST = 4


@pytest.fixture
def traced() -> Iterator[None]:
    gc.freeze()  # what earlier tests left makes each collection take a second
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.unfreeze()


@pytest.mark.slow
def test_a_step_drops_images_that_are_saved(site: Site, traced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_shelf, "SAVED_BYTES", SAVED_BYTES)
    monkeypatch.setattr(image_work, "PIXELS_PER_REQUEST", IMAGES_PER_REQUEST * SIZE[0] * SIZE[1])
    site.add_job(images=1, methods=[{"name": "corruptions", "parameters": {"corruptions": list(ALL)}}], size=SIZE)
    with site.sessions.begin() as session:
        lease = leases.claim(session, 60)
    assert lease is not None
    work = image_step.load(site.sessions, lease)
    assert work is not None
    shelf = ImageShelf(site.store, site.sessions, work.owner_id)
    clients = ModelServices(dict.fromkeys(SERVICES, site.url))
    site.clients.append(clients)
    allocated: list[int] = []

    def note() -> None:
        gc.collect()  # messages of HTTP refer to themselves
        allocated.append(tracemalloc.get_traced_memory()[0])

    services = RecordedServices(clients, site.sessions, shelf, work.owner_id, note)
    result = image_step.call(work, services, shelf, lambda key: site.store.link(key, 60))
    note()
    digests = [row["image_digest"] for row in result.counterfactuals]
    assert len(digests) == len(ALL) * len(SEVERITIES) + 1
    assert len(result.predictions) == 2 * (len(digests) + 1)
    with reading(site.sessions) as session:
        sizes = list(session.scalars(select(Image.bytes)))
    images_at_once = 2 * len(SEVERITIES) + IMAGES_PER_REQUEST  # two replies of a way to corrupt, one request
    most = SAVED_BYTES + images_at_once * max(sizes)
    assert sum(sizes) > 1.5 * most, "all images together would be noticed"
    assert max(allocated) - allocated[0] < most
