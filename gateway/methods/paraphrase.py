"""The sham edit: a paraphrase of the caption, rendered in the same way as an edit.

If a model under test behaves differently on the sham arm, the cause is the rendering of changed words (guidance,
attention, noise), not a change of meaning. `rules` replaces the first phrase that has a synonym in every caption; it
needs no language model, and small text encoders know its phrases. `model` asks the language model, and falls back to
the rules if the reply is invalid or `restates` refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from gateway.methods.arms import Pair, RenderedArm, ShamArms
from gateway.methods.counterfactual import Edit, Exchange, Lineage, MethodParameters, Renderings
from gateway.methods.questions import (
    InvalidReply,
    Question,
    ask,
    digest_of_prompts,
    object_schema,
    revision_of,
    text_schema,
)
from gateway.methods.schedule import Inputs
from gateway.methods.text_checks import differing_part
from gateway.methods.words import content_stems, names_class, stems
from shared.schemas.base import Contract
from shared.schemas.diffusion import LONGEST_PHRASE

Reference = Literal["sham", "null"]

# The second phrase can replace the first in every caption; the reverse is listed where it is true, too. Left out are
# words with two meanings ("in the snow", "clear", "pavement") or of another degree ("mist", "dusk", "wintry").
ADVERBIALS = (
    ("at night", "after dark"), ("after dark", "at night"),
    ("during the day", "in daylight"), ("in daylight", "during the day"),
    ("in the rain", "in rainy weather"), ("in rainy weather", "in the rain"),
    ("in the fog", "in foggy weather"), ("in foggy weather", "in the fog"),
    ("under a clear sky", "under a cloudless sky"), ("under a cloudless sky", "under a clear sky"),
    ("in clear weather", "under a clear sky"),
    ("in a meadow", "in a grassy field"), ("on the street", "on the road"), ("on a street", "on a road"),
)  # fmt: skip
WORDS = (
    ("a large", "a big"), ("a big", "a large"), ("a small", "a little"),
    ("beside", "next to"), ("next to", "beside"), ("near a", "close to a"), ("near the", "close to the"),
    ("bicycle", "bike"), ("automobile", "car"),
    ("a photograph of", "a photo of"), ("a photo of", "a photograph of"),
    ("a picture of", "an image of"), ("an image of", "a picture of"),
    ("the picture shows", "the image shows"), ("the image shows", "the picture shows"),
    ("there is", "one sees"), ("one sees", "there is"),
)  # fmt: skip
SYNONYMS = (*ADVERBIALS, *WORDS)
# An adverbial ends before a mark or one of these, so that "in the rain forest" has none.
_END = (
    r"(?=\W*$|[.,;:!?]|\s(?:and|or|with|without|while|as|on|in|at|near|by|beside|next|behind|under|over|between"
    r"|after|before|during|from|to|is|are|was|were|that|which)\b)"
)
LONGEST = 1.5  # words of a paraphrase, in words of its caption
LEAST_SHARED = 0.5  # the least share of the caption's content words, and of the paraphrase's, that both have
LEAD = "The picture shows this."  # prepended to a caption without any of these phrases

PARAPHRASE = Question(
    "paraphrase",
    "You help to test a vision model. Say the caption in other words. Name every thing, place, colour, weather and "
    "time of day that it names, and nothing else. Copy the class exactly. Change at least one word.",
    "Class: horse\nCaption: One brown horse grazes near stables. Strong winds blow this early morning.",
    '{"caption":"A brown horse is grazing close to stables. A strong wind is blowing this early morning."}',
    TypeAdapter(dict[Literal["caption"], str]),
)


class ParaphraseParameters(MethodParameters):
    """A job's parameters for the reference arm of effects, and for the sham edit."""

    reference: Annotated[
        Reference,
        Field(
            description="sham: effects are measured against a paraphrase of the caption, rendered as the edits are; "
            "null: against the caption unchanged, and no paraphrase is rendered."
        ),
    ] = "sham"
    paraphrase: Annotated[
        Literal["rules", "model"],
        Field(description="Who writes the paraphrase: rules (a synonym), or the language model."),
    ] = "rules"

    def plan(self, images: int) -> Renderings:
        """Each null arm has a sham arm, unless effects are measured against null arms."""
        plan = super().plan(images)
        return plan._replace(sham_arms=plan.null_arms) if self.reference == "sham" else plan


@dataclass(frozen=True, slots=True)
class Paraphrase:
    """A sham edit (it has no changes), and the exchange with the language model, if any."""

    edit: Edit
    exchanges: tuple[Exchange, ...] = ()


def paraphrase(inputs: Inputs[ParaphraseParameters], caption: str) -> Paraphrase | None:
    """The paraphrased caption; None if effects are measured against null arms. Raises what the services raise."""
    p, truth = inputs.parameters, inputs.image.ground_truth
    if p.reference == "null":
        return None
    exchange: tuple[Exchange, ...] = ()
    if p.paraphrase == "model":
        text, exchange = _paraphrase_by_model(inputs, caption)
        if text and restates(caption, text, [*inputs.other_classes, *([truth] if truth else [])]):
            return Paraphrase(Edit((), caption, text), exchange)
    names = [name for name in (truth, *inputs.task.classes) if name is not None]
    return Paraphrase(Edit((), caption, by_rules(caption, names)), exchange)


def restates(caption: str, text: str, classes: Sequence[str]) -> bool:
    """Whether a text says the caption in other words, as far as words tell.

    It has other words, at most half as many more, names the same of the classes, and shares half of the content words
    of both. A model that is not trained to paraphrase repeats itself, or continues the example of the question.
    """
    old, new = stems(caption), stems(text)
    if new == old or len(new) > LONGEST * len(old):
        return False
    if any(names_class(text, name) != names_class(caption, name) for name in classes):
        return False
    shared = content_stems(caption) & content_stems(text)
    return len(shared) >= LEAST_SHARED * max(len(content_stems(caption)), len(content_stems(text)))


def sham_arms(sham: Paraphrase, arms: Sequence[RenderedArm[Pair]]) -> ShamArms[Pair]:
    """The renderings of a paraphrase, with its exchange in their lineage."""
    exchanges: Lineage = {"exchanges": list(sham.exchanges)} if sham.exchanges else {}
    return ShamArms(sham.edit, [replace(arm, lineage={**arm.lineage, **exchanges}) for arm in arms])


def by_rules(caption: str, classes: list[str]) -> str:
    """The caption with one phrase replaced by its first synonym that names none of these classes, or with a lead."""
    for old, new in SYNONYMS:
        if any(names_class(phrase, name) for phrase in (old, new) for name in classes):
            continue
        whole = rf"(?<![\w-]){re.escape(old)}(?![\w-])" + (_END if (old, new) in ADVERBIALS else "")
        changed, count = re.subn(whole, partial(_match_case, new), caption, count=1, flags=re.IGNORECASE)
        if count:
            return changed
    return f"{LEAD} {caption}"


def new_words(edit: Edit) -> str:
    """The words that a sham edit has for others; empty if they are too long for a phrase."""
    words = differing_part(edit.caption, edit.new_caption)[1].strip(" .,;:!?")
    return words if len(words) <= LONGEST_PHRASE else ""


def _match_case(new: str, old: re.Match[str]) -> str:
    return new[0].upper() + new[1:] if old[0][0].isupper() else new


def revision_with_paraphrase(revision: str, parameters: Contract) -> str:
    """The revision of a method with these parameters: if a language model writes its paraphrases, with theirs."""
    asks_model = (
        isinstance(parameters, ParaphraseParameters)
        and parameters.reference == "sham"
        and parameters.paraphrase == "model"
    )
    return f"{revision}-{REVISION}" if asks_model else revision


def _paraphrase_by_model(inputs: Inputs[ParaphraseParameters], caption: str) -> tuple[str, tuple[Exchange, ...]]:
    truth = inputs.image.ground_truth
    class_line = f"Class: {truth}\n" if truth is not None else ""
    messages, schema = PARAPHRASE.messages(f"{class_line}Caption: {caption}"), _SCHEMA
    seed = inputs.derive_seed("paraphrase", caption)
    try:
        reply, exchange = ask(inputs.services, PARAPHRASE, messages, schema, seed=seed, max_tokens=_TOKENS)
    except InvalidReply as invalid:
        return "", (invalid.exchange,)
    return " ".join(reply["caption"].split()), (exchange,)


_TOKENS = 200
_SCHEMA = object_schema(caption=text_schema(600))

# Raise the number whenever the same reply of the language model would give another paraphrase.
REVISION = revision_of("3", digest_of_prompts(PARAPHRASE.messages("Class: class\nCaption: caption"), _SCHEMA))
