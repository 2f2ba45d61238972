"""Types of JSON columns, and of rows before they are written."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NotRequired, TypedDict, TypeVar

from pydantic import ConfigDict, Field
from sqlalchemy import JSON, Dialect, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB

from gateway.methods import JobMethod, read_method
from shared.schemas.base import Contract, JsonObject, Kind
from shared.schemas.boxes import BoxSpec
from shared.schemas.designs import DesignKind, ValueSource
from shared.schemas.jobs import JobState, ProtectedCharacteristics, Purpose
from shared.schemas.masks import MaskSpec
from shared.schemas.metrics import OriginalsCheck
from shared.schemas.questions import QuestionSpec
from shared.schemas.service import ServiceInfo

Message = TypeVar("Message", bound=Contract)
AnswerKind = Literal["review", "mark", "note", "rating"]
SourceImageState = Literal["pending", "leased", "done", "failed", "cancelled"]
JSON_COLUMN = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
ID_PREFIX = (
    24  # characters of a suite's or run's id in the ids of its rows, before a hyphen and the id of the first row
)


class StoredChange(TypedDict):
    """One phrase replaced by another (`gateway.methods.counterfactual.Change`)."""

    factor: str
    from_phrase: str
    to_phrase: str
    from_value: str
    to_value: str


class StoredMethod(TypedDict):
    """A `gateway.methods.JobMethod` in its row."""

    name: str
    parameters: JsonObject


class MethodsColumn(TypeDecorator[list[JobMethod]]):
    """The methods of a job: written as JSON, read back in the types of their methods."""

    impl = JSON_COLUMN
    cache_ok = True

    def process_bind_param(self, value: list[JobMethod] | None, dialect: Dialect) -> list[StoredMethod] | None:
        if value is None:
            return None
        return [{"name": method.name, "parameters": method.parameters.model_dump(mode="json")} for method in value]

    def process_result_value(self, value: list[StoredMethod] | None, dialect: Dialect) -> list[JobMethod] | None:
        return None if value is None else [read_method(**method) for method in value]


class ContractColumn(TypeDecorator[Message]):
    """A contract: written as JSON, and validated when it is read."""

    impl = JSON_COLUMN
    cache_ok = True

    def __init__(self, contract: type[Message], exclude_none: bool = False) -> None:
        super().__init__()
        self.contract = contract
        self.exclude_none = exclude_none

    def process_bind_param(self, value: Message | None, dialect: Dialect) -> JsonObject | None:
        if value is None:
            return None
        return value.model_dump(mode="json", by_alias=True, exclude_none=self.exclude_none)

    def process_result_value(self, value: JsonObject | None, dialect: Dialect) -> Message | None:
        return None if value is None else self.contract.model_validate(value)


class StoredSpec(Contract):
    """The fields of `tables.Job.spec` that are read after the submission; `revision` is that of a run of a suite.

    `outside_domain_note`: what the report says of images outside the profile's domain. `refused`: why nothing was
    rendered, by model under test. `channel_hints`: that a model's channels are exchanged, by model.
    `chosen_scores`: the least score of a box by class that the originals chose, by model.
    """

    model_config = ConfigDict(extra="ignore")

    masks: MaskSpec | None = None
    boxes: BoxSpec | None = None
    questions: QuestionSpec | None = None
    label_map: dict[str, str] = Field(default_factory=dict)
    calibration: str | None = None
    reference_models: list[str] = Field(default_factory=list)
    design: DesignKind = "free"
    budget: int | None = None
    chosen_by: ValueSource | None = None
    outside_domain: bool = False
    protected_characteristics: ProtectedCharacteristics = "refuse"
    outside_domain_note: str = ""
    refused: dict[str, OriginalsCheck] = Field(default_factory=dict)
    channel_hints: dict[str, str] = Field(default_factory=dict)
    chosen_scores: dict[str, dict[str, float]] = Field(default_factory=dict)
    revision: str = ""

    @property
    def reserve(self) -> str:
        """Why nobody should rely on figures of the job's images; "" without a reason."""
        note = self.outside_domain_note
        return note and f"Do not rely on these results: {note}"


class JobColumns(TypedDict):
    """A row of `tables.Job`; a missing column has its default."""

    id: str
    owner_id: str
    state: NotRequired[JobState]
    task_description: str
    kind: Kind
    classes: list[str]
    methods: list[JobMethod]
    models: list[str]
    uploaded_models: dict[str, str]
    profile: str
    seed: int
    spec: JsonObject
    idempotency_key: NotRequired[str | None]
    request_hash: NotRequired[str]
    purpose: NotRequired[Purpose]
    parent_id: NotRequired[str | None]
    finished_at: NotRequired[datetime]


class SourceImageColumns(TypedDict):
    """A row of `tables.SourceImage` before any work on it."""

    id: str
    job_id: str
    position: int
    turn: int
    digest: str | None
    file_name: str
    ground_truth: str | None
    group_name: str | None
    mask_digest: str | None
    mask_classes: list[str] | None
    boxes: list[JsonObject] | None
    questions: list[JsonObject] | None
    object_digest: str | None
    state: SourceImageState
    failure: str


class ModelColumns(TypedDict):
    """A row of `tables.ModelUnderTest`."""

    id: str
    owner_id: str
    name: str
    digest: str
    format: str
    kind: Kind
    classes: list[str]
    bytes: int
    licence: str
    description: str


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
    flipped: bool | None
    scores: dict[str, float]
    detail: JsonObject
    image_digest: str | None


class ServiceColumns(TypedDict):
    """A row of `tables.JobService` without the id of the job."""

    service: str
    revision: str
    info: ServiceInfo
