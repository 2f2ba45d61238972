"""Jobs, images and pages of counterfactuals, on SQLite and Postgres."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.auth.keys import Limits, admit, create_key, ensure_local_owner, hash_of, revoke_key
from gateway.database.events import add_event, events_after
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import LOCAL_OWNER, Counterfactual, Image, Job, OwnedImage, Prediction, SourceImage
from gateway.intake.sources import KeptImage, SourceFile
from gateway.jobs import jobs
from gateway.jobs.choices import Plan
from gateway.methods import read_method
from gateway.operations.deletion import remove_rows
from gateway.queue import leases
from gateway.report.build import build_report
from gateway.results import counterfactuals
from gateway.results.counterfactuals import Listing
from gateway.storage import images
from shared.media.storage import DirectoryStore
from shared.problems import Conflict, InvalidInput, NotFound
from shared.schemas.jobs import JobSpec, ManifestImage, Progress, Stage, StageCounts
from tests.support.drawn_job import add_drawn_job
from tests.support.threads import run_together

PLAN = Plan([read_method("dillema", {})], [], ["car"])


@pytest.fixture(autouse=True)
def _owner(sessions: Sessions) -> None:
    with sessions.begin() as session:
        ensure_local_owner(session)
        ensure_local_owner(session)  # every start says so


def stored_image(number: int) -> KeptImage:
    return KeptImage(f"{number:064x}", f"{number + 1000:064x}", 8, 8, 100)


def order(*numbers: int, key: str | None = None, seed: int = 0) -> jobs.Order:
    sources = [SourceFile(f"{number}.png", "car", stored_image(number)) for number in numbers]
    return jobs.Order(JobSpec(task_description="classify", seed=seed), PLAN, "tiny", sources, key)


def create(sessions: Sessions, order: jobs.Order) -> tuple[str, bool]:
    with sessions.begin() as session:
        images.record_images(session, LOCAL_OWNER, [source.image for source in order.sources if source.image])
        return jobs.create(session, LOCAL_OWNER, order)


def finish(session: Session, lease: leases.Lease) -> bool:
    """What a worker does at the end of an image, without results."""
    if not leases.finish(session, lease):
        return False
    add_event(session, lease.job_id, "image", {"state": "done"}, {"done": 1})
    return True


def test_equal_images_at_two_positions_are_two_source_images(sessions: Sessions) -> None:
    job, created = create(sessions, order(1, 2, 1))
    assert created
    with reading(sessions) as session:
        detail = jobs.show(session, LOCAL_OWNER, job)
        rows = session.get_one(Job, job).source_images
        assert (detail.images, detail.labelled, detail.progress.images.waiting) == (3, 3, 3)
        assert len({row.id for row in rows}) == 3
        assert session.scalar(select(func.count()).select_from(Image)) == 2
        assert [event.kind for event in events_after(session, job, 0, 10)] == ["job"]
        with pytest.raises(NotFound):
            jobs.show(session, "somebody else", job)


def test_a_job_of_class_folders_takes_the_classes_in_turn(sessions: Sessions) -> None:
    """Folders come one after the other; a job that is looked at early, or cancelled, has tried every class."""
    sources = [
        SourceFile(f"{n}.png", label, stored_image(n)) for n, label in enumerate(("bus", "bus", "bus", "car", "car"))
    ]
    create(sessions, jobs.Order(JobSpec(task_description="classify"), PLAN, "tiny", sources))
    with sessions.begin() as session:
        claimed = [leases.claim(session, 60.0) for _ in sources]
        positions = [session.get_one(SourceImage, lease.id).position for lease in claimed if lease]
    assert positions == [0, 3, 1, 4, 2]


def test_racing_requests_with_one_key_make_one_job(sessions: Sessions) -> None:
    created_jobs: list[tuple[str, bool]] = []
    start = threading.Barrier(6)

    def race() -> None:
        start.wait()
        created_jobs.append(create(sessions, order(1, 2, 3, key="k")))

    run_together(*[race] * 6)
    assert len(created_jobs) == 6
    assert len({job for job, _ in created_jobs}) == 1
    assert sum(created for _, created in created_jobs) == 1
    with reading(sessions) as session:
        assert session.scalar(select(func.count()).select_from(SourceImage)) == 3
    with pytest.raises(Conflict):
        create(sessions, order(1, 2, 3, key="k", seed=1))


def progress_of(sessions: Sessions, job: str) -> Progress:
    with reading(sessions) as session:
        return jobs.show(session, LOCAL_OWNER, job).progress


def test_progress_names_the_service_that_the_work_waits_for(sessions: Sessions) -> None:
    job, _ = create(sessions, order(1, 2))

    assert progress_of(sessions, job).held_up == ""
    with sessions.begin() as session:
        lease = leases.claim(session, 60)
        assert lease is not None
        assert leases.release(session, lease, "caption_service cannot be reached", delay=0)
    assert "caption_service" in progress_of(sessions, job).held_up
    with sessions.begin() as session:
        lease = leases.claim(session, 60)
        assert lease is not None
        assert leases.finish(session, lease)
    assert progress_of(sessions, job).held_up == ""


def test_progress_says_at_which_stage_the_images_are(sessions: Sessions) -> None:
    job, _ = create(sessions, order(1, 2, 3))

    assert (progress_of(sessions, job).stage, progress_of(sessions, job).stages) == ("waiting", StageCounts())
    issued: list[leases.Lease] = []
    stages: tuple[Stage, ...] = ("starting", "rendering", "captioning")
    for stage in stages:
        with sessions.begin() as session:
            lease = leases.claim(session, 60)
            assert lease is not None
            issued.append(lease)
            if stage != "starting":
                leases.note_stage(session, lease, stage)
    assert progress_of(sessions, job).stages == StageCounts(starting=1, rendering=1, captioning=1)
    assert progress_of(sessions, job).stage == "rendering"
    for number, lease in enumerate(issued):
        with sessions.begin() as session:
            ended = leases.release(session, lease, "", delay=0) if number == 1 else finish(session, lease)
            assert ended
            leases.note_stage(session, lease, "predicting")  # too late: the lease has ended
    assert (progress_of(sessions, job).stage, progress_of(sessions, job).stages) == ("waiting", StageCounts())
    with sessions.begin() as session:
        again = leases.claim(session, 60)
        assert again is not None
    assert progress_of(sessions, job).stages == StageCounts(starting=1)  # not the stage at which it was given back
    with sessions.begin() as session:
        assert finish(session, again)
    assert progress_of(sessions, job).stage == "analysing"
    with sessions.begin() as session:
        lease = leases.claim_analysis(session, 60)
        assert lease is not None
        assert leases.finish(session, lease)
    assert progress_of(sessions, job).stage is None


def test_pages_of_jobs_hold_each_once(sessions: Sessions) -> None:
    created = [create(sessions, order(number))[0] for number in range(5)]
    listed: list[str] = []
    cursor: str | None = None
    while True:
        with reading(sessions) as session:
            page = jobs.listing(session, LOCAL_OWNER, cursor, 2)
        listed += [job.id for job in page.jobs]
        cursor = page.next
        if cursor is None:
            break
    assert listed == created[::-1]


@pytest.mark.slow
def test_deleting_leaves_nothing_but_images(sessions: Sessions, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "objects")
    job = add_drawn_job(sessions, store, per_class=1)
    build_report(sessions, store, job, [])
    with sessions.begin() as session:
        report = jobs.remove(session, LOCAL_OWNER, job)
    assert report is not None
    with reading(sessions) as session, pytest.raises(NotFound):
        jobs.show(session, LOCAL_OWNER, job)
    remove_rows(sessions, lambda _: False)
    with reading(sessions) as session:
        for table in (Job, SourceImage, Counterfactual, Prediction):
            assert session.scalar(select(func.count()).select_from(table)) == 0
        assert session.scalar(select(func.count()).select_from(OwnedImage))


def test_a_manifest_names_uploads_or_pixels(sessions: Sessions) -> None:
    with sessions.begin() as session:
        images.record_images(session, LOCAL_OWNER, [stored_image(1), stored_image(2), stored_image(1)])
        images.record_images(session, LOCAL_OWNER, [stored_image(1)])
    entries = [
        ManifestImage(digest=stored_image(1).upload, label="car"),
        ManifestImage(digest=stored_image(2).digest, name="b"),
    ]
    with reading(sessions) as session:
        first, second = images.from_manifest(session, LOCAL_OWNER, entries)
        assert (first.image, first.label) == (stored_image(1), "car")
        assert second.image is not None
        assert (second.image.digest, second.name) == (stored_image(2).digest, "b")
        with pytest.raises(InvalidInput) as refusal:
            images.from_manifest(session, LOCAL_OWNER, [*entries, ManifestImage(digest=stored_image(3).digest)])
        assert refusal.value.members["missing"] == [stored_image(3).digest]
        with pytest.raises(NotFound):
            images.find(session, "somebody else", stored_image(1).digest)


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"factor": "weather", "value": "night"},
        {"class": "bus", "verdict": "accepted"},
        {"flipped": True, "model": "night-bus"},
        {"check": "structure"},
        {"from": "day"},
    ],
)
def test_pages_of_counterfactuals_hold_each_once(sessions: Sessions, tmp_path: Path, filters: dict[str, Any]) -> None:
    job = add_drawn_job(sessions, DirectoryStore(tmp_path / "objects"), per_class=2)
    listing = Listing.model_validate(filters)
    with reading(sessions) as session:
        whole = counterfactuals.results_page(session, LOCAL_OWNER, job, listing, None, 200).counterfactuals
        listed: list[str] = []
        cursor: str | None = None
        while True:
            page = counterfactuals.results_page(session, LOCAL_OWNER, job, listing, cursor, 3)
            listed += [view.id for view in page.counterfactuals]
            cursor = page.next
            if cursor is None:
                break
        funnel = jobs.show(session, LOCAL_OWNER, job).progress.funnel[0]
    assert listed == [view.id for view in whole]
    if not filters:
        assert funnel.proposed == len(whole)
        assert funnel.accepted == sum(view.verdict.accepted for view in whole)


def test_keys_belong_to_owners(sessions: Sessions) -> None:
    with sessions.begin() as session:
        first, second, other = (create_key(session, name) for name in ("ann", "ann", "ben"))

    def owner(key: str) -> str | None:
        with sessions.begin() as session:
            caller = admit(session, hash_of(key), Limits(6_000, 1_000_000, 1_000_000))
        return None if caller is None else caller.owner

    assert owner(first) == owner(second)
    assert owner(other) not in (None, owner(first))
    assert owner("cf_guess") is None
    with sessions.begin() as session:
        assert revoke_key(session, first)
        assert not revoke_key(session, first)
    assert owner(first) is None
    assert owner(second) is not None
