"""Types of JSON columns, and the rows that a worker's step writes."""

from __future__ import annotations

from typing import TypedDict

from pydantic import JsonValue, TypeAdapter
from sqlalchemy import JSON, Dialect, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB

from shared.schemas.jobs import MethodChoice

JsonObject = dict[str, JsonValue]
JSON_COLUMN = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")

_METHODS = TypeAdapter(list[MethodChoice])


class StoredChange(TypedDict):
    """One phrase replaced by another (`gateway.methods.counterfactual.Change`)."""

    factor: str
    from_phrase: str
    to_phrase: str
    from_value: str
    to_value: str


StoredShare = TypedDict("StoredShare", {"class": str, "probability": float})


class StoredMethod(TypedDict):
    """A `MethodChoice` in its row."""

    name: str
    parameters: dict[str, JsonValue]


class MethodChoices(TypeDecorator[list[MethodChoice]]):
    """Methods with their parameters. A row is trusted: `plan` checked it when the job was submitted."""

    impl = JSON_COLUMN
    cache_ok = True

    def process_bind_param(self, value: list[MethodChoice] | None, dialect: Dialect) -> list[JsonObject] | None:
        if value is None:
            return None
        return [method.model_dump(mode="json") for method in _METHODS.validate_python(value)]

    def process_result_value(self, value: list[StoredMethod] | None, dialect: Dialect) -> list[MethodChoice] | None:
        return None if value is None else [MethodChoice.model_construct(**choice) for choice in value]


class CounterfactualColumns(TypedDict):
    """A row of `tables.Counterfactual` without the ids of job and source image, and its position."""

    id: str
    method: str
    ordinal: int
    arm: str
    null_ordinal: int | None
    null_check: str | None
    sham_ordinal: int | None
    sham_check: str | None
    seed: int
    changes: list[StoredChange]
    factor: str | None
    from_value: str | None
    to_value: str | None
    caption: str
    new_caption: str
    image_digest: str | None
    control_digest: str | None
    accepted: bool
    check: str
    reason: str
    scores: dict[str, float]
    lineage: JsonObject


class PredictionColumns(TypedDict):
    """A row of `tables.Prediction` without the ids of job and source image."""

    id: str
    counterfactual_id: str | None
    model: str
    predicted: str
    probability: float
    ground_truth_probability: float | None
    rank: int | None
    flipped: bool | None
    top: list[StoredShare]
    map_digest: str | None
    overlaps: dict[str, float] | None
    confusion: list[int] | None


class ServiceColumns(TypedDict):
    """A row of `tables.JobService` without the id of the job."""

    service: str
    revision: str
    info: JsonObject
