"""The contents of an export: a note on the whole, and a record of each image, the same in every format."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue

from shared.characters import refuse_deceptive
from shared.schemas.base import TASK_DESCRIPTION, Contract, Kind
from shared.schemas.boxes import Detected, TrueBox
from shared.schemas.findings import FindingView
from shared.schemas.jobs import MethodChoice
from shared.schemas.masks import MaskSpec
from shared.schemas.questions import AnsweredQuestion, ImageQuestion
from shared.schemas.results import Arm, ChangeView
from shared.schemas.service import ServiceInfo

DigitalSource = Literal[
    "trainedAlgorithmicMedia",  # created by a generator
    "compositeWithTrainedAlgorithmicMedia",  # an image edited by a generator
    "composite",  # put together from images, without a generator
    "algorithmicallyEnhanced",  # an image altered by an algorithm, its content unchanged
]  # IPTC's terms, cv.iptc.org/newscodes/digitalsourcetype
FormatName = Literal["folders", "huggingface", "coco", "fiftyone"]

MASKS = "masks/"
NOTE_NAME = "contrafact.json"
ORIGINALS = "original/"


class ExportedPrediction(Contract):
    """The prediction of one model under test; probabilities in 0 … 1, `rank` 1 is correct, as in the results."""

    model: str
    predicted: str
    probability: float
    ground_truth_probability: float | None
    rank: int | None
    flipped: bool | None
    detected: Annotated[
        Detected | None,
        Field(description="what a detector makes of the image's boxes", exclude_if=lambda detected: detected is None),
    ] = None
    answers: Annotated[
        list[AnsweredQuestion] | None,
        Field(description="to the questions about it", exclude_if=lambda answers: answers is None),
    ] = None


class ExportedImage(Contract):
    """One image with its provenance. The fields of an edit are empty for originals; null arms have only its seed.

    `group` is the id of the source image, equal for an original and everything made of it; `null_id` names the null arm
    of a counterfactual; `lineage_digest` is the SHA-256 of the lineage (prompts, replies, parameters) that
    `GET /jobs/{job}/results/{id}` shows.
    """

    id: str
    group: str
    arm: Arm
    position: int
    source_name: str
    label: str | None
    image: Annotated[str, Field(description="digest of the canonical pixels")]
    width: int
    height: int
    source_digest: Annotated[str, Field(description="digest of the source image's canonical pixels")] = ""
    digital_source_type: Annotated[
        DigitalSource | Literal[""],
        Field(description="IPTC's term for how a generated image came to be; empty for originals"),
    ] = ""
    mask: Annotated[str | None, Field(description="digest of the source image's mask, which applies here too")] = None
    boxes: Annotated[
        list[TrueBox] | None,
        Field(description="of the source image, which apply here too", exclude_if=lambda boxes: boxes is None),
    ] = None
    questions: Annotated[
        list[ImageQuestion] | None,
        Field(description="about the source image, and this one", exclude_if=lambda questions: questions is None),
    ] = None
    method: str = ""
    ordinal: int = 0
    null_id: str | None = None
    seed: int | None = None
    factor: str | None = None
    from_value: str | None = None
    to_value: str | None = None
    changes: list[ChangeView] = Field(default_factory=list)
    caption: str = ""
    new_caption: str = ""
    verdict: Literal["accepted", "rejected"] | None = None
    check: str = ""
    reason: str = ""
    scores: dict[str, float] = Field(default_factory=dict)
    lineage_digest: str = ""
    predictions: list[ExportedPrediction] = Field(default_factory=list)


class Release(Contract):
    """What a published suite says of itself. `licence`: an SPDX id, or `other` with the terms in `attribution`."""

    licence: Annotated[
        str, Field(min_length=2, max_length=100, pattern=r"^[A-Za-z0-9.+-]+$", description="SPDX id, such as CC-BY-4.0")
    ]
    attribution: Annotated[
        str,
        Field(max_length=2_000, description="whose source images these are, and on what terms"),
        AfterValidator(refuse_deceptive),
    ] = ""
    title: Annotated[str, Field(max_length=200, description="default: the suite's name")] = ""


class ExportNote(Contract):
    """`contrafact.json` of an archive: its content, its job, the selection of images and their provenance.

    `POST /jobs` recognises an export by this file: it uses the images in `original/` with the labels of
    `manifest.jsonl`.
    """

    contrafact_export: Literal[1] = 1
    format: FormatName
    job: str
    task_description: Annotated[str, Field(validation_alias=TASK_DESCRIPTION)]
    methods: list[MethodChoice]
    models: list[str]
    kind: Kind = "classification"
    classes: list[str]
    masks: Annotated[MaskSpec | None, Field(description="how to read the masks, as `masks` of a job's spec")] = None
    profile: str
    seed: int
    filters: dict[str, JsonValue]
    services: dict[str, ServiceInfo]
    versions: dict[str, str]
    release: Annotated[
        Release | None, Field(description="of a published suite", exclude_if=lambda release: release is None)
    ] = None
    findings: Annotated[list[FindingView], Field(description="of the job's report, with status and note")] = Field(
        default_factory=list
    )
