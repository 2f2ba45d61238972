"""The sham edit: the caption in other words of the same meaning, rendered as an edit is.

What a model under test does differently on the sham arm, it does because words changed at all: because of guidance,
attention and noise. `rules` puts a synonym in the place of the first phrase that has one; it needs no language model,
and its phrases are such as small text encoders know. `model` asks the language model, and falls back on the rules if
the reply is invalid, equal to the caption, or no longer names the class.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from gateway.methods.arms import Pair, RenderedArm, ShamArms
from gateway.methods.counterfactual import Edit
from gateway.methods.lineage import Exchange, Lineage
from gateway.methods.questions import InvalidReply, Question, ask, object_schema, text_schema
from gateway.methods.schedule import Inputs
from gateway.methods.words import names_class, occurrences, stems
from shared.schemas.base import Contract

Reference = Literal["sham", "null"]

# Either phrase may stand in the place of the other. In this order: what a sky is like, a place, a property, the frame.
SYNONYMS = (
    ("at night", "after dark"), ("at sunset", "at dusk"), ("during the day", "in daylight"),
    ("in the rain", "in a shower"), ("in the snow", "in falling snow"), ("in the fog", "in thick mist"),
    ("in clear weather", "under a clear sky"), ("foggy", "misty"), ("snowy", "wintry"),
    ("cloudless", "clear"), ("sunset", "dusk"),
    ("in a meadow", "in a grassy field"), ("on a beach", "by the sea"), ("on the street", "on the road"),
    ("on a street", "on a road"), ("on the sidewalk", "on the pavement"), ("in a suburb", "in a residential area"),
    ("large", "big"), ("small", "little"), ("beside", "next to"), ("bicycle", "bike"), ("automobile", "car"),
    ("photograph", "photo"), ("a picture of", "an image of"), ("the picture shows", "the image shows"),
    ("there is", "one sees"),
)  # fmt: skip
LEAD = "The picture shows this."  # before a caption that has none of these phrases

PARAPHRASE = Question(
    "paraphrase",
    "You help to test a vision model. Say the caption in other words. Name every thing, place, colour, weather and "
    "time of day that it names, and nothing else. Copy the class exactly. Change at least one word.",
    "Class: horse\nCaption: One brown horse grazes near stables. Strong winds blow this early morning.",
    '{"caption":"A brown horse is grazing close to stables. A strong wind is blowing this early morning."}',
    TypeAdapter(dict[Literal["caption"], str]),
)


class ParaphraseParameters(Contract):
    """What a job may choose about the arm that effects are measured against, and about the sham edit."""

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


@dataclass(frozen=True, slots=True)
class Paraphrase:
    """A sham edit, without changes, and the exchange with the language model that led to it, if any."""

    edit: Edit
    exchanges: tuple[Exchange, ...] = ()


def paraphrase(inputs: Inputs[ParaphraseParameters], caption: str) -> Paraphrase | None:
    """The caption in other words; None where effects are measured against null arms. Raises what services raise."""
    p, truth = inputs.parameters, inputs.image.ground_truth
    if p.reference == "null":
        return None
    exchange: tuple[Exchange, ...] = ()
    if p.paraphrase == "model":
        text, exchange = _asked(inputs, caption)
        kept = truth is None or not names_class(caption, truth) or names_class(text, truth)
        if text and kept and stems(text) != stems(caption):
            return Paraphrase(Edit((), caption, text), exchange)
    names = [name for name in (truth, *inputs.task.classes) if name is not None]
    return Paraphrase(Edit((), caption, by_rules(caption, names)), exchange)


def sham_arms(sham: Paraphrase, arms: Sequence[RenderedArm[Pair]]) -> ShamArms[Pair]:
    """The renderings of a paraphrase, with the exchange that led to it in their lineage."""
    exchanges: Lineage = {"exchanges": list(sham.exchanges)} if sham.exchanges else {}
    return ShamArms(sham.edit, [replace(arm, lineage={**arm.lineage, **exchanges}) for arm in arms])


def by_rules(caption: str, classes: list[str]) -> str:
    """The caption with one phrase replaced by its first synonym that names none of these classes, or with a lead."""
    for pair in SYNONYMS:
        if any(names_class(phrase, name) for phrase in pair for name in classes):
            continue
        for old, new in (pair, pair[::-1]):
            if occurrences(caption, old):
                whole = rf"(?<!\w){re.escape(old)}(?!\w)"
                return re.sub(whole, partial(_cased, new), caption, count=1, flags=re.IGNORECASE)
    return f"{LEAD} {caption}"


def _cased(new: str, old: re.Match[str]) -> str:
    return new[0].upper() + new[1:] if old[0][0].isupper() else new


def _asked(inputs: Inputs[ParaphraseParameters], caption: str) -> tuple[str, tuple[Exchange, ...]]:
    truth = inputs.image.ground_truth
    known = f"Class: {truth}\n" if truth is not None else ""
    messages, schema = PARAPHRASE.messages(f"{known}Caption: {caption}"), object_schema(caption=text_schema(600))
    seed = inputs.derive_seed("paraphrase", caption)
    try:
        reply, exchange = ask(inputs.services, PARAPHRASE, messages, schema, seed=seed, max_tokens=_TOKENS)
    except InvalidReply as invalid:
        return "", (invalid.exchange,)
    return " ".join(reply["caption"].split()), (exchange,)


_TOKENS = 200
