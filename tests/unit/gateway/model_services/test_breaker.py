"""The circuit breaker: which failures count against an image, and when a service is not called."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest

from gateway.model_services.breaker import FREE_RELEASES, OPEN_AFTER, Breaker, ServiceFailing, Subject
from gateway.model_services.clients import BrokenOff
from shared.problems import DependencyFailed, DeviceFailed, InvalidInput, ModelStopped, OutOfMemory, Problem

RENDER = "diffusion_service at /v1/renderings"
NO_PAUSE = 0.0


def breaker(pause: float = NO_PAUSE, longest: float = 3_600.0) -> Breaker:
    return Breaker(pause, longest)


def outcome(owner: Breaker, image: str, problem: Problem | None = None, pixels: int = 100) -> type[Problem] | None:
    """What becomes of one call for an image that ends with `problem`."""
    try:
        with owner.call(RENDER, Subject(image, pixels)):
            if problem is not None:
                raise problem
    except Problem as verdict:
        return type(verdict)
    return None


def test_an_image_that_fails_while_others_succeed_is_charged_each_time() -> None:
    owner = breaker()
    for _ in range(5):
        assert outcome(owner, "bad", BrokenOff("500")) is BrokenOff
        assert outcome(owner, "good") is None


def test_an_image_that_is_alone_is_charged_each_time() -> None:
    owner = breaker()
    assert [outcome(owner, "only", BrokenOff("500")) for _ in range(5)] == [BrokenOff] * 5


@pytest.mark.parametrize(
    "problem", [BrokenOff("500"), DeviceFailed("CUDA error"), OutOfMemory("8 GB"), DependencyFailed("?")]
)
def test_a_service_that_fails_for_everybody_costs_each_image_one_failure_at_most(problem: Problem) -> None:
    owner = breaker()
    first = [outcome(owner, name, problem) for name in "abc"]
    later = [outcome(owner, name, problem) for name in "abcdef" * 20]
    assert ServiceFailing not in first
    assert [later.count(kind) for kind in set(later) - {ServiceFailing}] in ([], [3])  # d, e and f for the first time
    assert outcome(owner, "a") is None
    assert outcome(owner, "b", BrokenOff("500")) is BrokenOff


def test_a_service_that_fails_for_everybody_is_called_once_per_pause() -> None:
    owner = breaker(pause=1_000.0)
    called: list[str] = []
    for name in "abcdefgh":
        with suppress(Problem), owner.call(RENDER, Subject(name, 100)):
            called.append(name)
            raise BrokenOff("500")
    assert called == ["a", "b", "c"]
    assert len(called) == OPEN_AFTER


def test_calls_that_a_service_breaks_off_together_lengthen_the_pause_once() -> None:
    owner = breaker(pause=2.0)
    with suppress(Problem), ExitStack() as under_way:
        for name in "abcdefgh":
            under_way.enter_context(owner.call(RENDER, Subject(name, 100)))
        raise BrokenOff("killed")
    with pytest.raises(ServiceFailing) as raised, owner.call(RENDER, Subject("later", 100)):
        pass
    assert raised.value.retry_after is not None
    assert raised.value.retry_after <= 2.0


def test_a_held_image_names_what_fails_and_waits_longer_each_time() -> None:
    owner = breaker(pause=2.0)
    waits = []
    for name in "abab":
        with pytest.raises(Problem) as raised, owner.call(RENDER, Subject(name, 100)):
            raise BrokenOff("CUDA error")
        waits.append(raised.value.retry_after)
        detail = raised.value.detail
    assert RENDER in detail
    assert "CUDA error" in detail
    assert waits == [None, None, 4.0, 4.0]


def test_a_quarantined_model_is_not_waited_for() -> None:
    owner = breaker(pause=1_000.0)
    with suppress(ModelStopped), owner.call(RENDER, Subject("d", 100)):
        for name in "abc":
            assert outcome(owner, name, DependencyFailed("killed from outside")) is DependencyFailed
        assert outcome(owner, "e") is ServiceFailing
        raise ModelStopped("the model is quarantined")
    quarantined = ModelStopped("the model is quarantined")
    assert [outcome(owner, name, quarantined) for name in "abce"] == [ModelStopped] * 4


def test_other_endpoints_are_not_held() -> None:
    owner = breaker(pause=1_000.0)
    for name in "abc":
        assert outcome(owner, name, BrokenOff("500")) is BrokenOff
    assert outcome(owner, "d") is ServiceFailing
    with owner.call("evaluator_service at /v1/structure", Subject("d", 100)):
        pass


@pytest.mark.parametrize(("other", "verdict"), [(100, OutOfMemory), (99, BrokenOff)])
def test_memory_is_the_image_s_fault_only_where_another_of_its_size_succeeds(
    other: int, verdict: type[Problem]
) -> None:
    owner = breaker()
    assert outcome(owner, "large", OutOfMemory("8 GB"), pixels=100) is BrokenOff
    assert outcome(owner, "other", pixels=other) is None
    assert outcome(owner, "large", OutOfMemory("8 GB"), pixels=100) is verdict


def test_a_service_that_answers_but_cannot_is_tried_some_times_for_nothing() -> None:
    owner = breaker()
    outcomes = [outcome(owner, "only", DependencyFailed("the model at http://m failed")) for _ in range(9)]
    assert outcomes == [DependencyFailed] * FREE_RELEASES + [BrokenOff] * (9 - FREE_RELEASES)


def test_a_refusal_is_the_image_s_own_and_says_nothing_of_the_service() -> None:
    owner = breaker(pause=1_000.0)
    assert [outcome(owner, name, InvalidInput("no")) for name in "abcdabcd"] == [InvalidInput] * 8


def test_after_the_longest_hold_failures_count_again() -> None:
    owner = breaker(longest=0.0)
    assert [outcome(owner, name, BrokenOff("500")) for name in "abcdabcd"] == [BrokenOff] * 8
