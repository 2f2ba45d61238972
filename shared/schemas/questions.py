"""Questions about images with their answers: a ground truth, and what a model answers.

    {"question": "How many cars are there?", "answer": 3}                            number
    {"question": "Is the road wet?", "answer": "no", "key": "wet"}                   yes/no
    {"question": "What colour is the bus?", "answers": ["red", "dark red"]}          text; any of them is right
    {"question": "What is it?", "options": ["bus", "car"], "answer": "bus"}          choice
    {"question": "What is on the table?", "type": "list", "answers": ["cup", "pen"]} list; all of them, in any order

`shared.answers` says how answers are read and compared.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AliasChoices, BeforeValidator, ConfigDict, Field, model_validator

from shared.answers import as_text, number_in, yes_or_no
from shared.characters import refuse_deceptive
from shared.schemas.base import Contract, Kind, on_one_line
from shared.schemas.evaluation import ModelRequest, TokenUsage, Unanswered
from shared.schemas.masks import ALL_CLASSES, Label

ASKED: frozenset[Kind] = frozenset({"vqa"})  # kinds whose models are asked questions, and have no classes
MAX_QUESTIONS = 32  # of an image
MAX_ANSWER_CHARACTERS = 2_000

QuestionType = Literal["choice", "yes/no", "number", "text", "list"]
Value = Annotated[str, Field(pattern=r"^[a-z]+=.+$", max_length=200)]
# What becomes of an answer that must change: the new answer is right, or the one before, or neither.
Followed = Literal["changed", "kept", "other"]
AnswerText = Annotated[str, Field(min_length=1, max_length=MAX_ANSWER_CHARACTERS)]
Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _texts(value: Any) -> Any:
    """One answer or several, as texts: true is "yes", and 3 is "3"."""
    return [as_text(answer) for answer in (value if isinstance(value, list | tuple) else [value])]


class ImageQuestion(Contract):
    """A question about an image, and its answer, which edits must not change.

    Of `choice`, `answers` are among the `options`; of `text` and `number` any of them is right, of `list` all of them
    together. A `number` is right within `tolerance`. An edit to a value of `becomes` must change the answer to the one
    that is named there; all other edits must not. Without `answers`, the answer must only stay the same. The `type`
    follows from options and answers where it is not given. Scores go by `label`: the `key`, or else the type.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"question": "How many cars are there?", "answer": 3, "tolerance": 0},
                {"question": "What is it?", "options": ["bus", "car"], "answer": "bus", "key": "vehicle"},
            ]
        }
    )

    question: Annotated[
        str,
        Field(min_length=1, max_length=2_000),
        BeforeValidator(on_one_line),
        AfterValidator(refuse_deceptive),
    ]
    type: QuestionType = "text"
    options: Annotated[list[Label], Field(max_length=20, description="of `choice`")] = Field(default_factory=list)
    answers: Annotated[
        list[AnswerText],
        Field(max_length=100, validation_alias=AliasChoices("answers", "answer"), description="`answer` is the same"),
        BeforeValidator(_texts),
    ] = Field(default_factory=list)
    tolerance: Annotated[Tolerance | None, Field(description="of `number`; default: that of the spec")] = None
    key: Annotated[Label | None, Field(description="what the question is about; scores go by it")] = None
    becomes: Annotated[
        dict[Value, Annotated[list[AnswerText], Field(min_length=1, max_length=100), BeforeValidator(_texts)]],
        Field(max_length=100, description="by `FACTOR=VALUE`, the answers once an edit has set it: weather=night"),
    ] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        """By what its scores go."""
        return self.key or self.type

    @property
    def asked(self) -> ImageQuestion:
        """The question as a model gets it, without its answers."""
        return ImageQuestion(question=self.question, type=self.type, options=self.options)

    def after(self, values: Collection[str]) -> ChangedQuestion | None:
        """The question about an image whose edit has set these values, if the answer must change; else None."""
        answers = [answer for value, answers in self.becomes.items() if value in values for answer in answers]
        if not answers:
            return None
        return ChangedQuestion(**self.model_dump(exclude={"answers"}), answers=answers, before=self.answers)

    @model_validator(mode="before")
    @classmethod
    def _with_its_type(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        answers = _texts(value.get("answers", value.get("answer", [])))
        inferred = "text"
        if value.get("options"):
            inferred = "choice"
        elif answers and all(yes_or_no(answer) == answer.casefold() for answer in answers):
            inferred = "yes/no"
        elif answers and all(_is_number(answer) for answer in answers):
            inferred = "number"
        if (chosen := value.get("type") or inferred) == "yes/no":
            answers = [answer.casefold() for answer in answers]
        named = {name: part for name, part in value.items() if name not in ("type", "answer", "answers")}
        return {**named, "type": chosen, "answers": answers}

    @model_validator(mode="after")
    def _answers_fit(self) -> Self:
        about = f"the question {self.question[:80]!r}"
        if (self.type == "choice") != bool(self.options):
            raise ValueError(f"{about} has options, so its type is choice; only these have options, two or more")
        if self.options and len({option.casefold() for option in self.options}) < max(2, len(self.options)):
            raise ValueError(f"{about} needs two options or more, each once")
        new = [answer for answers in self.becomes.values() for answer in answers]
        if self.options and (others := [answer for answer in [*self.answers, *new] if answer not in self.options]):
            raise ValueError(f"{about} has the answer {others[0]!r}, which is none of its options")
        if self.type == "yes/no" and self.answers not in ([], ["yes"], ["no"]):
            raise ValueError(f"{about} has one answer, yes or no")
        if self.type == "yes/no" and not {*new} <= {"yes", "no"}:
            raise ValueError(f"{about} becomes yes or no")
        if self.becomes and not self.answers:
            raise ValueError(f"{about} has no answer that could change; give it, or leave `becomes` out")
        if self.type == "number" and not all(map(_is_number, [*self.answers, *new])):
            raise ValueError(f"{about} needs a number as its answer")
        if self.tolerance is not None and self.type != "number":
            raise ValueError(f"{about} has a tolerance, which belongs to numbers")
        if self.key == ALL_CLASSES:
            raise ValueError(f"no key may be {ALL_CLASSES!r}, which names the mean over all questions; rename it")
        return self


class ChangedQuestion(ImageQuestion):
    """A question about an image whose edit must change the answer, from `before` to `answers`."""

    before: list[AnswerText]


def _is_number(answer: str) -> bool:
    try:
        return float(answer.replace(",", "")) == number_in(answer)
    except ValueError:
        return False


ImageQuestions = Annotated[list[ImageQuestion], Field(min_length=1, max_length=MAX_QUESTIONS)]
DEFAULT_QUESTION = ImageQuestion(question="What does the picture show?")  # of a trial of one image


class QuestionSpec(Contract):
    """How answers are compared with those that are sent with the images, which are the ground truth."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"tolerance": 0.5}]})

    tolerance: Annotated[Tolerance, Field(description="largest difference of a number that is right")] = 0.0


class AskRequest(ModelRequest):
    """`POST /v1/answers`: the answers of one model under test to some questions about each image.

    `blind`: ask them without the pictures, in the same words.
    """

    questions: ImageQuestions = Field(default_factory=lambda: [DEFAULT_QUESTION])
    blind: Annotated[bool, Field(exclude_if=lambda blind: not blind)] = False


class GivenAnswer(Contract):
    """What a model says to a question, and the answer that this is; "" where it gave none, and why.

    `text` is its beginning. The answer of `choice` is one of the options; "yes" or "no"; a number; or text. `place`:
    of the chosen option among those shown, from 0. `usage`: its tokens, where the server counts them.
    """

    text: Annotated[str, Field(max_length=MAX_ANSWER_CHARACTERS)] = ""
    answer: Annotated[str, Field(max_length=MAX_ANSWER_CHARACTERS)] = ""
    unanswered: Annotated[Unanswered | None, Field(exclude_if=lambda why: why is None)] = None
    place: Annotated[int | None, Field(exclude_if=lambda place: place is None)] = None
    usage: Annotated[TokenUsage | None, Field(exclude_if=lambda usage: usage is None)] = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if bool(self.answer) == (self.unanswered is not None):
            raise ValueError("there is either an answer, or a reason why there is none")
        return self


class AnsweredQuestion(Contract):
    """A question about an image, its `truth`, and what a model answers.

    `right`: None without truth or answer, and where an edit must change the answer: `followed` says whether it does.
    `said` in other words, if it did. `blind`: the answer without the picture, "" for none, and `blind_right`; None but
    for originals. `options`: how many there are.
    """

    question: str
    type: QuestionType
    label: str
    truth: list[str] = Field(default_factory=list)
    answer: str = ""
    said: str = ""
    right: bool | None = None
    followed: Followed | None = None
    unanswered: Unanswered | None = None
    place: int | None = None
    blind: str | None = None
    blind_right: bool | None = None
    options: int = 0
    tolerance: float | None = None


class AskReply(Contract):
    """For each image the answers to the `questions`, in their order."""

    questions: list[ImageQuestion]
    answers: list[list[GivenAnswer]]

    @model_validator(mode="after")
    def _each_answered(self) -> Self:
        if any(len(answers) != len(self.questions) for answers in self.answers):
            raise ValueError(f"there must be {len(self.questions)} answers for each image")
        return self
