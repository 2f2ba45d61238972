"""What a vision-language judge is asked about an edit, and the audit without which its answers count for nothing.

    judge_label  is the object still there?            the picture alone
    judge_value  does the edit show?                   the picture alone
    judge_rest   did nothing else change?              beside the source image
    pairwise     which of the two shows the edit?      beside the null arm, in both orders

"Yes", or the edit's picture of a pair, speaks for a valid edit. `contrafact audit-judge` measures a judge on edits of
known answer and writes `[evaluator.judge_audit]`. An audit holds for the server, model, revision and prompts that it
names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, FiniteFloat

from shared.profiles.weights import Section, Server
from shared.seeds import derive_digest

LABEL: Final = "judge_label"
VALUE: Final = "judge_value"
REST: Final = "judge_rest"
PAIRWISE: Final = "pairwise"
QUESTIONS: Final = {
    LABEL: "Is there a complete and recognisable {} in this image?",
    VALUE: "Does this image show the following? {}",
    REST: (
        "The second image is an edited copy of the first one. Apart from the following change, is everything else "
        "still as in the first image? {}"
    ),
    PAIRWISE: "One of these two images was made to show the following. Which of them shows it? {}",
}
CHANGE = "“{}” became “{}”"  # in `judge_rest`, which must know what went away
MOST_WORDS = 300  # characters of the changes in one question
INSTRUCTION = "{} Answer with one word: {} or {}."
YES_OR_NO, FIRST_OR_SECOND = ("yes", "no"), ("first", "second")
PROMPT = derive_digest(INSTRUCTION, CHANGE, *QUESTIONS.values()).hex()[:12]

LEAST_AUROC = 0.9  # lower limit (95 %) of a question that counts
LEAST_RIGHT = 0.8  # lower limits of its sensitivity and of its specificity
MOST_UNANSWERED = 0.2  # share of questions without an answer
Nature = Literal[
    "sound", "refuses", "unreadable", "says yes to all", "says no to all", "does not look", "no better than chance",
    "leans to yes", "leans to no", "errs often",
]  # fmt: skip
Limits = tuple[FiniteFloat, FiniteFloat, FiniteFloat]  # a figure with the ends of its 95 % interval


def question_in_words(name: str, subject: str, changes: Sequence[tuple[str, str]]) -> str:
    """A question about an edit. `subject`: the object's class; `changes`: its phrases before ("": none) and after."""
    after = "; ".join(new for _, new in changes)[:MOST_WORDS]
    words = {
        LABEL: subject,
        REST: "; ".join(CHANGE.format(old, new) if old else new for old, new in changes)[:MOST_WORDS],
    }
    return QUESTIONS[name].format(words.get(name, after))


class QuestionAudit(Section):
    """A question's answers on edits of known answer: `valid` ones, and `invalid` ones.

    `sensitivity` and `specificity` are the shares of answered valid edits above 1/2, and of answered invalid ones up to
    it; `auroc` that of P(yes). All three are None without answers of both kinds. `refused` and `unreadable` answers
    enter none of them. `nature`: what the judge is at this question; its answers count if it is sound.
    """

    valid: Annotated[int, Field(ge=0)]
    invalid: Annotated[int, Field(ge=0)]
    refused: Annotated[int, Field(ge=0)]
    unreadable: Annotated[int, Field(ge=0)]
    auroc: Limits | None = None
    sensitivity: Limits | None = None
    specificity: Limits | None = None
    nature: Nature


class CountingQuestions(NamedTuple):
    """The scores of a sound judge. An edit shows by the first of `shown` that it has; `others` count besides."""

    shown: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.shown, *self.others)


class JudgeAudit(Section):
    """`[evaluator.judge_audit]`: what `contrafact audit-judge` measured of the judge, on `edits` drawn edits.

    `prompt`: digest of the words of all questions. `missed`: share of each kind of broken edit that every sound
    question lets pass. `prompt_tokens` and `completion_tokens`: what the audit took, if the server counts them.
    """

    url: str
    model: str
    revision: str
    prompt: str
    date: str
    edits: Annotated[int, Field(ge=1)]
    seed: int
    questions: dict[str, QuestionAudit]
    missed: dict[str, float] = Field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def digest(self) -> str:
        """12 hexadecimal digits over all of it."""
        return derive_digest(self.model_dump_json()).hex()[:12]

    def misfit(self, judge: Server | None) -> str:
        """Why it says nothing of a judge; empty if it is of this one."""
        if judge is None or (self.model, self.revision, self.url) != (judge.model, judge.revision, judge.url):
            return f"the audit of {self.date} is of {self.model} {self.revision} at {self.url}"
        return "" if self.prompt == PROMPT else f"the audit of {self.date} asked in other words"

    @property
    def counting(self) -> CountingQuestions:
        """The questions whose answers count. Whether an edit shows, that of the two with the larger AUROC says."""
        sound = {name: audit for name, audit in self.questions.items() if audit.nature == "sound"}
        shown = [name for name in (VALUE, PAIRWISE) if name in sound]
        shown.sort(key=lambda name: -(sound[name].auroc or (0.0,))[0])
        return CountingQuestions(tuple(shown), tuple(name for name in (LABEL, REST) if name in sound))


def counting_questions(audit: JudgeAudit | None, judge: Server | None) -> CountingQuestions:
    """The questions whose answers by this judge count: none without an audit of it."""
    return CountingQuestions() if audit is None or audit.misfit(judge) else audit.counting


def revision_asked(judge: Server) -> str:
    """The revision of a judge's answers: of its weights, and of the questions' words."""
    return f"{judge.revision} {PROMPT}"
