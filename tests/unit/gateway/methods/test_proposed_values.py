"""Which values a job may be changed to: no class, nothing protected, nothing that most captions say already."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

import pytest

from gateway.methods.counterfactual import FACTORS, TaskDescription
from gateway.methods.proposed_values import ProposedValues, propose_values
from shared.problems import InvalidInput
from shared.schemas.designs import ChosenValue
from shared.schemas.language import GenerateReply, GenerateRequest
from shared.service.endpoints import Services

TASK = TaskDescription("name the vehicle", ("snow plough", "bus", "car"))
CAPTIONS = ["A red bus by day, in the city.", "A car by day.", "A car on a foggy day.", "A bus in a city, by day."]


class Writer:
    """A language model that writes these values, and keeps the requests."""

    def __init__(self, *values: str) -> None:
        self.requests: list[GenerateRequest] = []
        self._values = [ChosenValue.model_validate(value).model_dump() for value in values]

    def generate(self, request: GenerateRequest) -> GenerateReply:
        self.requests.append(request)
        document = {"values": self._values}
        return GenerateReply(
            value=document, text=json.dumps(document), attempts=1, prompt_tokens=1, completion_tokens=1
        )


def proposed(writer: Writer, declared: Sequence[str] = ()) -> ProposedValues:
    own = [ChosenValue.model_validate(value) for value in declared]
    return propose_values(cast(Services, writer), TASK, CAPTIONS, ("weather", "object", "adjective"), 1, own)


def test_one_question_has_the_task_and_the_captions_and_its_unusable_values_are_left_out() -> None:
    writer = Writer(
        "weather=night", "weather=day", "object=bus stop", "weather=snow", "adjective=elderly man", "domain=sketch",
        "weather=nights", "object=ladder",
    )  # fmt: skip
    values, source, left_out = proposed(writer)
    assert [chosen.value for chosen in values] == ["night", "ladder"]
    assert source == "language model"
    assert {*left_out} == {"day", "bus stop", "snow", "elderly man", "sketch"}
    assert "captions" in left_out["day"]
    (request,) = writer.requests
    assert all(line in request.messages[-1].content for line in (TASK.text, *CAPTIONS))
    assert "background" not in str(request.json_schema)


def test_declared_values_are_ordered_by_what_captions_show_and_ask_nobody() -> None:
    writer = Writer()
    values, source, left_out = proposed(writer, ["weather=fog", "weather=day", "weather=night", "domain=sketch"])
    assert [chosen.value for chosen in values] == ["fog", "night"]  # a quarter of the captions is few
    assert (source, writer.requests, {*left_out}) == ("profile", [], {"day"})
    values, *_ = propose_values(
        cast(Services, writer), TASK, ["A car in fog.", *CAPTIONS], FACTORS, 1,
        [ChosenValue.model_validate(value) for value in ("weather=fog", "weather=night")],
    )  # fmt: skip
    assert [chosen.value for chosen in values] == ["night", "fog"]


def test_without_a_usable_value_the_request_is_refused() -> None:
    with pytest.raises(InvalidInput, match="name `values`"):
        proposed(Writer("object=bus stop"))
