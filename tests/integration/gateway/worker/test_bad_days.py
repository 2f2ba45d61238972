"""Faults of services: they hang, fail, lack memory or answer nonsense.

Each test states what a job comes to: nothing that passes by itself costs an image an attempt; what an image may have
caused counts, and leaves it out by name in the end; the others go on.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from fastapi import Response
from sqlalchemy import select

import gateway.database.table_base
import gateway.model_services.clients
from gateway.database.tables import Counterfactual, Job
from gateway.jobs.jobs import progress
from gateway.queue import job_states
from gateway.results.job_rows import load_rows
from gateway.results.measure import measure
from shared.problems import (
    BEGINS,
    DependencyFailed,
    DeviceFailed,
    GenerationFailed,
    OutOfMemory,
    Problem,
    UnusableReply,
)
from shared.service.problem_replies import problem_reply
from tests.support.bad_days import HASTY, Answer, Day
from tests.support.databases import ON_SQLITE
from tests.support.work_site import wait_for


def first(number: int, wrong: Response) -> Answer:
    """The first requests are answered wrongly."""
    waiting = [wrong] * number
    return lambda body: waiting.pop() if waiting else None


def about(day: Day, position: int, wrong: Response) -> Answer:
    """Requests that hold one of the source images are answered wrongly, always."""
    digest = day.site.images()[position].digest
    png = base64.b64encode(day.site.store.get(f"images/{str(digest)[:2]}/{digest}.png"))
    return lambda body: wrong if png in body else None


@pytest.mark.slow
@ON_SQLITE
def test_a_hanging_service_costs_a_lease_and_no_attempt(day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.model_services.clients, "GRACE_SECONDS", 0.2)
    day.site.add_job(images=1)
    day.site.small.gate.clear()
    day.worker(deadline=2, pause=600).step()
    (image,) = day.site.images()
    assert (image.state, image.attempts, image.lost_leases) == ("pending", 0, 1)
    assert "/v1/captions" in image.failure
    day.site.small.gate.set()
    day.resume()
    (image,) = day.until_done(day.worker())
    assert (image.state, image.attempts, image.failure) == ("done", 0, "")


@ON_SQLITE
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Response(b"Internal Server Error", 500), "failed at /v1/captions: a service answered 500"),
        (Response(b"<html>not found</html>", 404), "a service answered 404"),
        (Response(b"\x00\xff garbage", 200), "CaptionReply"),
        (Response(b'{"captions": 3}', 200), "CaptionReply"),
        (Response(b"", 200), "CaptionReply"),
    ],
    ids=["500", "404", "bytes", "another shape", "nothing"],
)
def test_malformed_replies_cost_a_lease_and_no_attempt(day: Day, wrong: Response, words: str) -> None:
    day.site.add_job(images=1)
    day.answer = first(1, wrong)
    worker = day.worker(pause=600)
    worker.step()
    (image,) = day.site.images()
    assert (image.state, image.attempts, image.lost_leases) == ("pending", 0, 1)
    assert words in image.failure
    day.resume()
    (image,) = day.until_done(worker)
    assert (image.attempts, image.lost_leases) == (0, 1)


@ON_SQLITE
@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_in_front_of_an_absent_service_costs_nothing(day: Day, status: int) -> None:
    day.site.add_job(images=1)
    day.answer = first(1, Response(b"<html>bad gateway</html>", status))
    (image,) = day.until_done(day.worker())
    assert (image.attempts, image.lost_leases, image.failure) == (0, 0, "")


@pytest.mark.slow
def test_an_image_that_breaks_its_service_fails_with_a_reason_and_the_others_finish(day: Day) -> None:
    day.site.add_job(images=3)
    day.answer = about(day, 1, problem_reply(Problem("a bug that one picture wakes")))
    images = day.until_done(day.worker())
    assert [image.state for image in images] == ["done", "failed", "done"]
    assert (images[1].attempts, images[1].lost_leases) == (0, HASTY.max_lost_leases)
    assert "a bug that one picture wakes" in images[1].failure
    day.answer = lambda body: None  # the service was mended
    with day.site.sessions.begin() as session:
        assert job_states.retry_job(session, "job") == 1
    images = day.until_done(day.worker())
    assert [image.state for image in images] == ["done"] * 3


@ON_SQLITE
def test_an_image_that_lacks_memory_where_others_of_its_size_do_not_fails_after_three_attempts(day: Day) -> None:
    day.site.add_job(images=2)
    day.answer = about(day, 0, problem_reply(OutOfMemory("one image needs 12 GB, and 8 GB are free")))
    images = day.until_done(day.worker())
    assert [(image.state, image.attempts) for image in images] == [("failed", 3), ("done", 0)]
    assert images[0].lost_leases <= 1  # the first time, when nobody knew
    assert "needs 12 GB" in images[0].failure


@ON_SQLITE
@pytest.mark.parametrize(
    "trouble",
    [OutOfMemory("somebody else's training"), DeviceFailed("CUDA error: unspecified launch failure"), Problem("dead")],
    ids=lambda trouble: trouble.name,
)
def test_a_device_that_fails_for_every_image_pauses_the_job_and_costs_no_attempt(day: Day, trouble: Problem) -> None:
    day.site.add_job(images=5)
    day.answer = lambda body: problem_reply(trouble) if b"renderings" in body else None
    worker = day.worker()
    for _ in range(3 * HASTY.max_lost_leases):
        worker.step()
        day.resume()
    images = day.site.images()
    assert {(image.state, image.attempts) for image in images} == {("pending", 0)}
    # One each; the first image may pay again where the processor is so busy that it is due before another has failed.
    assert sum(image.lost_leases for image in images) <= len(images) + 2
    with day.site.sessions() as session:
        held_up = progress(session, session.get_one(Job, "job")).held_up
    assert "diffusion_service" in held_up
    assert trouble.detail in held_up
    day.answer = lambda body: None  # restarted
    images = day.until_done(worker)
    assert {(image.state, image.attempts) for image in images} == {("done", 0)}


@ON_SQLITE
def test_a_language_model_without_valid_replies_refuses_edits_and_no_image(day: Day) -> None:
    day.site.add_job(images=2)
    questions: list[bytes] = []

    def no_keywords(body: bytes) -> Response | None:
        if b"List the phrases of the caption" not in body:
            return None
        questions.append(body)
        return problem_reply(GenerationFailed("no valid reply in 2 attempts"))

    day.answer = no_keywords
    images = day.until_done(day.worker(), "failed")
    assert {(image.state, image.attempts) for image in images} == {("done", 0)}
    assert len(questions) == len(set(questions)) == 4, "each asked again once with another seed, to the same fault"
    with day.site.sessions() as session:
        edits = session.execute(select(Counterfactual.arm, Counterfactual.check, Counterfactual.image_digest)).all()
        failure = session.get_one(Job, "job").failure
    assert [tuple(edit) for edit in edits] == [("edit", "invalid reply", None)] * 2
    sentence = "All 2 proposed edits were refused for one reason, invalid reply: no valid reply in 2 attempts."
    assert failure == f"Nothing was compared. {sentence}"
    page = day.site.report()
    assert page.index(sentence) < page.index("<main")


@ON_SQLITE
@pytest.mark.slow
def test_a_question_is_asked_with_other_seeds_until_its_reply_parses(day: Day) -> None:
    """DILLEMA, III-A: the first unusable reply ended its edits."""
    day.site.add_job(images=2)
    questions: list[dict[str, Any]] = []

    def parses_at_last(body: bytes) -> Response | None:
        if b"List the phrases of the caption" not in body:
            return None
        questions.append(json.loads(body))
        reply = len(questions) % 3
        return problem_reply(GenerationFailed(f"no valid reply: {reply}")) if reply else None

    day.answer = parses_at_last
    images = day.until_done(day.worker())
    assert {(image.state, image.attempts) for image in images} == {("done", 0)}
    assert [question["temperature"] for question in questions] == [0, 0.7, 0.7] * 2, "a greedy model repeats itself"
    assert len({question["seed"] for question in questions}) == 6
    with day.site.sessions() as session:
        edits = session.scalars(select(Counterfactual).where(Counterfactual.arm == "edit")).all()
        (funnel,) = measure(load_rows(session, "job")).funnels
    assert "invalid reply" not in {edit.check for edit in edits}
    assert funnel.asked_again == funnel.proposed == len(edits) > 0


@ON_SQLITE
def test_captions_that_are_none_fail_the_job_without_a_wait(day: Day) -> None:
    """Reasoning became the caption, was rendered and accepted; a null became an error of pydantic."""
    day.site.add_job(images=2)
    replies = iter(range(100))

    def thinks(body: bytes) -> Response | None:
        if b"renderings" in body or b"messages" in body:
            return None
        return problem_reply(UnusableReply(f"http://v/v1 gave no caption{BEGINS}'<think> {next(replies)}'"))

    day.answer = thinks
    images = day.until_done(day.worker(), "failed")
    assert {(image.state, image.attempts) for image in images} == {("failed", HASTY.max_attempts)}
    with day.site.sessions() as session:
        assert "(2 of 2): http://v/v1 gave no caption" in session.get_one(Job, "job").failure


@ON_SQLITE
def test_a_service_that_cannot_do_one_image_does_not_make_the_job_endless(day: Day) -> None:
    day.site.add_job(images=2)
    day.answer = about(day, 0, problem_reply(DependencyFailed("the model at http://model failed 5 times: status 500")))
    worker = day.worker()

    def over() -> bool:
        worker.step()
        day.resume()
        return day.site.state() == "done"

    wait_for(over)
    images = day.site.images()
    assert [image.state for image in images] == ["failed", "done"]
    assert (images[0].attempts, images[0].lost_leases) == (0, HASTY.max_lost_leases)
    assert "status 500" in images[0].failure
