"""The section `[evaluator]` of a profile: the models that judge images, and the operator's models under test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from shared.profiles.judge_audit import JudgeAudit
from shared.profiles.weights import REPOSITORY, MaxBatch, Section, Server, Weights
from shared.schemas.base import KIND, Kind
from shared.schemas.masks import MASKED, MAX_MASK_CLASSES
from shared.schemas.models import Output, Preprocessing
from shared.schemas.questions import ASKED
from shared.schemas.service import WeightsInfo
from shared.seeds import derive_digest

ClassName = Annotated[str, Field(min_length=1, max_length=200)]


class ModelUnderTest(Weights):
    """`[evaluator.models_under_test.ALIAS]`: a model under test that the operator provides, by alias.

    A folder may also hold a `model.onnx`, and a `contrafact.json` that describes it (docs/how-to/models-under-test.md).
    """

    kind: Annotated[Kind, Field(validation_alias=KIND)] = "classification"
    description: str = ""


class TokenPrices(Section):
    """`price_per_million` of an endpoint: of a million tokens of questions with their pictures, and of answers."""

    prompt: Annotated[float, Field(ge=0)]
    completion: Annotated[float, Field(ge=0)]


class ModelEndpoint(Section):
    """`[evaluator.endpoints.ALIAS]`: a model behind an external HTTP server (docs/how-to/models-under-test.md).

    `classes` are its classes in the order of its outputs. `revision` says which weights it runs; change it when they
    change, since recorded predictions are keyed by it. `api_key_variable` names the environment variable with the key.
    `ca_file`: PEM of certificate authorities to trust, too.

    `protocol`: `contrafact` is our own; `huggingface` sends one image at a time, as `inputs`; `kserve` is the Open
    Inference Protocol, whose `url` ends in `/infer`. The latter gets the images as the tensor `input`, by the
    `preprocessing`, and its outputs are read as `output` says; `binary`: as binary tensors, an extension.

    `openai`: a vision-language model behind an OpenAI-compatible server, whose `url` is the API's root. The server's
    `model` is asked `question` about each image with the `classes` as options, in an order that depends on the image
    and on `seed`, and answers in up to `max_tokens`. With kind `vqa` it has no classes: the questions come with
    the images. `price_per_million`: what its tokens cost, in any currency.
    """

    url: Annotated[str, Field(pattern=r"^https?://")]
    kind: Annotated[Kind, Field(validation_alias=KIND)] = "classification"
    classes: Annotated[list[ClassName], Field(max_length=10_000)] = Field(default_factory=list)
    revision: Annotated[str, Field(min_length=1)]
    licence: str
    description: str = ""
    api_key_variable: str = ""
    ca_file: str = ""
    max_batch: MaxBatch = 16
    concurrency: Annotated[int, Field(ge=1, le=256)] = 4
    protocol: Literal["contrafact", "huggingface", "kserve", "openai"] = "contrafact"
    model: str = ""
    question: Annotated[str, Field(min_length=1, max_length=2000)] = "Which of these does the picture show?"
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    max_tokens: Annotated[int, Field(ge=1, le=8192)] = 64
    price_per_million: TokenPrices | None = None
    input: str = ""
    preprocessing: Preprocessing | None = None
    output: Output | None = None
    binary: bool = False

    @model_validator(mode="after")
    def _fits_the_protocol(self) -> Self:
        if self.protocol == "kserve" and not (self.input and self.preprocessing and self.url.endswith("/infer")):
            raise ValueError(
                'protocol = "kserve" needs `input`, the name of the tensor of images, `preprocessing`, and a `url` '
                "that ends in /v2/models/NAME/infer"
            )
        if self.protocol != "kserve" and (self.input or self.preprocessing or self.output or self.binary):
            raise ValueError('input, preprocessing, output and binary belong to protocol = "kserve"')
        if (self.protocol == "openai") != bool(self.model):
            raise ValueError('protocol = "openai" needs `model`, its name at the server; other protocols have none')
        if self.price_per_million is not None and self.protocol != "openai":
            raise ValueError('price_per_million belongs to protocol = "openai"')
        return self

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(
                "classes names a class more than once; name each once, in the order of the model's outputs"
            )
        if bool(self.classes) == (self.kind in ASKED):
            raise ValueError(
                "a model that answers questions has no classes; leave them out"
                if self.classes
                else f"a model of {self.kind} has classes; name them in the order of the model's outputs"
            )
        if self.kind in ASKED and self.protocol != "openai":
            raise ValueError('a model that answers questions is behind protocol = "openai"')
        if self.kind in MASKED and len(self.classes) > MAX_MASK_CLASSES:
            raise ValueError(f"a segmenter has up to {MAX_MASK_CLASSES} classes; name those that your masks have")
        return self

    def info(self, role: str) -> WeightsInfo:
        """The entry of `/v1/info`."""
        revision = self.revision
        if self.preprocessing is not None:  # the answers depend on it, too
            settings = self.preprocessing.model_dump_json() + (self.output or "")
            revision += f" {derive_digest(settings).hex()[:12]}"
        if self.protocol == "openai":
            question_digest = derive_digest(
                self.model, self.question, str(self.temperature), self.seed, self.max_tokens
            )
            revision += f" {question_digest.hex()[:12]}"
        return WeightsInfo(role=role, id=self.url, revision=revision, dtype="server", licence=self.licence)


class ShapeJudge(Weights):
    """`[evaluator.segmenter]`: the segmenter that checks whether shapes stayed in place; never a model under test.

    Its labels match a job's classes by name, or through `names` (a class → labels of this segmenter).
    """

    names: dict[ClassName, list[ClassName]] = Field(default_factory=dict)

    def places(self, labels: Sequence[str], classes: Sequence[str]) -> list[int | None]:
        """The index of each label in a job's classes, None for a label that matches none of them.

        Letter case does not matter, and a label may be a list of synonyms ("car, auto"). `names` takes precedence; of
        the classes that name a label, only those of the job count.
        """
        place_by_name = {name.casefold(): place for place, name in reversed(list(enumerate(classes)))}
        class_of_label = {
            label.casefold(): name
            for name, aliases in self.names.items()
            if name.casefold() in place_by_name
            for label in aliases
        }

        def place(label: str) -> int | None:
            names = [label, *(part.strip() for part in label.split(","))]
            candidates = [
                *(class_of_label[name.casefold()] for name in names if name.casefold() in class_of_label),
                *names,
            ]
            return next(
                (place_by_name[name.casefold()] for name in candidates if name.casefold() in place_by_name), None
            )

        return [place(label) for label in labels]

    def same_as(self, other: Weights) -> bool:
        """Whether both name the same weights."""
        return (self.path, self.hub, self.subfolder) == (other.path, other.hub, other.subfolder)

    def infos(self) -> list[WeightsInfo]:
        """The entries of `/v1/info`: the weights and the mapping of names, since replies depend on both."""
        weights = self.info("segmenter of the checks")
        if not self.names:
            return [weights]
        digest = derive_digest(
            *(word for name, labels in sorted(self.names.items()) for word in (name, *labels, ""))
        ).hex()
        settings = WeightsInfo(
            role="its names", id="[evaluator.segmenter.names]", revision=digest, dtype="", licence=""
        )
        return [weights, settings]


class Domain(Section):
    """`[evaluator.domain]`: the only images that the profile's models know. Jobs of other images are refused.

    `name` says what the images are, `instead` what to use for others. `statistics` is the file that
    `python -m research.photographs.domain` writes; it belongs to the scorer's weights. A relative path is relative to
    the profile's folder. A profile without this table takes all images.
    """

    name: Annotated[str, Field(min_length=1)]
    instead: Annotated[str, Field(min_length=1)]
    statistics: Path

    @field_validator("statistics", mode="after")
    @classmethod
    def _absolute(cls, path: Path, info: ValidationInfo) -> Path:
        return Path(info.context["root"] if info.context else REPOSITORY, path).resolve()


class Evaluator(Section):
    """`[evaluator]`: the scorer of the checks (a CLIP other than the generator's), and the models under test.

    `text_embedder` is a sentence-embedding model in transformers' layout with mean pooling, for the text checks;
    `segmenter` checks the images of segmentation jobs. `second_scorer`, of another family than the scorer, scores every
    rendered image too, for effects under its verdicts. `judge` is a vision-language model behind an OpenAI-compatible
    server, which answers questions on rendered images for jobs that ask it. Its answers count only with a `judge_audit`
    of it. `domain` says which images the profile is for.
    """

    scorer: Weights
    second_scorer: Weights | None = None
    text_embedder: Weights | None = None
    segmenter: ShapeJudge | None = None
    judge: Server | None = None
    judge_audit: JudgeAudit | None = None
    domain: Domain | None = None
    models_under_test: dict[str, ModelUnderTest] = Field(default_factory=dict)
    endpoints: dict[str, ModelEndpoint] = Field(default_factory=dict)
    max_batch: MaxBatch = 16

    @model_validator(mode="after")
    def _scorers_differ(self) -> Self:
        first, second = self.scorer, self.second_scorer
        if second and (first.path, first.hub, first.subfolder) == (second.path, second.hub, second.subfolder):
            raise ValueError("second_scorer is the scorer; name weights of another family, or leave it out")
        return self

    @model_validator(mode="after")
    def _judge_is_not_judged(self) -> Self:
        for alias, model in self.models_under_test.items():
            if self.segmenter is not None and self.segmenter.same_as(model):
                raise ValueError(f"segmenter is the model under test {alias!r}, which cannot be its own judge")
        return self

    @property
    def aliases(self) -> list[str]:
        """The names of all models under test of the operator."""
        return [*self.models_under_test, *self.endpoints]
