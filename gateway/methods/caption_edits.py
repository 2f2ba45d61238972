"""Asks a language model for edits of a caption; LANCE and instruct have the questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.methods.counterfactual import ACCEPTED, Change, Edit, Factor, TaskDescription
from gateway.methods.questions import InvalidReply, Question, Schema, ask, object_schema, text_schema
from gateway.methods.schedule import Inputs, Proposal
from gateway.methods.word_diff import check_diff
from shared.schemas.base import Contract
from shared.schemas.language import Message


@dataclass(frozen=True, slots=True)
class PerturbedCaption:
    """An edit as the language model writes it: the new caption, and the change that it claims.

    The questions of `instruct` also ask for an `instruction`; LANCE's do not.
    """

    from_phrase: str
    from_value: str
    to_phrase: str
    to_value: str
    caption: str
    instruction: str = ""


PerturbReply = dict[Literal["edits"], list[PerturbedCaption]]


@dataclass(frozen=True, slots=True)
class EditQuestion:
    """A question for up to `most` edits of a caption; `value`: for one edit to it."""

    question: Question[PerturbReply]
    schema: Schema
    most: int
    tokens_per_edit: int
    temperature: float
    value: str = ""


def ask_for_edits(
    inputs: Inputs[Contract], caption: str, factor: Factor, attempt: int, asked: EditQuestion
) -> list[Proposal]:
    """The language model's edits of a factor. The word diff refuses captions that change more than they claim.

    Without a valid reply the result is one refused edit of this factor. `attempt` counts repetitions of a question from
    0; each has another seed.
    """
    truth, most = inputs.image.ground_truth, asked.most
    messages = perturb_messages(inputs.task, caption, truth, factor, most, asked.question, asked.value)
    seed, longest = inputs.derive_seed(factor, caption, *([attempt] if attempt else [])), asked.tokens_per_edit * most
    try:
        reply, exchange = ask(
            inputs.services, asked.question, messages, asked.schema,
            seed=seed, max_tokens=longest, temperature=asked.temperature,
        )  # fmt: skip
    except InvalidReply as invalid:
        unchanged = Edit((Change(factor, "", "", "", ""),), caption, "")
        return [Proposal(unchanged, inputs.seed, invalid.verdict, exchanges=(invalid.exchange,))]
    proposals = []
    for new in reply["edits"]:
        change = Change(factor, new.from_phrase, new.to_phrase, new.from_value, new.to_value)
        edit = Edit((change,), caption, " ".join(new.caption.split()), " ".join(new.instruction.split()))
        proposals.append(Proposal(edit, inputs.seed, check_diff(edit) or ACCEPTED, exchanges=(exchange,)))
    return proposals


def perturb_messages(
    task: TaskDescription,
    caption: str,
    ground_truth: str | None,
    factor: Factor,
    most: int,
    question: Question[PerturbReply],
    value: str = "",
) -> list[Message]:
    """The question for step 2: up to `most` edits of the caption that change one thing of a factor, or to `value`.

    The caption starts on a new line, so that its first word has the same tokens as in the reply.
    """
    class_line = f"\nClass: {ground_truth}" if ground_truth is not None else ""
    value_line = f"\nValue: {value}" if value else ""
    text = f"Task: {task.text}{class_line}\nFactor: {factor}{value_line}\nEdits: {most}\nCaption:\n{caption}"
    return question.messages(text)


def perturb_schema(most: int, additions: bool = False, *, instructions: bool = False) -> Schema:
    """Schema of the reply: up to `most` edits, each with phrases, canonical values and the new caption.

    With `additions`, what an edit replaces may be empty. With `instructions`, each edit has one.
    """
    longest = {"from_phrase": 60, "from_value": 40, "to_phrase": 60, "to_value": 40, "caption": 600}
    if instructions:
        longest["instruction"] = 300
    texts = {name: text_schema(length) for name, length in longest.items()}
    if additions:
        texts |= {name: {**texts[name], "minLength": 0} for name in ("from_phrase", "from_value")}
    edit = object_schema(**texts)
    return object_schema(edits={"type": "array", "items": edit, "maxItems": most})
