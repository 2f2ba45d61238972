"""Step 1 of the methods: how several captions become one, and which settings a caption may have."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from gateway.methods.caption import CaptionSampling, join_sentences, write_caption
from gateway.methods.counterfactual import MethodImage, TaskDescription
from gateway.methods.dillema import DillemaParameters
from gateway.methods.lance import LanceParameters, complete_caption
from gateway.methods.schedule import Inputs
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionRequest
from shared.service.endpoints import Endpoint, Reply, Request, Services

SOURCE = MethodImage("source-1", ImagePayload(png=b"pixels"), "bus")
SAMPLED = CaptionSampling(temperature=1.0, top_p=0.9, captions=2, seed=4)


class Captioner(Services):
    """Replies with the given captions, and keeps the request."""

    def __init__(self, captions: Sequence[str]) -> None:
        self.captions = list(captions)
        self.request: CaptionRequest | None = None

    def call(self, endpoint: Endpoint[Request, Reply], request: Request) -> Reply:
        assert isinstance(request, CaptionRequest)
        self.request = request
        return endpoint.reply.model_validate({"captions": self.captions})


def test_sampled_captions_are_the_sentences_of_one() -> None:
    captioner = Captioner(["a red bus\n on a street", "a bus in the rain."])
    caption = write_caption(SOURCE, captioner, DillemaParameters(), SAMPLED)
    assert caption == "a red bus on a street. a bus in the rain."
    assert captioner.request is not None
    assert (captioner.request.captions_per_image, captioner.request.top_p, captioner.request.seed) == (2, 0.9, 4)


def test_equal_and_empty_captions_add_no_sentence() -> None:
    captioner = Captioner(["a red bus", " a red  bus"])
    assert write_caption(SOURCE, captioner, DillemaParameters(), SAMPLED) == "a red bus."
    assert join_sentences(["", "is it a bus?"]) == "is it a bus?"


def test_one_caption_stays_as_it_is() -> None:
    assert write_caption(SOURCE, Captioner([" a red\nbus "]), DillemaParameters()) == "a red bus"


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A street in the rain.", "A photo of a bus. A street in the rain."),
        ("A red bus at a stop.", "A photo of a red bus at a stop."),
        ("An oil painting of a street.", "A picture of a bus. An oil painting of a street."),
        ("A photo of a vehicle on a street.", "A picture of a bus. A photo of a vehicle on a street."),
    ],
)
def test_a_caption_names_its_class_and_one_domain(caption: str, expected: str) -> None:
    """It was "A photo of a picture of a bus. An oil painting of a street."."""
    parameters = LanceParameters(label_aware=True, caption_prompt="", caption_domain="a photo of")
    inputs = Inputs(
        "lance",
        "1",
        SOURCE,
        TaskDescription("classify the vehicle", ("bus", "car")),
        Captioner([caption]),
        parameters,
        0,
    )
    assert complete_caption(inputs, caption) == expected


def test_calls_recorded_before_nucleus_sampling_keep_their_keys() -> None:
    image = ImagePayload(png=b"pixels")
    fields = {"images", "prompt", "min_tokens", "max_tokens", "beams", "temperature", "seed"}
    assert set(CaptionRequest(images=[image]).model_dump(mode="json")) == fields
    new = CaptionRequest(images=[image], temperature=1.0, top_p=0.9, captions_per_image=2)
    assert set(new.model_dump(mode="json")) == fields | {"top_p", "captions_per_image"}
    assert CaptionRequest.model_validate_json(new.model_dump_json()) == new


def test_the_first_of_several_seeds_is_the_requests() -> None:
    seeds = CaptionRequest(images=[ImagePayload(png=b"pixels")], temperature=1.0, captions_per_image=3, seed=9).seeds
    assert seeds[0] == 9
    assert len(set(seeds)) == 3


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"caption_top_p": 0.9}, "set the temperature above 0"),
        ({"captions_per_image": 2}, "set the temperature above 0"),
        ({"caption_temperature": 1.0, "caption_beams": 3}, "beam search does not sample"),
    ],
)
def test_settings_that_exclude_each_other_are_refused_at_submission(
    parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        DillemaParameters.model_validate(parameters)
