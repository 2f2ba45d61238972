"""Instructions to an editor: those that the user writes, as edits of a caption, and those that a rule writes."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from gateway.methods.counterfactual import Change, Edit, Factor
from gateway.methods.shifts import Phrase, Shift, apply_shift
from shared.schemas.base import Contract
from shared.schemas.diffusion import Instruction as InstructionText

_LONGEST_VALUE = 100


class Instruction(Contract):
    """One instruction; a plain string is its `instruction`. `value` names the change in cells (default: all of it).

    `phrase` is what a caption says of the changed image, in place of one of `replaces` ("at night" for "by day"); the
    checks compare images with such a caption. Default: the value.
    """

    instruction: InstructionText
    factor: Factor = "other"
    value: Annotated[str, Field(max_length=100)] = ""
    phrase: Annotated[str, Field(max_length=100)] = ""
    replaces: Annotated[tuple[Phrase, ...], Field(max_length=20)] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"instruction": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _short_value(self) -> Self:
        if not self.name.strip(" ."):
            raise ValueError("an instruction needs words; say what to change")
        if len(self.name) > _LONGEST_VALUE:
            raise ValueError(f"an instruction of over {_LONGEST_VALUE} characters needs a short `value`; give it one")
        if self.replaces and not self.phrase:
            raise ValueError("`replaces` needs a `phrase` that replaces them; give both")
        return self

    @property
    def name(self) -> str:
        """The value of the change."""
        return self.value or self.instruction


def edit_of_instruction(caption: str, chosen: Instruction) -> Edit:
    """The edit of a user's instruction.

    Its `phrase` replaces the first of its `replaces` that the caption has, or is added to the first sentence. Without a
    phrase, the value is added as a sentence.
    """
    if chosen.phrase:
        old, new_caption = apply_shift(caption, Shift(phrase=chosen.phrase, replaces=chosen.replaces))
    else:
        old, new_caption = "", f"{caption} {chosen.name[0].upper()}{chosen.name[1:].rstrip('.')}."
    change = Change(chosen.factor, old, chosen.phrase or chosen.name, old, chosen.name)
    return Edit((change,), caption, new_caption, chosen.instruction)


def instruction_by_rule(old: str, new: str) -> str:
    """The instruction that replaces a phrase, or adds one where there is none to replace."""
    return f"Change {old} to {new}." if old else f"Add {new}."


def instruction_back(old: str, new: str) -> str:
    """The instruction that undoes the change of a phrase to a new one, whoever worded the instruction for it."""
    return instruction_by_rule(new, old) if old else f"Remove {new}."
