"""The methods by name: one paper, one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from pydantic import ConfigDict, JsonValue, ValidationError

from gateway.methods import compose, corruptions, dillema, doses, instruct, lance, lance_r, reconstruction, shifts
from gateway.methods.checks import (
    EDITED_CHECKS,
    LABEL_CHECK,
    LANCE_CHECKS,
    RENDERED_CHECKS,
    UNCALIBRATED_EDITED,
    WORD_CHECKS,
)
from gateway.methods.counterfactual import Confirming, Method, MethodParameters, Thresholds
from gateway.methods.inverted import InversionParameters
from gateway.methods.paraphrase import revision_with_paraphrase
from gateway.methods.validity import CheckParameters
from shared.problems import NotFound
from shared.schemas.exports import DigitalSource
from shared.schemas.jobs import MethodChoice
from shared.schemas.results import Step
from shared.schemas.reviews import ConfirmingMethod

_SAME_CAPTION = "the source inverted and rendered with the same parameters, caption unchanged"
NULL_ARM = "made as the edit is, without the change"  # unless a method says otherwise
GENERATED: DigitalSource = "trainedAlgorithmicMedia"  # unless a method says otherwise


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method as users see it. `revision` changes with its prompts and code, and with it the ids of its results.

    `digital_source`: IPTC's term for how its images come to be, which their files carry (`shared.media.xmp`); read it
    from `JobMethod`, since that of doses depends on their parameters.
    `needs`: optional weights that it requires, by their tables in the profile. `checked`: whether its images are
    checked, so that the errors of the checks count. `checks` judge them, in order, each at a threshold of the profile
    or of `default_thresholds`; a check without either only scores. A profile without thresholds for `needs_thresholds`
    refuses the method. `confirmed_by`: the method whose editor is unrelated to its own, and which therefore tests its
    findings again; `confirming`: how it tests those of others. `listed`: whether users choose it for their jobs.
    `clustered`: whether its changes vary enough to be clustered; other methods repeat a list. `severities`: whether its
    values end with a severity, which is their dose. `steps` are those of its language model. `null_arm` says what its
    null arms are.
    """

    function: Method
    parameters: type[MethodParameters]
    title: str
    paper: str
    summary: str
    revision: str
    null_arm: str = NULL_ARM
    needs: tuple[str, ...] = ()
    checked: bool = True
    checks: tuple[str, ...] = RENDERED_CHECKS
    default_thresholds: Thresholds = field(default_factory=dict)
    needs_thresholds: tuple[str, ...] = ()
    digital_source: DigitalSource = GENERATED
    confirmed_by: ConfirmingMethod | None = None
    confirming: Confirming | None = None
    listed: bool = True
    clustered: bool = False
    severities: bool = False
    steps: tuple[Step, ...] = ("new captions",)


METHODS: dict[str, MethodSpec] = {
    "dillema": MethodSpec(
        function=dillema.dillema,
        clustered=True,
        parameters=dillema.DillemaParameters,
        title="DILLEMA",
        paper="https://arxiv.org/abs/2502.04378",
        summary="Caption, keywords that may change, alternatives, new captions, and images rendered from them under "
        "control of the source's structure.",
        revision=dillema.REVISION,
        null_arm="rendered with the same seed and control, caption unchanged",
        confirmed_by="shifts",
        confirming=dillema.CONFIRMING,
        steps=("keywords", "alternatives", "new captions"),
    ),
    "lance": MethodSpec(
        function=lance.lance,
        clustered=True,
        parameters=lance.LanceParameters,
        title="LANCE",
        paper="https://arxiv.org/abs/2305.19164",
        summary="Edits of the caption by a language model, one factor at a time, made in the image itself by inversion "
        "and prompt-to-prompt; the best of a sweep is kept.",
        revision=lance.REVISION,
        null_arm=_SAME_CAPTION,
        needs=("evaluator.text_embedder",),
        checks=EDITED_CHECKS,
        default_thresholds=UNCALIBRATED_EDITED,
        needs_thresholds=LANCE_CHECKS,
        digital_source="compositeWithTrainedAlgorithmicMedia",
        confirmed_by="dillema",
    ),
    "lance-r": MethodSpec(
        function=lance_r.lance_r,
        clustered=True,
        parameters=lance_r.LanceRParameters,
        title="LANCE-R",
        paper="https://arxiv.org/abs/2305.19164",
        summary="LANCE's random baseline: a word of the caption drawn by chance and replaced by a masked language "
        "model, made in the image as LANCE makes its edits.",
        revision=lance_r.REVISION,
        null_arm=_SAME_CAPTION,
        needs=("language.masked_words",),
        checks=WORD_CHECKS,
        default_thresholds=UNCALIBRATED_EDITED,
        needs_thresholds=LANCE_CHECKS,
        digital_source="compositeWithTrainedAlgorithmicMedia",
        confirmed_by="dillema",
    ),
    "reconstruction": MethodSpec(
        function=reconstruction.reconstruction,
        parameters=InversionParameters,
        title="Reconstruction",
        paper="https://arxiv.org/abs/2305.19164",
        summary="LANCE's control: the image inverted and regenerated with nothing changed.",
        revision=reconstruction.REVISION,
        null_arm="the source image",
        checked=False,
        digital_source="compositeWithTrainedAlgorithmicMedia",
    ),
    "shifts": MethodSpec(
        function=shifts.shifts,
        confirming=shifts.CONFIRMING,
        parameters=shifts.ShiftsParameters,
        title="Shifts",
        paper="https://arxiv.org/abs/2208.01626",
        summary="Changes that you write (“at night”, “in the snow”), made in every image by inversion and "
        "prompt-to-prompt.",
        revision=shifts.REVISION,
        null_arm=_SAME_CAPTION,
        digital_source="compositeWithTrainedAlgorithmicMedia",
        confirmed_by="dillema",
    ),
    "instruct": MethodSpec(
        function=instruct.instruct,
        parameters=instruct.InstructParameters,
        title="Instruct",
        paper="https://arxiv.org/abs/2211.09800",
        summary="Instructions by a language model, or yours, one change each, carried out by an instruction-following "
        "image editor.",
        revision=instruct.REVISION,
        null_arm="edited under the same seed by an instruction that changes nothing",
        needs=("diffusion.instruct",),
        checks=EDITED_CHECKS,
        default_thresholds=UNCALIBRATED_EDITED,
        digital_source="compositeWithTrainedAlgorithmicMedia",
        confirmed_by="dillema",
    ),
    "corruptions": MethodSpec(
        function=corruptions.corruptions,
        severities=True,
        parameters=corruptions.CorruptionsParameters,
        title="Corruptions",
        paper="https://arxiv.org/abs/1903.12261",
        summary="Noise, blur, fog, compression and the like at five severities, and the severity at which each image "
        "first fails.",
        revision=corruptions.REVISION,
        null_arm="the source image through the same code, not corrupted",
        checked=False,
        digital_source="algorithmicallyEnhanced",
    ),
    "compose": MethodSpec(
        function=compose.compose,
        parameters=compose.ComposeParameters,
        title="Compose",
        paper="https://arxiv.org/abs/2006.09994",
        summary="The object cut out and pasted on other backgrounds, at other sizes and places, and mirrored; no "
        "generator.",
        revision=compose.REVISION,
        null_arm="the object pasted at its own place on its own background",
        checks=LABEL_CHECK,
        digital_source="composite",
    ),
    doses.DOSES: MethodSpec(
        function=doses.doses,
        parameters=doses.DosesParameters,
        title="Doses",
        paper="",
        summary="The edits of a job's weaknesses at half, full and stronger dose, and undone; `POST /jobs/{job}/doses` "
        "starts it.",
        revision=doses.REVISION,
        null_arm="made as the edit is, at the same dose, without the change",
        listed=False,
    ),
}


def confirming_method(name: str) -> ConfirmingMethod | None:
    """The method that tests findings of the method `name` again; None if there is none, or no such method."""
    return METHODS[name].confirmed_by if name in METHODS else None


def confirming(name: str) -> Confirming:
    """How a method tests findings of others again."""
    how = METHODS[name].confirming
    assert how is not None, "each method that a client may name here says how"
    return how


class UnreadableParameters(MethodParameters):
    """Stored parameters that this version cannot read: free JSON, which is displayed but cannot be run."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class JobMethod:
    """A method of a job. `parameters` are complete and checked, in the type of the method.

    They are `UnreadableParameters` if another version wrote the row, and this version lacks the method or reads other
    parameters.
    """

    name: str
    parameters: MethodParameters

    @property
    def spec(self) -> MethodSpec:
        """What runs the method. Raises NotFound where this version cannot run it."""
        if isinstance(self.parameters, UnreadableParameters):
            problem = "does not take these parameters" if self.name in METHODS else "does not exist"
            raise NotFound(
                f"method {self.name!r} {problem} in this version; submit the job again, or use the version that made it"
            )
        return METHODS[self.name]

    @property
    def revision(self) -> str:
        """The revision of its results: that of its code and prompts, and of what its parameters add to these."""
        p = self.parameters
        return revision_with_paraphrase(
            self.spec.revision, p.editor_parameters if isinstance(p, doses.DosesParameters) else p
        )

    @property
    def digital_source(self) -> DigitalSource:
        """IPTC's term for its images. Doses have that of the method whose edits they repeat."""
        p = self.parameters
        name = p.method if isinstance(p, doses.DosesParameters) else self.name
        return METHODS[name].digital_source if name in METHODS else GENERATED

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds of its image checks: its parameters over its defaults; empty if it has no checks."""
        if not isinstance(self.parameters, CheckParameters):
            return {}
        return {**METHODS[self.name].default_thresholds, **self.parameters.thresholds}

    @property
    def thresholds_for_arms(self) -> Thresholds:
        """The thresholds of its null and sham arms; empty if it has no checks."""
        if not isinstance(self.parameters, CheckParameters):
            return {}
        return {**METHODS[self.name].default_thresholds, **self.parameters.thresholds_for_arms}

    @property
    def backgrounds(self) -> list[str]:
        """The digests of the images and masks that its parameters name as backgrounds."""
        own = self.parameters.own_backgrounds() or ()
        return list(dict.fromkeys(digest for named in own for digest in (named.digest, named.mask) if digest))

    def choice(self) -> MethodChoice:
        """The method as requests and replies have it, with parameters in JSON."""
        return MethodChoice(name=self.name, parameters=self.parameters.model_dump(mode="json"))


def read_method(name: str, parameters: Mapping[str, JsonValue]) -> JobMethod:
    """A method from its row. Equal rows are validated once per process, however many source images a job has."""
    return JobMethod(name, _validate(name, json.dumps(parameters, sort_keys=True)))


@lru_cache(maxsize=256)
def _validate(name: str, parameters: str) -> MethodParameters:
    try:
        return METHODS[name].parameters.model_validate_json(parameters)
    except (KeyError, ValidationError):
        return UnreadableParameters.model_validate_json(parameters)
