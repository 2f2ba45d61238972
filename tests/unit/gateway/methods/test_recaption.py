"""The check `recaption`: the words it looks for, when it is skipped, and its requests."""

from __future__ import annotations

import pytest

from gateway.methods.checks import NewCaption, recaption_images
from gateway.methods.counterfactual import MethodImage, TaskDescription
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionReply, CaptionRequest

CAPTIONS = {
    b"source": "A man beside two buses. A dog sleeps.",
    b"empty": "A street at night.",
    b"same": "One bus at night, and a cyclist.",
    b"car": "A car at night.",
}
CLASSES = TaskDescription("name it", ("bus", "car"))
PIXELS = TaskDescription("segment it", mask_classes=("street", "dog", "pedestrian"), things=("dog", "pedestrian"))


class Captioner:
    """It says what is to be seen; it notes what it is asked."""

    def __init__(self) -> None:
        self.requests: list[list[bytes]] = []

    def caption(self, request: CaptionRequest) -> CaptionReply:
        assert (request.beams, request.temperature, request.prompt) == (1, 0, ""), "greedy, unprompted"
        self.requests.append([image.png for image in request.images])
        return CaptionReply(captions=[CAPTIONS[image.png] for image in request.images])


def named(task: TaskDescription, truth: str | None, *images: bytes, source: bytes = b"source") -> list[float | None]:
    shown = [ImagePayload(png=image) for image in images]
    recaptions = recaption_images(Captioner(), MethodImage("image", ImagePayload(png=source), truth), task, shown)
    return [None if recaption is None else recaption.named for recaption in recaptions]


def test_the_class_must_be_named_again_by_stem() -> None:
    assert named(CLASSES, "bus", b"same", b"car", b"empty") == [1.0, 0.0, 0.0]
    assert named(CLASSES, "person", b"same", b"car") == [1.0, 0.0], "with the words that captions have for people"


def test_of_things_the_share_that_the_sources_caption_named() -> None:
    assert named(PIXELS, None, b"same", b"source", b"car") == [0.5, 1.0, 0.0]


@pytest.mark.parametrize(
    ("task", "truth", "source", "requests"),
    [
        (CLASSES, "bus", b"empty", [[b"empty"]]),
        (CLASSES, None, b"source", []),
        (PIXELS, None, b"empty", [[b"empty"]]),
        (TaskDescription("segment it", mask_classes=("street",)), None, b"source", []),
    ],
)
def test_sources_whose_caption_lacks_the_class_are_not_checked(
    task: TaskDescription, truth: str | None, source: bytes, requests: list[list[bytes]]
) -> None:
    captioner = Captioner()
    image = ImagePayload(png=b"same")
    assert (
        recaption_images(captioner, MethodImage("i", ImagePayload(png=source), truth), task, [image] * 3) == [None] * 3
    )
    assert captioner.requests == requests


def test_images_are_captioned_together() -> None:
    captioner = Captioner()
    images = [ImagePayload(png=image) for image in (b"same", b"car")]
    recaptions = recaption_images(captioner, MethodImage("i", ImagePayload(png=b"source"), "bus"), CLASSES, images)
    assert captioner.requests == [[b"source"], [b"same", b"car"]]
    assert recaptions == [NewCaption(CAPTIONS[b"same"], 1.0), NewCaption(CAPTIONS[b"car"], 0.0)]
