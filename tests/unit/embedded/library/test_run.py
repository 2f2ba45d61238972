"""Tests in several threads of one process, and the profile of a test that names none."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import MISSING, fields
from typing import Any

import pytest
from sklearn.datasets import load_sample_images

import contrafact
from contrafact.testing import InProcessOptions
from embedded.library.datasets import LABELS, read_dataset
from embedded.library.run import RUNNING, choose_profile
from shared.media.images import Pixels
from tests.support.threads import background
from tests.support.work_site import wait_for
from tinyworld.objects.demo import demo_scenes
from tinyworld.objects.render import render


def test_a_test_that_waits_for_another_thread_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """It was silent for as long as the other test ran."""
    written, errors = [""], list[str]()

    def waits() -> None:
        try:
            contrafact.test(list, [], task="name it")
        except ValueError as error:
            errors.append(str(error))

    def has_said() -> bool:
        written.append(capsys.readouterr().err)
        return "Another thread" in "".join(written)

    with ExitStack() as stack, RUNNING:
        stack.enter_context(background(waits))
        wait_for(has_said)
        assert not errors
    assert "empty" in errors[0]


PHOTOGRAPHS = [(image, None) for image in load_sample_images().images]
DRAWINGS = [(render(scene).image, None) for scene in demo_scenes(["bus", "car"], 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pictures", "changed", "profile"),
    [
        (PHOTOGRAPHS, {}, "photographs"),
        (PHOTOGRAPHS, {"methods": ["compose", "corruptions"]}, "photographs"),
        (PHOTOGRAPHS, {"methods": ["dillema"]}, "tiny"),  # is refused there, with what to do
        (PHOTOGRAPHS, {"factors": ["weather"]}, "tiny"),
        (PHOTOGRAPHS, {"profile": "modern"}, "modern"),
        (DRAWINGS, {}, "tiny"),
        (DRAWINGS, {"methods": ["compose"]}, "tiny"),
    ],
)
def test_photographs_get_the_profile_that_moves_their_objects(
    pictures: list[tuple[Pixels, None]], changed: dict[str, Any], profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen, methods = choose_profile(
        read_dataset(pictures, None, None, None, set(), LABELS), in_process_options(**changed)
    )
    assert chosen == profile
    assert methods == changed.get("methods", ["compose"] if profile == "photographs" else None)
    assert ("compose" in capsys.readouterr().err) == (profile == "photographs")


def in_process_options(**changed: Any) -> InProcessOptions:
    names = (field.name for field in fields(InProcessOptions) if field.default is MISSING)
    return InProcessOptions(**{**dict.fromkeys(names), "outside_domain": False, "task": "name it", **changed})
