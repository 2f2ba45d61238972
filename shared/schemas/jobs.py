"""The public contract of jobs: what users send to the gateway, and what they read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue, field_validator, model_validator

from shared.characters import refuse_deceptive
from shared.schemas.base import KIND, TASK_DESCRIPTION, Contract, JsonObject, Kind, on_one_line
from shared.schemas.boxes import BoxSpec, TrueBox, TrueBoxes
from shared.schemas.designs import BudgetOption, DesignOption, ValuesOption, repeated_values
from shared.schemas.masks import Label, MaskSpec
from shared.schemas.questions import ImageQuestion, ImageQuestions, QuestionSpec

MAX_TASK_CHARACTERS = 500
MAX_CLASSES = 10_000

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 in 64 lower-case hexadecimal digits")]
Name = Annotated[str, Field(min_length=1, max_length=200)]
GroupName = Annotated[str, Field(min_length=1, max_length=1_000)]
ProtectedCharacteristics = Literal["refuse", "allow"]
JobState = Literal["running", "done", "failed", "cancelled"]
FollowUp = Literal["confirmation", "doses"]
Purpose = Literal["test", "confirmation", "doses", "suite", "run"]
Stage = Literal["starting", "captioning", "proposing", "rendering", "checking", "predicting"]
JobStage = Literal["waiting", "starting", "captioning", "proposing", "rendering", "checking", "predicting", "analysing"]


def _method_by_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class MethodChoice(Contract):
    """A method with the parameters that differ from its defaults; `"dillema"` is short for `{"name": "dillema"}`."""

    name: Name
    parameters: JsonObject = Field(default_factory=dict)

    @field_validator("parameters")
    @classmethod
    def _is_json(cls, value: JsonObject) -> JsonObject:
        try:
            json.dumps(value, allow_nan=False)
        except ValueError as error:
            raise ValueError("a number is infinite, NaN or of thousands of digits; give an ordinary one") from error
        return value


class JobSpec(Contract):
    """The `spec` part of `POST /jobs`: everything about a job but its images. Only `task_description` is required."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"task_description": "classify the vehicle"},
                {
                    "task_description": "classify the vehicle",
                    "methods": [{"name": "dillema", "parameters": {"counterfactuals_per_image": 4}}],
                    "models": ["street-classifier-night-bus"],
                    "label_map": {"automobile": "car"},
                    "seed": 7,
                },
            ]
        }
    )

    task_description: Annotated[
        str,
        Field(
            validation_alias=TASK_DESCRIPTION,
            min_length=3,
            max_length=MAX_TASK_CHARACTERS,
            description="what your model does; `task` is the same",
        ),
        BeforeValidator(on_one_line),
        AfterValidator(refuse_deceptive),
    ]
    methods: Annotated[
        list[Annotated[MethodChoice, BeforeValidator(_method_by_name)]] | None,
        Field(min_length=1, max_length=10, description="default: the profile's"),
    ] = None
    models: Annotated[
        list[Name] | None,
        Field(max_length=20, description="models under test; default: the profile's; an empty list only generates"),
    ] = None
    reference_models: Annotated[
        list[Name],
        Field(
            max_length=10,
            description="models that predict on the same images but are not under test: a weakness in whose cell they "
            "all fail, too, is marked as suspect",
        ),
    ] = Field(default_factory=list)
    classes: Annotated[
        list[Label] | None,
        Field(
            min_length=1, max_length=MAX_CLASSES, description="the label set; default: that of the models under test"
        ),
    ] = None
    label_map: Annotated[
        dict[Label, Label],
        Field(max_length=MAX_CLASSES, description="maps labels of the images to classes of the model"),
    ] = Field(default_factory=dict)
    masks: Annotated[
        MaskSpec | None,
        Field(description="the meaning of the segmentation masks sent with the images, which are the ground truth"),
    ] = None
    boxes: Annotated[
        BoxSpec | None,
        Field(
            description="how the boxes sent with the images, which are the ground truth, are compared with a "
            "detector's; `{}` for the defaults"
        ),
    ] = None
    questions: Annotated[
        QuestionSpec | None,
        Field(
            description="how answers to the questions sent with the images are compared with theirs, which are the "
            "ground truth; `{}` for the defaults"
        ),
    ] = None
    object_masks: Annotated[
        bool,
        Field(
            description="whether masks are sent with the images that are no ground truth: they mark the object (not 0) "
            "that the method `compose` cuts out"
        ),
    ] = False
    ground_truth: Annotated[
        Literal["auto", "none"],
        Field(description="auto: from a manifest or another table, class files or class folders; none: ignore them"),
    ] = "auto"
    group_by: Annotated[
        Literal["image", "folder"],
        Field(
            description="folder: images of one folder belong together, such as frames of one sequence, and count as "
            "one in tests and intervals; a manifest's `group` counts before this"
        ),
    ] = "image"
    calibration: Annotated[
        Name | None,
        Field(
            description="the data set of `GET /profiles` that your images resemble: results are corrected for the "
            "check errors measured on it; default: none, the errors are unknown"
        ),
    ] = None
    purpose: Annotated[
        FollowUp | None,
        Field(
            description="what a job on another job's images is for: `confirmation` tests the findings of `parent` "
            "again with an unrelated editor; `doses` renders its weaknesses at other doses, and undone"
        ),
    ] = None
    parent: Annotated[str | None, Field(max_length=64, description="the other job, if there is a `purpose`")] = None
    design: DesignOption = None
    values: ValuesOption = ()
    budget: BudgetOption = None
    outside_domain: Annotated[
        bool,
        Field(
            description="test images that are not of the kind that the profile's models know, such as photographs with "
            "profile `tiny`; without it, a job of mostly such images is refused"
        ),
    ] = False
    protected_characteristics: Annotated[
        ProtectedCharacteristics,
        Field(
            description="edits that change gender, age, ethnicity, religion, orientation, disability or pregnancy of "
            "people. allow: make them; you answer for their lawful basis and use, and the report counts them by group"
        ),
    ] = "refuse"
    seed: Annotated[int, Field(ge=0, lt=2**53)] = 0

    @model_validator(mode="after")
    def _design_is_whole(self) -> JobSpec:
        if self.design == "free" and (self.values or self.budget is not None):
            name = "values" if self.values else "budget"
            raise ValueError(f"{name}: a free design has none; set `design` to balanced or adaptive")
        if repeated := repeated_values(self.values):
            raise ValueError(f"values names {', '.join(repeated)} more than once; name each once")
        return self

    @model_validator(mode="after")
    def _parent_has_purpose(self) -> JobSpec:
        if (self.parent is None) != (self.purpose is None):
            raise ValueError(
                "a job on another job's images has both a `parent` and a `purpose`; other jobs have neither"
            )
        return self

    @model_validator(mode="after")
    def _no_repetitions(self) -> JobSpec:
        for field, names in (
            ("methods", [method.name for method in self.methods or []]),
            ("models", self.models or []),
            ("reference_models", self.reference_models),
            ("classes", self.classes or []),
        ):
            repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
            if repeated:
                raise ValueError(f"{field} names {', '.join(repeated)} more than once; name each once")
        if self.models == [] and self.reference_models:
            raise ValueError("reference_models: the job tests no model; name `models`, or leave `reference_models` out")
        if self.masks is not None and self.classes is not None:
            raise ValueError("classes: with `masks`, the classes are those of `masks`; leave `classes` out")
        if self.masks is not None and self.object_masks:
            raise ValueError(
                "object_masks: the masks of this job are ground truth by `masks`; leave one of the two out"
            )
        truths = [name for name in ("masks", "boxes", "questions") if getattr(self, name) is not None]
        if len(truths) > 1:
            raise ValueError(
                f"{truths[0]}: the ground truth of this job is {truths[1]} by `{truths[1]}`; leave one of the two out"
            )
        if self.boxes is not None and self.object_masks:
            raise ValueError("object_masks: masks beside `boxes` are not used; leave one of the two out")
        if self.questions is not None and self.classes is not None:
            raise ValueError("classes: with `questions` there are none, but the keys of these; leave `classes` out")
        if truths and self.ground_truth == "none":
            raise ValueError(f"ground_truth is none, but `{truths[0]}` are ground truth; leave one of the two out")
        return self


class ManifestImage(Contract):
    """An image that the caller has uploaded (`PUT /images/{digest}`), at one position of a job."""

    digest: Digest
    label: Label | None = None
    group: Annotated[GroupName | None, Field(description="images of one group count as one in tests")] = None
    name: Annotated[
        str,
        Field(max_length=1_000, description="shown in results; never used as a path"),
        AfterValidator(refuse_deceptive),
    ] = ""
    mask: Annotated[
        Digest | None,
        Field(description="its segmentation mask, uploaded by `PUT /images/{digest}?mask=true`"),
    ] = None
    boxes: Annotated[
        TrueBoxes | None,
        Field(description="its objects, in pixels of the image as `GET /images/{digest}` returns it; [] for none"),
    ] = None

    questions: Annotated[
        ImageQuestions | None, Field(description="what a model is asked about it, with the answers")
    ] = None

    @property
    def true_questions(self) -> tuple[ImageQuestion, ...] | None:
        """Its questions, which do not change."""
        return None if self.questions is None else tuple(self.questions)

    @property
    def true_boxes(self) -> tuple[TrueBox, ...] | None:
        """Its boxes, which do not change."""
        return None if self.boxes is None else tuple(self.boxes)


class JobRequest(JobSpec):
    """`POST /jobs` as JSON: the spec, and a manifest of uploaded images in their order."""

    images: Annotated[list[ManifestImage], Field(min_length=1)]

    @property
    def spec(self) -> JobSpec:
        """The request without its images; its values are valid already."""
        values = {name: getattr(self, name) for name in JobSpec.model_fields}
        return JobSpec.model_construct(self.model_fields_set - {"images"}, **values)


class ImageCounts(Contract):
    """Source images by state."""

    waiting: int = 0
    in_progress: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0


class StageCounts(Contract):
    """Source images in progress by their current stage; `starting`: their first service is not ready yet."""

    starting: int = 0
    captioning: int = 0
    proposing: Annotated[int, Field(description="the language model proposes edits, and texts are checked")] = 0
    rendering: int = 0
    checking: int = 0
    predicting: Annotated[int, Field(description="the models under test see the images")] = 0


class FunnelView(Contract):
    """How many edits of one method were proposed ≥ rendered ≥ accepted, and which checks refused the others."""

    method: str
    proposed: int
    rendered: int
    accepted: int
    rejected: dict[str, int]
    null_arms: int


class ImageFailure(Contract):
    """A source image that could not be processed, and why."""

    position: int
    name: str
    reason: str


class Progress(Contract):
    """Progress of a job. `fraction` (0 to 1) counts images that need no more work.

    `stages` counts the images in progress by their current stage. `stage` is that of the most advanced image: `waiting`
    if none is in progress, `analysing` after the last one, null once the job is over. `funnel` counts the edits of the
    finished images.
    """

    images: ImageCounts
    fraction: float
    stage: JobStage | None = None
    stages: StageCounts = Field(default_factory=StageCounts)
    funnel: list[FunnelView]
    held_up: Annotated[str, Field(description="why the work waits, while a service fails; else empty")] = ""


class JobView(Contract):
    """A job as `GET /jobs` lists it."""

    id: str
    state: JobState
    failure: Annotated[str, Field(description="why the job failed; empty otherwise")]
    task_description: Annotated[str, Field(validation_alias=TASK_DESCRIPTION)]
    kind: Annotated[Kind, Field(description="what the models under test do")] = "classification"
    methods: list[MethodChoice]
    models: list[str]
    classes: list[str]
    profile: str
    seed: int
    purpose: Annotated[
        Purpose, Field(description="`run`: of a suite. Jobs but for `test` are on the rows of `parent`")
    ] = "test"
    parent: str | None = None
    created_at: datetime
    finished_at: datetime | None


class JobDetail(JobView):
    """A job with its progress. `labelled` counts the source images that have a ground truth."""

    images: int
    labelled: int
    progress: Progress
    failures: Annotated[list[ImageFailure], Field(description="the first 20 failed images")]
    report: Annotated[str | None, Field(description="path of the HTML report, once there is one")]


class JobsPage(Contract):
    """`GET /jobs`, newest first. `next` is the cursor of the following page, or null."""

    jobs: list[JobView]
    next: str | None


class EventView(Contract):
    """The data of one server-sent event; its id is `sequence`, its event type `kind`."""

    sequence: int
    kind: str
    payload: Mapping[str, JsonValue]
    at: datetime


class MethodInfo(Contract):
    """A method as `GET /methods` lists it; `parameters` is the JSON schema of its parameters with their defaults."""

    name: str
    summary: str
    paper: str
    default: Annotated[bool, Field(description="whether a job that names no method runs it")]
    parameters: JsonObject


class MethodsReply(Contract):
    """`GET /methods`."""

    methods: list[MethodInfo]


class ModelView(Contract):
    """A model under test as `GET /models` lists it."""

    name: str
    kind: Annotated[Kind, Field(validation_alias=KIND)]
    classes: list[str]
    weights: str
    revision: str
    licence: str
    description: str
    uploaded: Annotated[bool, Field(description="whether you uploaded it; the others are the installation's")] = False
    default: Annotated[bool, Field(description="whether a job that names no model tests it")]
    id: Annotated[str | None, Field(description="id of an uploaded model, for `DELETE /models/{id}`")] = None
    format: Annotated[str | None, Field(description="format of an uploaded model: safetensors or onnx")] = None
    bytes: Annotated[int | None, Field(description="size of an uploaded model")] = None
    created_at: datetime | None = None
    quarantine: Annotated[
        str | None, Field(description="why an uploaded model is not run; send the same files again to lift it")
    ] = None


class ModelsListing(Contract):
    """`GET /models`."""

    models: list[ModelView]
