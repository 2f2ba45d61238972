"""Profiles: the weights that each service loads, and the defaults and thresholds that belong to those weights."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from shared.problems import validation_sentence
from shared.schemas.base import KIND, Kind
from shared.schemas.designs import USUAL_VALUES, ChosenValues
from shared.schemas.diffusion import ControlKind
from shared.schemas.masks import MAX_MASK_CLASSES
from shared.schemas.results import CheckErrors, Judges
from shared.schemas.service import WeightsInfo
from shared.seeds import derive_digest
from shared.weights import REPOSITORY, Section, Server, Weights

SHIPPED = Path(__file__).parent / "profiles"
MaxBatch = Annotated[int, Field(ge=1, le=256)]
Channel = Annotated[int, Field(ge=0, le=255)]
Colour = tuple[Channel, Channel, Channel]
ClassName = Annotated[str, Field(min_length=1, max_length=200)]
SafetensorsFile = Annotated[str, Field(pattern=r"^[^*?\[\]]+\.safetensors$")]


def _check_source(engine: str, weights: Weights | None, server: Server | None, *, remote: bool) -> None:
    required, excluded = ("server", "weights") if remote else ("weights", "server")
    if (server is None) == remote or (weights is None) != remote:
        raise ValueError(f"engine {engine!r} needs a table `{required}` and no `{excluded}`")


class About(Section):
    """`[profile]`"""

    name: str
    description: str


class Caption(Section):
    """`[caption]`: `blip2` and `image-text-to-text` load `weights` in process, `openai` asks a vision `server`.

    `instruction` is the chat model's prompt for requests without one.
    """

    engine: Literal["blip2", "image-text-to-text", "openai"]
    weights: Weights | None = None
    server: Server | None = None
    max_batch: MaxBatch = 8
    instruction: str = "Describe this image in two to four sentences."

    @model_validator(mode="after")
    def _source(self) -> Self:
        _check_source(self.engine, self.weights, self.server, remote=self.engine == "openai")
        return self


class Adapter(Weights):
    """`[language.adapter]`: a LoRA adapter (peft's layout) over `[language.weights]`, as `train_perturber` writes it.

    `merged` adds it to the weights on loading, so that it costs no time afterwards; false keeps it separate, so that
    weights in half precision are not rounded again.
    """

    merged: bool = True


class Language(Section):
    """`[language]`: `transformers` loads `weights` in process, `openai` and `tgi` ask a `server`.

    `masked_words` is a masked language model (a BERT), always in process; without it the service fills no gaps.
    """

    engine: Literal["transformers", "openai", "tgi"]
    weights: Weights | None = None
    adapter: Adapter | None = None
    server: Server | None = None
    max_batch: MaxBatch = 8
    masked_words: Weights | None = None

    @model_validator(mode="after")
    def _source(self) -> Self:
        _check_source(self.engine, self.weights, self.server, remote=self.engine != "transformers")
        if self.adapter is not None and self.weights is None:
            raise ValueError(f"engine {self.engine!r} loads no adapter; let the server load it, and drop `adapter`")
        return self


class Lora(Weights):
    """`[diffusion.few_step.lora]`: a LoRA of the base's UNet, in diffusers' layout or kohya's; one safetensors file.

    It is merged into a second copy of the UNet on loading: `gigabytes` are those of the copy. `scale` multiplies it.
    """

    file: SafetensorsFile
    scale: Annotated[float, Field(gt=0, le=2)] = 1.0


class MergedLora(Lora):
    """One of `[[diffusion.loras]]`: merged into the UNet, so it takes no memory; `gigabytes` are those of the file."""


class WholeUNet(Weights):
    """`[diffusion.unet]`, `[diffusion.few_step.unet]`: a UNet of the base's layout, a folder in the Hub's layout.

    Or one safetensors `file`, with keys as diffusers writes them. It comes without a configuration: the base's applies.
    """

    file: SafetensorsFile | None = None


class FewStep(Section):
    """`[diffusion.few_step]`: weights distilled to few steps, as a whole `unet` of the base's layout or as a `lora`.

    They render requests with exactly these steps and guidance; all other requests use the base's weights. A guidance
    of 1 means none. `scheduler` and `scheduler_options` override the base's scheduler and its configuration. With
    `default`, jobs that name neither steps nor guidance get these; without it, those of `[methods.dillema]`.
    """

    steps: Annotated[int, Field(ge=1, le=200)]
    guidance: Annotated[float, Field(ge=1, le=30)] = 1.0
    default: bool = True
    scheduler: str | None = None
    scheduler_options: dict[str, JsonValue] = Field(default_factory=dict)
    unet: WholeUNet | None = None
    lora: Lora | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.unet is None) == (self.lora is None):
            raise ValueError("few_step needs either `unet` (a whole UNet) or `lora` (a LoRA of the base's), not both")
        return self

    @property
    def weights(self) -> WholeUNet | Lora:
        """The weights that are loaded in addition to the base."""
        weights = self.unet or self.lora
        assert weights is not None
        return weights

    def infos(self) -> list[WeightsInfo]:
        """The entries of `/v1/info`: the weights and their settings, since images depend on both."""
        kind = "unet" if self.lora is None else "lora"
        file = (self.weights.file or "") if self.lora is None else f"{self.lora.file} {self.lora.scale}"
        options = json.dumps(self.scheduler_options, sort_keys=True)
        use = derive_digest(self.steps, str(self.guidance), self.scheduler or "", options, file).hex()
        settings = WeightsInfo(role="few-step settings", id="[diffusion.few_step]", revision=use, dtype="", licence="")
        return [self.weights.info(f"few-step {kind}"), settings]


class Diffusion(Section):
    """`[diffusion]`: Stable Diffusion's layout, a ControlNet per kind of control, a segmenter for `object` regions.

    `vae` replaces `base`'s own autoencoder. `keep_labels` are the segmenter's labels that must not change.
    `palette` colours its labels for the ControlNet of kind `segmentation`: "ade20k" by their order, or label → red,
    green, blue. `depth` estimates depth for the ControlNet of kind `depth`; its output is larger where things are
    nearer.
    `unet` replaces `base`'s UNet, and `loras` are merged into it in their order, for all methods. `scheduler` overrides
    the weights' own class and `scheduler_options` its configuration, for renderings (inversion always uses DDIM's
    steps). `few_step` is a second UNet that needs fewer steps.
    """

    base: Weights
    unet: WholeUNet | None = None
    loras: list[MergedLora] = Field(default_factory=list)
    vae: Weights | None = None
    controlnets: Annotated[dict[ControlKind, Weights], Field(min_length=1)]
    segmenter: Weights | None = None
    keep_labels: list[str] = Field(default_factory=list)
    palette: Literal["ade20k"] | dict[str, Colour] | None = None
    depth: Weights | None = None
    scheduler: str | None = None
    scheduler_options: dict[str, JsonValue] = Field(default_factory=dict)
    few_step: FewStep | None = None
    max_batch: MaxBatch = 4

    @model_validator(mode="after")
    def _all_that_controls_need(self) -> Self:
        if "segmentation" in self.controlnets and (self.segmenter is None or self.palette is None):
            raise ValueError("a ControlNet for segmentation needs `segmenter` and `palette`; name them, or drop it")
        if "depth" in self.controlnets and self.depth is None:
            raise ValueError("a ControlNet for depth needs `depth`, weights that estimate it; name them, or drop it")
        return self

    @model_validator(mode="after")
    def _one_arithmetic(self) -> Self:
        computed_with_base = {f"controlnets.{kind}": weights for kind, weights in self.controlnets.items()}
        if self.few_step is not None:
            computed_with_base["few_step"] = self.few_step.weights
        if self.unet is not None:
            computed_with_base["unet"] = self.unet
        computed_with_base |= {f"loras[{place}]": lora for place, lora in enumerate(self.loras)}
        for name, weights in computed_with_base.items():
            if weights.dtype != self.base.dtype:
                raise ValueError(
                    f"{name} has dtype {weights.dtype!r} and base {self.base.dtype!r}; give both the same, since they "
                    "are computed together"
                )
        return self

    def infos(self) -> list[WeightsInfo]:
        """The entries of `/v1/info` for the UNet and how it is sampled: the base, what changes it, and the settings."""
        changes = [self.unet.info("unet")] if self.unet else []
        changes += [lora.info("lora") for lora in self.loras]
        if self.scheduler:
            changes.append(WeightsInfo(role="scheduler", id=self.scheduler, revision="", dtype="", licence=""))
        if self.loras or self.scheduler_options or (self.unet and self.unet.file):
            files = [f"{lora.file} {lora.scale}" for lora in self.loras]
            file = (self.unet.file or "") if self.unet else ""
            use = derive_digest(json.dumps(self.scheduler_options, sort_keys=True), file, *files).hex()
            changes.append(WeightsInfo(role="UNet settings", id="[diffusion]", revision=use, dtype="", licence=""))
        return [self.base.info("base"), *changes]


class ModelUnderTest(Weights):
    """`[evaluator.models_under_test.ALIAS]`: a model under test that the operator provides, by alias.

    A folder may also hold a `model.onnx`, and a `contrafact.json` that describes it (docs/how-to/models-under-test.md).
    """

    kind: Annotated[Kind, Field(validation_alias=KIND)] = "classification"
    description: str = ""


class ModelEndpoint(Section):
    """`[evaluator.endpoints.ALIAS]`: a model behind an external HTTP server (docs/how-to/models-under-test.md).

    `classes` are its classes in the order of its outputs. `revision` says which weights it runs; change it when they
    change, since recorded predictions are keyed by it. `api_key_variable` names the environment variable with the key.
    """

    url: Annotated[str, Field(pattern=r"^https?://")]
    kind: Annotated[Kind, Field(validation_alias=KIND)] = "classification"
    classes: Annotated[list[ClassName], Field(min_length=2, max_length=10_000)]
    revision: Annotated[str, Field(min_length=1)]
    licence: str
    description: str = ""
    api_key_variable: str = ""
    max_batch: MaxBatch = 16
    concurrency: Annotated[int, Field(ge=1, le=256)] = 4

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("classes names one more than once; name each once, in the order of the answers")
        if self.kind == "segmentation" and len(self.classes) > MAX_MASK_CLASSES:
            raise ValueError(f"a segmenter has up to {MAX_MASK_CLASSES} classes; name those that your masks have")
        return self

    def info(self, role: str) -> WeightsInfo:
        """The entry of `/v1/info`."""
        return WeightsInfo(role=role, id=self.url, revision=self.revision, dtype="server", licence=self.licence)


class ShapeJudge(Weights):
    """`[evaluator.segmenter]`: the segmenter that checks whether shapes stayed in place; never a model under test.

    Its labels match a job's classes by name, or through `names` (a class → labels of this segmenter).
    """

    names: dict[ClassName, list[ClassName]] = Field(default_factory=dict)

    def places(self, labels: Sequence[str], classes: Sequence[str]) -> list[int | None]:
        """The index of each label in a job's classes, None for a label that matches none of them.

        Letter case does not matter, and a label may be a list of synonyms ("car, auto"). `names` takes precedence.
        """
        place_by_name = {name.casefold(): place for place, name in reversed(list(enumerate(classes)))}
        class_of_label = {label.casefold(): name for name, aliases in self.names.items() for label in aliases}

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


class Evaluator(Section):
    """`[evaluator]`: the scorer of the checks (a CLIP other than the generator's), and the models under test.

    `text_embedder` is a sentence-embedding model in transformers' layout with mean pooling, for the text checks;
    `segmenter` checks the images of segmentation jobs.
    """

    scorer: Weights
    text_embedder: Weights | None = None
    segmenter: ShapeJudge | None = None
    models_under_test: dict[str, ModelUnderTest] = Field(default_factory=dict)
    endpoints: dict[str, ModelEndpoint] = Field(default_factory=dict)
    max_batch: MaxBatch = 16

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


class Defaults(Section):
    """`[defaults]` of a job that names no methods, models under test or, in a balanced design, values."""

    methods: Annotated[list[str], Field(min_length=1)]
    models: list[str] = Field(default_factory=list)
    values: Annotated[ChosenValues, Field(min_length=1)] = USUAL_VALUES


class CheckCalibration(Section):
    """`[calibration.DATA]`: errors of the checks on counterfactuals of a data set that people, or models, judged.

    `methods` holds them by method and factor, with the key `default` for factors not listed: the checks err differently
    on each method's output. They apply to jobs of one kind whose images one `scorer` (its revision; empty: any) judged.
    Errors on constructed faults do not belong here: the checks detect those better than a generator's own faults.
    """

    kind: Annotated[Kind, Field(validation_alias=KIND)] = "classification"
    judged_by: Judges
    scorer: str = ""
    methods: Annotated[dict[str, dict[str, CheckErrors]], Field(min_length=1)]


class Profile(Section):
    """A whole profile. `methods` holds default parameters, which each method checks against its own schema.

    `thresholds` are per check and factor, with the key `default` for factors not listed; they are valid for the
    scorer's weights only. `text_thresholds` are the thresholds of the text checks, for the text embedder's weights.
    `calibration` has the measured errors of the checks at these thresholds, by data set.
    """

    profile: About
    caption: Caption
    language: Language
    diffusion: Diffusion
    evaluator: Evaluator
    defaults: Defaults
    methods: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    thresholds: dict[str, dict[str, float]] = Field(default_factory=dict)
    text_thresholds: dict[str, dict[str, float]] = Field(default_factory=dict)
    calibration: dict[str, CheckCalibration] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if twice := set(self.evaluator.models_under_test) & set(self.evaluator.endpoints):
            raise ValueError(f"evaluator names {sorted(twice)} both as models_under_test and as endpoints; rename one")
        unknown = set(self.defaults.models) - set(self.evaluator.aliases)
        if unknown:
            raise ValueError(f"defaults.models names models under test that the profile lacks: {sorted(unknown)}")
        tables = {**self.thresholds, **self.text_thresholds}
        incomplete = sorted(check for check, values in tables.items() if "default" not in values)
        if incomplete:
            raise ValueError(f"thresholds need a `default` for factors not listed: {incomplete}")
        for data, calibration in self.calibration.items():
            incomplete = sorted(method for method, errors in calibration.methods.items() if "default" not in errors)
            if incomplete:
                raise ValueError(f"calibration.{data} needs a `default` for factors not listed: {incomplete}")
        return self

    def threshold(self, check: str, factor: str) -> float:
        """The threshold of a check for a factor. Raises KeyError for a check that the profile lacks."""
        values = self.thresholds[check]
        return values.get(factor, values["default"])


class ProfileError(ValueError):
    """A profile that does not exist or does not fit the schema; the message says what to change."""


def shipped_profiles() -> Mapping[str, Path]:
    """Name → file of the profiles that come with Contrafact."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def load_profile(name: str) -> Profile:
    """Load the profile of a shipped name, or the TOML file at a path. Raises ProfileError."""
    shipped = shipped_profiles()
    path = shipped.get(name, Path(name))
    if not path.is_file():
        raise ProfileError(f"no profile {name!r}: use one of {', '.join(shipped)}, or the path of a TOML file")
    root = REPOSITORY if name in shipped else path.resolve().parent
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return Profile.model_validate(data, context={"root": root})
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{path} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise ProfileError(f"{path}: {validation_sentence(error.errors())}") from error
