"""What every method takes and yields: source image, edit, counterfactual. No I/O, no database.

`MethodImage` and `MethodCounterfactual` are a method's view of the rows `SourceImage` and `Counterfactual` in
`gateway.database.tables`.

The lineage of a counterfactual: how it was made, for people and for replay. No decision in the code depends on it.

Values that the code needs are fields of `MethodCounterfactual`. The worker stores its caption, control image and cost
in the same JSON column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NotRequired, Protocol, TypedDict

from pydantic import JsonValue

from shared.profiles.diffusion import Diffusion
from shared.profiles.profile import Profile
from shared.schemas.base import Contract, ImagePayload, JsonObject
from shared.schemas.boxes import TrueBox
from shared.schemas.designs import FACTORS as FACTORS
from shared.schemas.designs import ChosenValue, DesignKind
from shared.schemas.designs import Factor as Factor
from shared.schemas.diffusion import ControlRegion
from shared.schemas.effects import DoseParameter
from shared.schemas.jobs import Digest, ProtectedCharacteristics
from shared.schemas.masks import Label
from shared.schemas.questions import ImageQuestion
from shared.service.endpoints import Services


class Exchange(TypedDict):
    """A question to the language model and its reply ("" if there is none); `messages` have role and content.

    `attempts`: of the service at this request. `requests`: how many in all, if an earlier one got no valid reply.
    """

    question: str
    messages: list[dict[str, str]]
    reply: str
    temperature: float
    seed: int
    attempts: NotRequired[int]
    requests: NotRequired[int]


class TriedFraction(TypedDict):
    """One attempt of a sweep: its self-attention fraction, the check that refused it ("" if none), and its scores."""

    self_fraction: float
    check: str
    reason: str
    scores: dict[str, float]


class RegionOutcomeRecord(TypedDict):
    """The scores of one protected region (`judge_regions`); `box` is left, top, right and bottom."""

    label: str
    share: float
    box: list[int]
    iou: float
    seam: float
    light: float | None


class DoseRecord(TypedDict):
    """The dosed parameter and its value; `dose` is relative to the other job's (1), whose edit may be undone."""

    parameter: str
    dose: float
    value: float
    undone: bool


class JudgeRecord(TypedDict):
    """What a judge was asked about an edit: its questions, those without an answer by why not, and its tokens."""

    questions: int
    refused: int
    unreadable: int
    prompt_tokens: int
    completion_tokens: int


class Lineage(TypedDict, total=False):
    """What a method records. `Inputs.lineage` fills the first four; the others depend on the method."""

    method: str
    revision: str
    parameters: dict[str, JsonValue]
    skipped_checks: list[str]
    exchanges: list[Exchange]
    instruction: str
    rendering: dict[str, JsonValue] | None
    self_fraction: float
    sweep: list[TriedFraction]
    protected: list[RegionOutcomeRecord]
    judge: JudgeRecord
    dose: DoseRecord


DEFAULT_EDITS = 4  # of an image, where a method's parameters do not say
Arm = Literal["edit", "null", "sham"]
Scores = dict[str, float]  # by name; each check has its own range
Thresholds = Mapping[str, Mapping[str, float]]  # check -> factor, or `default` for factors not listed -> lowest score


def _no_others(digest: str) -> ImagePayload:
    raise KeyError(digest)


@dataclass(frozen=True, slots=True)
class MethodImage:
    """A source image of the user's test set. `ground_truth` is a class label or None; `id` is stable for seeds.

    `mask` is the ground truth of a segmentation job: the place of each pixel's class in
    `TaskDescription.mask_classes`. `boxes` are that of a detection job, in pixels; `questions` what a model is asked.
    `object_mask` is the object that `compose` cuts out, where not 0; None: a segmenter finds it. `digest` is that of
    `image`, and `load` gives any image or mask by the digest that the method's parameters name.
    """

    id: str
    image: ImagePayload
    ground_truth: str | None
    mask: ImagePayload | None = None
    boxes: tuple[TrueBox, ...] | None = None
    questions: tuple[ImageQuestion, ...] | None = None
    object_mask: ImagePayload | None = None
    digest: str = ""
    load: Callable[[str], ImagePayload] = field(default=_no_others, compare=False)


@dataclass(frozen=True, slots=True)
class TaskDescription:
    """The user's sentence about the task of their model, and the label set if it is known.

    In a segmentation job `mask_classes` are the classes of its pixels, and `things` those of countable objects.
    `protected_characteristics`: whether edits may change those of people (`people.py`). `localised`: whether the ground
    truth lies at places of the image, so that an editor must not move them.
    """

    text: str
    classes: tuple[str, ...] = ()
    mask_classes: tuple[str, ...] = ()
    things: tuple[str, ...] = ()
    protected_characteristics: ProtectedCharacteristics = "refuse"
    localised: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One phrase replaced by another. Values are canonical names ("after dark" → night)."""

    factor: Factor
    from_phrase: str
    to_phrase: str
    from_value: str
    to_value: str


@dataclass(frozen=True, slots=True)
class Edit:
    """The proposed change of one counterfactual: one or more changes and the caption that applies them.

    `instruction` tells an instruction-following editor what to change; "" for all other editors.
    """

    changes: tuple[Change, ...]
    caption: str
    new_caption: str
    instruction: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`accepted` without a check, or rejected with the name of the check and its reason in words."""

    accepted: bool
    check: str = ""
    reason: str = ""


ACCEPTED = Verdict(accepted=True)


@dataclass(frozen=True, slots=True)
class MethodCounterfactual:
    """An edit, or the null or sham arm of one or more edits. Edits that a text check refused are not rendered.

    `ordinal` numbers edits and arms of one source image from 0 in a fixed order. `null_ordinal` is the ordinal of an
    edit's null arm (same editor, seed, control, guidance and parameters, caption unchanged); None if the null arm is
    the source image. `null_check` of an edit names the check that its null arm fails ("": it passes all; None: it was
    not checked). `sham_ordinal` and `sham_check` are the same for the sham arm (a paraphrase instead of the edit, all
    else equal). The effect is measured against the sham arm if there is one.

    `scores` holds every score by name, `caption` the source image's caption ("" if the method writes none), `control`
    the control image that the editor used, and `evaluations` the cost of the image in network evaluations. `lineage`
    is a record; no code depends on it.
    """

    ordinal: int
    arm: Arm
    seed: int
    edit: Edit | None
    null_ordinal: int | None
    image: ImagePayload | None
    verdict: Verdict
    scores: Scores = field(default_factory=dict)
    caption: str = ""
    control: ImagePayload | None = None
    evaluations: int = 0
    lineage: Lineage = field(default_factory=Lineage)
    null_check: str | None = None
    sham_ordinal: int | None = None
    sham_check: str | None = None


class Renderings(NamedTuple):
    """The most images that a method renders."""

    edits: int
    null_arms: int
    sham_arms: int = 0


class Changes(NamedTuple):
    """What a balanced or adaptive design may choose of a method: values of these factors, `most` of them in a free one.

    `values`: those that it has. `most` is 0 for a method that takes no values, because it treats all images alike.
    `refusal`: why no design can choose its changes.
    """

    values: tuple[ChosenValue, ...] = ()
    factors: tuple[Factor, ...] = ()
    most: int = 0
    refusal: str = ""


class Background(Contract):
    """An image whose background is used, by digest, and what to call it. `clear`: remove its own objects first.

    Without a `value`, it is taken from the image's caption.
    `mask`: the digest of the mask of its objects (not 0); without one, the profile's segmenter detects them.
    """

    digest: Digest
    value: Label | Literal[""] = ""
    clear: bool = False
    mask: Digest | None = None


UNKNOWN = "another background"  # the value of an unknown background


def scene_of(label: str) -> str:
    """The value of a background that comes from an image of this class."""
    return f"{label} scene"


class MethodParameters(Contract):
    """A job's parameters of a method, and what all others ask of a method: they name neither it nor its fields."""

    def plan(self, images: int) -> Renderings:
        """The most images that it renders of so many source images; every attempt of a sweep counts."""
        return Renderings(*(images * count for count in self.renderings()))

    def renderings(self) -> tuple[int, int]:
        """The most edits of one source image, and their null arms."""
        return 1, 0

    def cells(self) -> int:
        """How many changes of one image it proposes; a change is in two cells, *to* a value and *from* one."""
        return int(getattr(self, "counterfactuals_per_image", DEFAULT_EDITS))

    def changes(self) -> Changes:
        """What a design may choose."""
        return Changes()

    def objects(self) -> Literal["", "moved", "kept"]:
        """What it does with the objects, if it needs their masks: it moves them, or edits all but them."""
        return ""

    def own_backgrounds(self) -> tuple[Background, ...] | None:
        """The backgrounds that it names (none: those of the job's images); None if it uses none."""
        return None

    def dosed(self, parameter: DoseParameter | None, diffusion: Diffusion) -> DoseParameter | None:
        """What is dosed of its edits: the parameter, or its default. None: its edits have no dose.

        Raises InvalidInput for a parameter that the profile's editor does not have.
        """
        return None

    def region_of(self, edit: Edit) -> ControlRegion | None:
        """The region whose edges control an edit, if it is controlled by one."""
        return None

    def fraction(self) -> float | None:
        """The self-attention fraction of all its edits; None if each has its own."""
        return None

    def refuse_profile(self, profile: Profile) -> str:
        """Why a profile's weights cannot do what they ask for; "" if they can."""
        return ""


ConfirmedChanges = Mapping[tuple[str, str], Callable[[], Sequence[tuple[str, str]]]]


@dataclass(frozen=True, slots=True)
class Confirming:
    """How a method tests changes again, in a job of its own.

    `parameters`: those that make the changes. Each has the factor, the value, and a function for the phrases that made
    it: pairs of old and new. `field` lists the changes in them. `most`: how many one job can make, of values of at most
    `longest` characters.
    """

    design: DesignKind
    field: str
    most: int
    parameters: Callable[[ConfirmedChanges], JsonObject]
    longest: int | None = None


class Method(Protocol):
    """A method: one paper, one file, one function."""

    def __call__(
        self, image: MethodImage, task: TaskDescription, services: Services, parameters: Any, seed: int
    ) -> Iterator[MethodCounterfactual]: ...
