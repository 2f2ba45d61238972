"""The public contract of human studies: a sample of counterfactuals, questions about them, raters, and the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from shared.characters import refuse_deceptive
from shared.schemas.base import Contract
from shared.schemas.effects import Estimate, Rate
from shared.schemas.results import FAILURE_MODES, FailureShare

QuestionKind = Literal["yes_no", "scale", "failure"]
ItemKind = Literal["edit", "null", "broken", "attention"]
Paper = Literal["dillema", "lance"]
Side = Literal["original", "changed"]
Line = Annotated[str, AfterValidator(refuse_deceptive)]

CHOICES: Mapping[QuestionKind, tuple[str, ...]] = {
    "yes_no": ("yes", "no", "unsure"),
    "scale": ("1", "2", "3", "4", "5"),
    "failure": ("none", *FAILURE_MODES, "unsure"),
}
ATTENTION: Mapping[QuestionKind, str] = {
    "yes_no": "unsure",
    "scale": "1",
    "failure": "unsure",
}  # the answers that an attention check asks for


class Question(Contract):
    """A question about each pair of images. `{label}` and `{change}` in its text stand for those of the pair."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,29}$", description="a column of the CSV files")]
    text: Annotated[Line, Field(min_length=1, max_length=300)]
    kind: Annotated[
        QuestionKind,
        Field(
            description="yes_no: yes, no or unsure; scale: 1 to 5; failure: none, a mode of LANCE's figure 12, or "
            "unsure, whose consensus for a mode counts in the review"
        ),
    ] = "yes_no"
    low: Annotated[Line, Field(max_length=50, description="what 1 means")] = ""
    high: Annotated[Line, Field(max_length=50, description="what 5 means")] = ""
    label_kept: Annotated[
        bool,
        Field(description="its consensus counts as a review: yes is valid, no is invalid; for one yes_no question"),
    ] = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.label_kept and self.kind != "yes_no":
            raise ValueError("label_kept is for a yes_no question")
        if self.name in ("rater", "item"):
            raise ValueError("rater and item are columns of the CSV files already; choose another name")
        return self


LABEL_KEPT = Question(name="label_kept", text="Is “{label}” still right for the changed image?", label_kept=True)
QUESTIONS: Mapping[Paper, tuple[Question, ...]] = {
    "dillema": (LABEL_KEPT, Question(name="realistic", text="Does the changed image look realistic?")),
    "lance": (
        Question(
            name="realism",
            text="How real does the changed image look?",
            kind="scale",
            low="artificial",
            high="like a photograph",
        ),
        Question(
            name="edit_success",
            text="How well does the changed image show this change: {change}?",
            kind="scale",
            low="not at all",
            high="fully",
        ),
        Question(
            name="fidelity",
            text="Apart from this change, how much of the original is kept?",
            kind="scale",
            low="nothing",
            high="everything",
        ),
        LABEL_KEPT,
        Question(name="ethics", text="Could the changed image hurt or insult somebody, or show a stereotype?"),
    ),
}


class StudyRequest(Contract):
    """`POST /jobs/{job}/studies`: which counterfactuals people rate, what they are asked, how raters are checked."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"questions": "lance", "per_method": 50}]})

    title: Annotated[Line, Field(max_length=200, description="shown to raters; default: the task description")] = ""
    questions: Annotated[
        Paper | Annotated[list[Question], Field(min_length=1, max_length=8)],
        Field(description="those of a paper, or your own"),
    ] = "dillema"
    methods: Annotated[list[str] | None, Field(min_length=1, max_length=20, description="default: all")] = None
    sample: Annotated[
        Literal["accepted", "rendered", "misclassified"],
        Field(description="edits that the checks accept, all rendered ones, or accepted ones that a model gets wrong"),
    ] = "accepted"
    model: Annotated[
        Line | None,
        Field(
            min_length=1,
            max_length=200,
            description="with `misclassified`: the model under test that gets them wrong; default: any of them",
            exclude_if=lambda name: name is None,
        ),
    ] = None
    element: Annotated[
        Line | None,
        Field(
            min_length=1,
            max_length=200,
            description="only edits of images that show this class; the questions are about it, and give no reviews",
            exclude_if=lambda name: name is None,
        ),
    ] = None
    per_method: Annotated[int, Field(ge=1, le=1_000, description="edits of each method, randomly sampled")] = 50
    per_factor: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000,
            description="edits of each factor of a method, instead of `per_method`; results are by factor, too",
            exclude_if=lambda count: count is None,
        ),
    ] = None
    raters_per_item: Annotated[int, Field(ge=1, le=50)] = 5
    items_per_rater: Annotated[int, Field(ge=1, le=500, description="edits of one rater")] = 50
    consensus: Annotated[
        float, Field(gt=0.5, le=1, description="share of an item's raters who must agree; 0.8: four of five")
    ] = 0.8
    controls: Annotated[
        int,
        Field(ge=0, le=40, description="control items of a rater: null arms, and null arms of images of another class"),
    ] = 6
    attention: Annotated[int, Field(ge=0, le=5, description="attention checks of a rater")] = 1
    least_control_score: Annotated[
        float, Field(ge=0, le=1, description="raters with a smaller share of correct control items are left out")
    ] = 0.75

    @property
    def question_list(self) -> list[Question]:
        """The questions, also those that a paper's name stands for."""
        return list(QUESTIONS[self.questions]) if isinstance(self.questions, str) else self.questions

    @property
    def label_question(self) -> Question | None:
        """The question whether the label is kept."""
        return next((question for question in self.question_list if question.label_kept), None)

    @property
    def failure_question(self) -> Question | None:
        """The question what is wrong."""
        return next((question for question in self.question_list if question.kind == "failure"), None)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = Counter(question.name for question in self.question_list)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"two questions are named {twice[0]}; give each its own name")
        if sum(question.label_kept for question in self.question_list) > 1:
            raise ValueError("only one question can have label_kept")
        if sum(question.kind == "failure" for question in self.question_list) > 1:
            raise ValueError("only one question can be of kind failure")
        if self.model is not None and self.sample != "misclassified":
            raise ValueError("model chooses misclassified edits; set sample to misclassified, or leave it out")
        if self.controls and self.label_question is None:
            raise ValueError("control items need a question with label_kept; mark one, or set controls to 0")
        return self


class StudyView(Contract):
    """A study. `items` are the sampled edits; `control_items` by kind are those of every rater, `checks` their ids.

    `invited` raters have a link; `finished` of them have rated all their items. `answered` counts ratings of all items,
    also those from CSV files; `complete` items have `raters_per_item` usable ratings.
    """

    id: str
    job: str
    request: StudyRequest
    items: int
    control_items: dict[ItemKind, int]
    checks: list[str]
    invited: int
    finished: int
    answered: int
    complete: int
    created_at: datetime


class StudiesListing(Contract):
    """`GET /jobs/{job}/studies`, newest first."""

    studies: list[StudyView]


class InvitationsRequest(Contract):
    """`POST /studies/{study}/invitations`."""

    raters: Annotated[int, Field(ge=1, le=500, description="how many people to invite")] = 1


class Invitation(Contract):
    """One rater's link. It is shown once: only its hash is stored. Whoever has it can rate as this rater."""

    rater: str
    link: Annotated[str, Field(description="path of the page, after the gateway's address")]
    items: int


class InvitationsReply(Contract):
    """The new invitations."""

    invitations: list[Invitation]


class AnswersStored(Contract):
    """`PUT /studies/{study}/answers.csv`: how many ratings were stored, of how many raters.

    `unchecked_raters` of them have rated none of the study's control items. Their ratings count when they rate one.
    """

    answers: int
    raters: int
    unchecked_raters: int

    @property
    def sentence(self) -> str:
        """What was stored, for people."""
        ratings, raters = _counted(self.answers, "rating"), _counted(self.raters, "rater")
        stored = f"Stored {ratings} by {raters}."
        if not self.unchecked_raters:
            return stored
        return f"{stored} Not counted until they rate a control item: {_counted(self.unchecked_raters, 'rater')}."


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class RaterFigures(Contract):
    """One rater: how many of `assigned` items they rated, and their control items.

    `name` is the rater's in an uploaded CSV, "" for an invited one. `correct` of the `controls` that they rated are as
    expected; `attention_missed` counts attention checks. `excluded` raters are not counted in any
    figure. If the study has control items, a rater who has rated none of them is excluded.
    """

    rater: str
    name: str
    assigned: int
    answered: int
    correct: int
    controls: int
    attention_missed: int
    excluded: bool


class Agreement(Contract):
    """Krippendorff's α over `items` with two or more answers, nominal for yes_no and ordinal for scale.

    `low` and `high`: 95 % bootstrap interval over items (those of a source image together). None: all answers are
    equal, or there are too few.
    """

    alpha: float | None
    low: float | None
    high: float | None
    items: int
    answers: int


class QuestionFigures(Contract):
    """The answers about one method's complete items.

    `yes`: of all `items`, those with a consensus for yes (as DILLEMA prints it); `no` with one for no; the others are
    `undecided`. `decided`: yes, of those with a consensus. `answers`: of all single answers, those that are yes.
    `mean`: of a scale's item means, with a 95 % interval. Intervals account for items that share a source image.
    `failures`: of all `items`, those with a consensus for each failure mode; `no` then counts those with one for none.
    `factor`: of the edits of one factor alone, in a study by factors.
    """

    question: str
    method: str
    factor: Annotated[str, Field(exclude_if=lambda factor: not factor)] = ""
    items: int
    yes: Rate | None = None
    no: int | None = None
    undecided: int | None = None
    decided: Rate | None = None
    answers: Rate | None = None
    mean: Estimate | None = None
    failures: Annotated[list[FailureShare], Field(exclude_if=lambda shares: not shares)] = Field(default_factory=list)


class StudyResults(Contract):
    """`GET /studies/{study}/results`. `complete` of `items` have `raters_per_item` ratings by raters that count.

    `dropped_controls`: null arms that most attentive raters find invalid, so that they judge nobody.
    """

    study: str
    job: str
    items: int
    complete: int
    raters: list[RaterFigures]
    dropped_controls: list[str]
    agreement: dict[str, Agreement]
    figures: list[QuestionFigures]
