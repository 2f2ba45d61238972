"""Housekeeping removes what is unused for long enough, and nothing else, on SQLite and Postgres."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import delete, func, select, update

from gateway.database.sessions import Sessions, database_now
from gateway.database.tables import (
    LOCAL_OWNER,
    Chore,
    Counterfactual,
    Image,
    Job,
    JobBackground,
    OwnedImage,
    RecordedCall,
    Report,
    Upload,
)
from gateway.intake.sources import IntakeLimits, KeptImage, keep_image
from gateway.model_services.image_shelf import ImageShelf
from gateway.operations import housekeeping
from gateway.operations.housekeeping import (
    LISTING,
    MOST_ERRORS,
    NAME,
    Graces,
    Removed,
    housekeeping_loop,
    is_due,
    run_housekeeping,
)
from gateway.settings import Settings
from gateway.storage import images
from shared.media.images import encode
from shared.media.storage import ObjectStore, call_key, image_key
from shared.problems import DependencyFailed
from shared.schemas.jobs import ManifestImage
from tests.support.threads import background, run_together
from tests.support.work_site import Site, wait_for

AT_ONCE = Graces(0, 0)
A_DAY = Graces(24 * 3600, 30 * 24 * 3600)
LIMITS = IntakeLimits(image_bytes=100_000, image_pixels=10_000, images=20, archive_bytes=1_000_000)


def picture(seed: int = 0) -> bytes:
    return encode(np.random.default_rng(seed).integers(0, 255, (12, 12, 3)).astype(np.uint8))


def keys(site: Site) -> set[str]:
    return {item.key for item in site.store.iterate()}


def count(site: Site, *tables: type[object]) -> list[int]:
    with site.sessions() as session:
        return [session.scalar(select(func.count()).select_from(table)) or 0 for table in tables]


def send(site: Site, data: bytes) -> KeptImage:
    """What `PUT /images/{digest}` does."""
    image = keep_image(images.ProtectedStore(site.sessions, site.store), data, LIMITS)
    with site.sessions.begin() as session:
        images.record_images(session, LOCAL_OWNER, [image])
    return image


@contextmanager
def housekeeping_running(site: Site, settings: Settings) -> Iterator[None]:
    """The loop of housekeeping, in a thread that ends with the block."""
    stopping = threading.Event()
    with background(partial(housekeeping_loop, site.sessions, site.store, settings, stopping), release=stopping.set):
        yield


def grow_older(site: Site, seconds: float) -> None:
    """As if so much time had passed since images were noted."""
    with site.sessions.begin() as session:
        noted = update(Image).where(Image.unreferenced_since.is_not(None))
        session.execute(
            noted.values(unreferenced_since=database_now(-seconds)).execution_options(synchronize_session=False)
        )


@pytest.mark.slow
def test_the_objects_of_a_job_are_kept_until_it_is_deleted(site: Site) -> None:
    site.add_job(images=2)
    site.worker().step()
    before = keys(site)
    assert site.state() == "done"
    assert run_housekeeping(site.sessions, site.store, AT_ONCE).images == 0
    assert keys(site) == before
    with site.sessions.begin() as session:
        session.execute(delete(Job))
        session.execute(delete(Report))
    removed = run_housekeeping(site.sessions, site.store, AT_ONCE)
    assert (removed.images, removed.reports) == (len(before) - 1, 1)
    assert removed.recorded_calls > 0
    assert keys(site) == set()
    assert count(site, Image, OwnedImage, RecordedCall) == [0, 0, 0]


def test_the_backgrounds_of_a_job_are_kept_until_it_is_deleted(site: Site) -> None:
    site.add_job(images=1)
    background = send(site, picture(7))
    with site.sessions.begin() as session:
        session.execute(delete(Upload))
        session.add(JobBackground(job_id="job", digest=background.digest))
    run_housekeeping(site.sessions, site.store, AT_ONCE)
    assert image_key(background.digest) in keys(site)
    with site.sessions.begin() as session:
        session.execute(delete(Job))
    run_housekeeping(site.sessions, site.store, AT_ONCE)
    assert image_key(background.digest) not in keys(site)


@pytest.mark.slow
def test_with_a_grace_period_objects_are_noted_first_and_removed_later(site: Site) -> None:
    site.add_job(images=1)
    site.worker().step()
    with site.sessions.begin() as session:
        session.execute(delete(Job))
    there = keys(site)
    for _ in range(2):
        assert run_housekeeping(site.sessions, site.store, A_DAY).images == 0
    assert keys(site) == there
    grow_older(site, 24 * 3600 + 1)
    assert run_housekeeping(site.sessions, site.store, A_DAY).images == len(there) - 1  # not the new report


@pytest.mark.slow
def test_objects_shared_with_another_job_are_kept(site: Site) -> None:
    site.add_job("first", images=2)
    site.add_job("second", images=1)  # the same first picture, so the same counterfactuals
    worker = site.worker()
    for _ in range(3):  # each step works until it finds nothing
        worker.step()
    assert (site.state("first"), site.state("second")) == ("done", "done")
    with site.sessions.begin() as session:
        session.execute(delete(Job).where(Job.id == "first"))
    run_housekeeping(site.sessions, site.store, AT_ONCE)
    with site.sessions() as session:
        digests = set(session.scalars(select(Counterfactual.image_digest).where(Counterfactual.job_id == "second")))
        digests |= set(session.scalars(select(Counterfactual.control_digest)))
        report = session.get_one(Report, "second").object_key
    expected = {image_key(digest) for digest in digests if digest} | {image_key(str(site.images("second")[0].digest))}
    assert keys(site) == expected | {report}
    calls = site.small.calls.copy()
    site.add_job("third", images=1)
    worker.step()
    assert site.small.calls == calls, "the calls about a source image stay as long as a job has it"


def test_uploads_are_kept_for_weeks(site: Site) -> None:
    site.add_job("other", images=1)
    image = send(site, picture(1))
    assert run_housekeeping(site.sessions, site.store, Graces(0, 3600)).uploads == 0
    assert site.store.exists(image_key(image.digest))
    assert run_housekeeping(site.sessions, site.store, AT_ONCE).uploads == 1
    assert not site.store.exists(image_key(image.digest))
    assert count(site, Upload) == [0]
    again = send(site, picture(1))
    assert site.store.exists(image_key(again.digest))


def test_objects_without_a_row_are_removed_and_broken_ones_too(site: Site) -> None:
    site.add_job(images=1)
    shelf = ImageShelf(site.store, site.sessions, LOCAL_OWNER)
    orphan = shelf.keep(picture(2))
    site.store.put(image_key(orphan), picture(2))  # its writer died before the row
    site.store.put("images/ab/" + "ab" * 32 + ".png", b"no picture")
    site.store.put("images/stray.png", picture(3))
    site.store.put("reports/gone.html", b"<!doctype html>")
    site.store.put("weights/model.safetensors", b"somebody else's")
    assert run_housekeeping(site.sessions, site.store, A_DAY).found_objects == 0, "they may belong to work under way"
    removed = run_housekeeping(site.sessions, site.store, AT_ONCE)
    assert (removed.found_objects, removed.images, removed.reports) == (3, 1, 1)
    assert keys(site) == {image_key(str(site.images()[0].digest)), "weights/model.safetensors"}


@pytest.mark.slow
def test_vectors_are_kept_as_long_as_their_recorded_call(site: Site) -> None:
    site.add_job(images=1)
    site.worker().step()
    with site.sessions() as session:
        call = session.scalars(select(RecordedCall.key)).first()
    site.store.put(call_key(str(call)), b"vectors")
    site.store.put(call_key("0" * 64), b"left by a crash")
    assert run_housekeeping(site.sessions, site.store, A_DAY).vectors == 0
    assert run_housekeeping(site.sessions, site.store, AT_ONCE, listing=False).vectors == 0
    assert run_housekeeping(site.sessions, site.store, AT_ONCE).vectors == 1
    assert site.store.exists(call_key(str(call)))
    with site.sessions.begin() as session:
        session.execute(delete(Job))
    assert run_housekeeping(site.sessions, site.store, AT_ONCE).vectors == 1
    assert keys(site) == set()


def test_the_object_store_is_listed_less_often(site: Site) -> None:
    site.store.put("reports/gone.html", b"<!doctype html>")
    settings = Settings(housekeeping_seconds=0.1, grace_seconds=0.001)
    with site.sessions.begin() as session:
        assert is_due(session, 3600, LISTING)  # somebody has just begun

    def begun() -> datetime:
        with site.sessions() as session:
            row = session.get(Chore, NAME)
        return row.begun_at if row else datetime(1970, 1, 1, tzinfo=UTC)

    with housekeeping_running(site, settings):
        first = begun()
        wait_for(lambda: begun() > first)
        second = begun()
        wait_for(lambda: begun() > second)  # so the first of the two is over
    assert keys(site) == {"reports/gone.html"}


def test_an_image_in_use_is_kept(site: Site) -> None:
    site.add_job("other", images=1)
    image = send(site, picture(4))
    with site.sessions.begin() as session:
        session.execute(delete(Upload))
    run_housekeeping(site.sessions, site.store, A_DAY)
    grow_older(site, 48 * 3600)
    with site.sessions.begin() as session:  # a manifest that names it, just before housekeeping comes again
        assert images.from_manifest(session, LOCAL_OWNER, [ManifestImage(digest=image.digest)])
    assert run_housekeeping(site.sessions, site.store, A_DAY).images == 0
    grow_older(site, 48 * 3600)
    shelf = ImageShelf(site.store, site.sessions, LOCAL_OWNER)
    shelf.save({shelf.keep(picture(4))})
    assert run_housekeeping(site.sessions, site.store, A_DAY).images == 0
    assert site.store.exists(image_key(image.digest))


def test_an_image_removed_during_a_step_is_written_again(site: Site) -> None:
    site.add_job("other", images=1)
    shelf = ImageShelf(site.store, site.sessions, LOCAL_OWNER)
    digest = shelf.keep(picture(6))
    shelf.save({digest})
    assert run_housekeeping(site.sessions, site.store, AT_ONCE).images == 1
    shelf.save({digest})
    assert site.store.exists(image_key(digest))
    assert count(site, Image) == [2]


@pytest.mark.slow
def test_housekeeping_and_senders_race_without_harm(site: Site) -> None:
    """The same few images are written again and again, and given up for a while, while two housekeepers run."""
    site.add_job("other", images=1)
    stop = threading.Event()
    wrong: list[str] = []
    a_moment = Graces(0.5, 0.5)

    def sender(seed: int) -> None:
        pauses = random.Random(seed)
        for number in range(10):
            shelf = ImageShelf(site.store, site.sessions, LOCAL_OWNER)
            digest = shelf.keep(picture(100 + (seed + number) % 3))
            began = time.monotonic()
            shelf.save({digest})
            there = site.store.exists(image_key(digest))
            if not there and time.monotonic() - began < a_moment.unreferenced:  # later it may have gone again
                wrong.append(digest)
            stop.wait(pauses.uniform(0.0, 1.2))

    def keeper() -> None:
        while not stop.is_set():
            run_housekeeping(site.sessions, site.store, a_moment)

    with background(keeper, keeper, release=stop.set):
        run_together(*(partial(sender, seed) for seed in range(3)))
    assert wrong == []
    with site.sessions() as session:
        rows = set(session.scalars(select(Image.digest)))
    assert {image_key(digest) for digest in rows} == keys(site)


def test_an_object_that_cannot_be_removed_leaves_the_others_to_be_removed(site: Site, tmp_path: Path) -> None:
    (tmp_path / "objects" / "reports").mkdir()
    (tmp_path / "objects" / "reports" / "no key.html").write_bytes(b"put there by somebody else")
    for key in ("reports/gone.html", f"models/ab/{'ab' * 32}-m.tar", "repairs/r/order.json"):
        site.store.put(key, b"left by a crash")
    removed = run_housekeeping(site.sessions, site.store, AT_ONCE)
    assert (removed.errors, removed.reports, removed.models, removed.repairs) == (1, 1, 1, 1)
    assert keys(site) == {"reports/no key.html"}


def test_housekeeping_gives_up_when_the_store_is_unavailable(site: Site, tmp_path: Path) -> None:
    (tmp_path / "objects" / "reports").mkdir()
    for number in range(MOST_ERRORS + 5):
        (tmp_path / "objects" / "reports" / f"no key {number}.html").write_bytes(b"")
    with pytest.raises(DependencyFailed):
        run_housekeeping(site.sessions, site.store, AT_ONCE)


def test_a_grant_without_a_repair_is_removed_at_once_so_that_its_trainer_stops(site: Site) -> None:
    for name in ("grant.json", "order.json"):
        site.store.put(f"repairs/r/{name}", b"{}")
    assert run_housekeeping(site.sessions, site.store, A_DAY).repairs == 1
    assert keys(site) == {"repairs/r/order.json"}


def test_a_bug_does_not_end_the_thread(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Graces] = []

    def broken(
        sessions: Sessions, store: ObjectStore, graces: Graces, go_on: Callable[[], bool], listing: bool
    ) -> Removed:
        runs.append(graces)
        raise ZeroDivisionError

    monkeypatch.setattr(housekeeping, "run_housekeeping", broken)
    with housekeeping_running(site, Settings(housekeeping_seconds=0.01)):
        wait_for(lambda: len(runs) > 1)


def test_only_one_worker_does_housekeeping_when_it_is_due(site: Site) -> None:
    with site.sessions.begin() as session:
        assert is_due(session, 3600)
    with site.sessions.begin() as session:
        assert not is_due(session, 3600)
        assert is_due(session, 0)


def test_a_worker_does_housekeeping_by_itself(site: Site) -> None:
    site.store.put("reports/gone.html", b"<!doctype html>")
    with housekeeping_running(site, Settings(housekeeping_seconds=0.1, grace_seconds=0.001)):
        wait_for(lambda: keys(site) == set())
