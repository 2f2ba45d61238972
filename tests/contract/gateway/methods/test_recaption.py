"""The check `recaption` with the shipped captioner behind its service: it rejects other classes, not other times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from caption_service.app import create_app
from gateway.methods.checks import recaption_images
from gateway.methods.counterfactual import MethodImage, TaskDescription
from gateway.model_services.clients import ModelServices
from shared.media.images import encode
from shared.schemas.base import ImagePayload
from shared.service.settings import ServiceSettings
from tests.support.listening import listen_as
from tinyworld.objects.render import render
from tinyworld.objects.world import CLASSES, Scene, sample_scene

TASK = TaskDescription("name the vehicle, house or bird", CLASSES)


@pytest.fixture(scope="module")
def services() -> Iterator[ModelServices]:
    with listen_as("caption_service", create_app(ServiceSettings(profile="tiny", device="cpu", threads=1))) as services:
        yield services


def scene(label: str, time: str = "day", index: int = 3) -> Scene:
    return sample_scene("calibration", index).changed(
        label=label, time=time, style="photo", weather="clear", size="large", companion="none"
    )


def picture(scene: Scene) -> ImagePayload:
    return ImagePayload(png=encode(np.ascontiguousarray(render(scene).image)))


def named_shares(services: ModelServices, truth: str, source: Scene, *images: Scene) -> list[float | None]:
    source_image = MethodImage("source", picture(source), truth)
    recaptions = recaption_images(services, source_image, TASK, [picture(image) for image in images])
    return [None if recaption is None else recaption.named for recaption in recaptions]


@pytest.mark.parametrize("label", ["bus", "boat", "bird"])
def test_the_class_is_named_by_night_too_and_another_class_is_not_it(services: ModelServices, label: str) -> None:
    other = "car" if label != "bird" else "house"
    shown = (scene(label, "night"), scene(label, "day"), scene(other), scene(other, "night"))
    assert named_shares(services, label, scene(label), *shown) == [1.0, 1.0, 0.0, 0.0]


def test_sources_that_show_another_class_than_their_label_are_not_checked(services: ModelServices) -> None:
    assert named_shares(services, "bus", scene("boat"), scene("boat", "night"), scene("bus")) == [None, None]
