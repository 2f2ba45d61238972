"""Profiles: the weights that each service loads, and the defaults and thresholds that belong to those weights."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from shared.problems import validation_sentence
from shared.profiles.diffusion import Diffusion
from shared.profiles.evaluator import Evaluator
from shared.profiles.weights import REPOSITORY, MaxBatch, Section, Server, Weights
from shared.schemas.base import KIND, Kind
from shared.schemas.designs import ChosenValues
from shared.schemas.effects import CheckErrors, Judges
from shared.schemas.thresholds import ImageThresholds, TextThresholds
from shared.schemas.validity import ValidityModel

SHIPPED = Path(__file__).parent
_PATHS = ("path", "statistics")  # keys of files and folders


def _check_source(engine: str, weights: Weights | None, server: Server | None, *, remote: bool) -> None:
    required, excluded = ("server", "weights") if remote else ("weights", "server")
    if (server is None) == remote or (weights is None) != remote:
        raise ValueError(f"engine {engine!r} needs a table `{required}` and no `{excluded}`")


class About(Section):
    """`[profile]`. `base`: a shipped profile, whose tables hold where this file is silent, key by key."""

    name: str
    description: str
    base: str = ""


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


class Defaults(Section):
    """`[defaults]` of a job that names no methods, models under test or, in a balanced design, values.

    `values` are for small models that know a closed vocabulary: all that their editor can draw, the most useful first.
    Without them the language model proposes values for each job. `design` is that of a job that names none.
    """

    methods: Annotated[list[str], Field(min_length=1)]
    models: list[str] = Field(default_factory=list)
    values: ChosenValues = ()
    design: Literal["free", "balanced"] = "balanced"


class CheckCalibration(Section):
    """`[calibration.DATA]`: errors of the checks, on counterfactuals of a data set that people or models judged.

    `methods`: errors by method and factor, because the checks err differently on each method's output. `default` is for
    factors that are not listed; without it their errors are unknown. The errors apply to jobs of one kind whose images
    were scored by the same `scorer` (its revision; empty: any). Leave out errors on constructed faults: the checks
    detect those better than a generator's own faults. `classes`: errors by method and class over all factors, for
    classes with 30 or more judged counterfactuals, at least 10 of them valid and 10 invalid.

    `thresholds`: method → check → factor (or `default`) → lowest score. The errors hold at these thresholds, so a job
    with this calibration uses these instead of the profile's own. `judged`: how many counterfactuals were judged; 0 if
    unknown.

    `validity_model`: method → the model that combines all scores of an image into one, `validity`. `thresholds` may
    hold a threshold for that score.
    """

    kind: Annotated[Kind, Field(validation_alias=KIND)] = "classification"
    judged_by: Judges
    scorer: str = ""
    judged: Annotated[int, Field(ge=0)] = 0
    methods: Annotated[dict[str, dict[str, CheckErrors]], Field(min_length=1)]
    classes: dict[str, dict[str, CheckErrors]] = Field(default_factory=dict)
    thresholds: dict[str, ImageThresholds] = Field(default_factory=dict)
    validity_model: dict[str, ValidityModel] = Field(default_factory=dict)


class Profile(Section):
    """A whole profile. `methods` holds default parameters, which each method checks against its own schema.

    `thresholds` are per check and factor, with the key `default` for factors not listed; they are valid for the
    scorer's weights only, and `second_thresholds` for those of the second scorer. `text_thresholds` are the thresholds
    of the text checks, for the text embedder's weights. `calibration` has the measured errors of the checks at these
    thresholds, by data set.
    """

    profile: About
    caption: Caption
    language: Language
    diffusion: Diffusion
    evaluator: Evaluator
    defaults: Defaults
    methods: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    thresholds: ImageThresholds = Field(default_factory=dict)
    second_thresholds: ImageThresholds = Field(default_factory=dict)
    text_thresholds: TextThresholds = Field(default_factory=dict)
    calibration: dict[str, CheckCalibration] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if twice := set(self.evaluator.models_under_test) & set(self.evaluator.endpoints):
            raise ValueError(f"evaluator names {sorted(twice)} both as models_under_test and as endpoints; rename one")
        unknown = set(self.defaults.models) - set(self.evaluator.aliases)
        if unknown:
            raise ValueError(f"defaults.models names models under test that the profile lacks: {sorted(unknown)}")
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


def _with_base(path: Path) -> dict[str, Any]:
    """The tables of a file over those of its base. Raises ProfileError for a base that is not shipped."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    base = data.get("profile", {}).get("base", "")
    if not base:
        return data
    shipped = shipped_profiles()
    if base not in shipped or shipped[base] == path:
        raise ProfileError(f"{path}: profile.base is {base!r}; name a shipped profile: {', '.join(shipped)}")
    return _over(_from_repository(_with_base(shipped[base])), data)


def _from_repository(table: Mapping[str, Any]) -> dict[str, Any]:
    """A shipped profile's table whose paths no longer depend on the file that they stand in."""

    def value(key: str, item: Any) -> Any:
        if isinstance(item, dict):
            return _from_repository(item)
        if isinstance(item, list):
            return [value("", entry) for entry in item]
        return str(REPOSITORY / item) if key in _PATHS and isinstance(item, str) else item

    return {key: value(key, item) for key, item in table.items()}


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = below.keys() & above.keys()
    tables = [key for key in both if isinstance(below[key], dict) and isinstance(above[key], dict)]
    return {**below, **above, **{key: _over(below[key], above[key]) for key in tables}}


def load_profile(name: str) -> Profile:
    """Load the profile of a shipped name, or the TOML file at a path. Raises ProfileError."""
    shipped = shipped_profiles()
    path = shipped.get(name, Path(name))
    if not path.is_file():
        raise ProfileError(f"no profile {name!r}: use one of {', '.join(shipped)}, or the path of a TOML file")
    root = REPOSITORY if name in shipped else path.resolve().parent
    try:
        return Profile.model_validate(_with_base(path), context={"root": root})
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{path} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise ProfileError(f"{path}: {validation_sentence(error.errors())}") from error
