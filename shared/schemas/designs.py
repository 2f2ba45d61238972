"""The design of a job: which changes each source image gets, and how many images may be rendered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from shared.schemas.base import Contract, on_one_line

Factor = Literal["subject", "object", "background", "adjective", "domain", "weather", "other"]
FACTORS: tuple[Factor, ...] = ("subject", "object", "background", "adjective", "domain", "weather", "other")
DesignKind = Literal["free", "balanced", "adaptive"]
ValueSource = Literal["language model", "profile"]
MOST_VALUES = 30
LONGEST_VALUE = 40  # characters
MOST_RENDERINGS = 10_000_000


class ChosenValue(Contract):
    """A value that counterfactuals change to, such as night (weather); `"weather=night"` is short for it."""

    factor: Factor
    value: Annotated[str, Field(min_length=1, max_length=LONGEST_VALUE), BeforeValidator(on_one_line)]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        factor, equals, name = value.partition("=")
        if not equals:
            raise ValueError(f"{value!r}: write FACTOR=VALUE, such as weather=night")
        return {"factor": factor.strip(), "value": name.strip()}


ChosenValues = Annotated[tuple[ChosenValue, ...], Field(max_length=MOST_VALUES)]

# The options of a job.
DesignOption = Annotated[
    DesignKind | None,
    Field(
        description="balanced: every image gets the same changes, so that cells fill evenly; free: the language model "
        "chooses the changes of each image, as in the papers; adaptive: a quarter of the budget is spread over all "
        "classes and values, the rest goes to those that seem to fail most. Default: balanced where a method takes "
        "values, and free with the papers' profiles"
    ),
]
ValuesOption = Annotated[
    ChosenValues,
    Field(
        description='of a balanced design, the changes of every image, such as `"weather=night"`; default: as many as '
        "each image has counterfactuals, chosen for the job: the language model proposes them for the task and a few "
        "captions, or they are the profile's that its captions do not say already. Of an adaptive design, the changes "
        "to choose from; default: all of those"
    ),
]
BudgetOption = Annotated[
    int | None,
    Field(
        ge=1,
        le=MOST_RENDERINGS,
        description="of a balanced or adaptive design, the most images that each method renders, null and sham arms "
        "included; default: no limit, or of an adaptive design the cost of a free one",
    ),
]


def repeated_values(values: tuple[ChosenValue, ...]) -> list[str]:
    """The values that occur more than once, whatever their case."""
    names = [f"{chosen.factor}={chosen.value}".lower() for chosen in values]
    return sorted({name for name in names if names.count(name) > 1})


class Design(Contract):
    """The design of a job as its plan and its report state it.

    `values`: the changes that every source image gets, in their order, or in an adaptive design the changes that images
    may get; empty in a free design. `budget`: the most images that each method may render, null and sham arms included;
    None: no limit. `chosen_by`: who chose the values for this job; null if the request did.
    """

    kind: DesignKind = "free"
    values: list[ChosenValue] = Field(default_factory=list)
    budget: int | None = None
    chosen_by: Annotated[ValueSource | None, Field(exclude_if=lambda source: source is None)] = None


class CellSpending(Contract):
    """How the renderings of one method were spent on a cell: `proposed` edits of its source images, how many of them
    were `rendered`, and how many have a pair that counts.

    In an adaptive design `screening` and `confirming` count the source images that got the value in the first round,
    and in later ones because the cell seemed to fail. All of them enter its test. Else both are None.
    """

    method: str
    label: Annotated[str | None, Field(description="class of the ground truth; null without one")]
    factor: str
    value: str
    proposed: int
    rendered: int
    counted: int
    screening: int | None = None
    confirming: int | None = None


class PlaceShare(Contract):
    """What a round gives a place, which is a class and a value: positions of source images that get the value.

    `images` are in the order in which they enter the place's test. `planned`, of the first round: the most images that
    the place may get in all rounds.
    """

    label: str
    chosen: ChosenValue
    images: list[int] = Field(default_factory=list)
    planned: int = 0


class RoundPlan(Contract):
    """A round of an adaptive job, or of a balanced one whose values were chosen for it. No places: the rounds end.

    `spare`, of a balanced job: the values that take the places of those that the first images do not show.
    """

    number: int
    places: list[PlaceShare]
    spare: Annotated[list[ChosenValue], Field(exclude_if=lambda values: not values)] = Field(default_factory=list)

    def values_of(self, position: int) -> tuple[ChosenValue, ...]:
        """The values that a source image gets in this round."""
        return tuple(place.chosen for place in self.places if position in place.images)

    def positions(self) -> list[int]:
        """The source images that get any value in this round, ascending."""
        return sorted({position for place in self.places for position in place.images})


class DroppedValue(Contract):
    """A value that was chosen for the job, and that too few of the first `images` of a class showed (`accepted`)."""

    label: Annotated[str | None, Field(description="class of the ground truth; null without one")]
    chosen: ChosenValue
    images: int
    accepted: int


class DesignResults(Design):
    """The design of a finished job, and what it spent where.

    `rendered` counts the images of edits, null and sham arms. `cells` is empty in a free design. `rounds`, of an
    adaptive design: the edits of each round. `dropped`, of a balanced one: values that the other images of a class did
    not get.
    """

    rendered: int = 0
    cells: list[CellSpending] = Field(default_factory=list)
    rounds: list[int] = Field(default_factory=list)
    dropped: Annotated[list[DroppedValue], Field(exclude_if=lambda values: not values)] = Field(default_factory=list)
