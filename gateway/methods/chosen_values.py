"""Steps 2 and 3 of a method whose values are chosen: the language model writes the phrase for a given value.

A job of balanced design gives every source image the same values (`values` of a method's parameters). Each value is one
proposal, rendered or refused, so that its cell has a row for every source image. The model is asked

1 the method's own question, which names no value and has one reply for all values of the factor
2 the same question with the value named
3 to 6 the first question again, with other seeds

until a reply has the value. Values are compared by the stems of their words ("nights" is night). What the caption says
already is refused as `no change`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Protocol

from gateway.methods.counterfactual import Change, Edit, Exchange, Factor, Verdict
from gateway.methods.questions import InvalidReply
from gateway.methods.schedule import Inputs, Proposal, accepted_proposals
from gateway.methods.words import content_stems
from shared.schemas.base import Contract
from shared.schemas.designs import ChosenValue

ATTEMPTS = 6
NAMED_ATTEMPT = 1  # the attempt whose question names the value


class Alternatives(Protocol):
    """Asks for other phrases in place of a keyword: the changes of the reply, and the exchange.

    `value` names the wanted value ("": any), `attempt` counts repeated questions from 0. Raises InvalidReply.
    """

    def __call__(self, keyword: Change, attempt: int, value: str) -> tuple[list[Change], Exchange]: ...


class Edits(Protocol):
    """Asks for whole edits of one factor, as `Alternatives` asks for phrases. A refused reply is a refused proposal."""

    def __call__(self, factor: Factor, attempt: int, value: str) -> list[Proposal]: ...


def same_value(name: str, chosen: ChosenValue) -> bool:
    """Whether a value's name is the chosen value's, by the stems of its content words."""
    return bool(content_stems(name)) and content_stems(name) == content_stems(chosen.value)


def chosen_changes(
    caption: str,
    keywords: Sequence[Proposal],
    values: Sequence[ChosenValue],
    alternatives_of: Alternatives,
) -> Iterator[Proposal]:
    """One proposal without a new caption for each value, in order: the change to it, or a refused edit.

    The keyword that changes is the first of the value's factor for which the language model writes a phrase with the
    value. Equal questions are asked once.
    """

    @cache
    def answer(keyword: Change, attempt: int, value: str) -> tuple[list[Change], Exchange]:
        try:
            return alternatives_of(keyword, attempt, value)
        except InvalidReply as invalid:
            return [], invalid.exchange

    usable = accepted_proposals(keywords)
    for chosen in values:
        of_factor = [proposal for proposal in usable if proposal.edit.changes[0].factor == chosen.factor]
        yield _chosen_change(caption, chosen, of_factor, answer)


def _chosen_change(
    caption: str,
    chosen: ChosenValue,
    keywords: Sequence[Proposal],
    answer: Alternatives,
) -> Proposal:
    for keyword in keywords:
        if same_value(keyword.edit.changes[0].from_value, chosen):
            return _no_change(keyword, chosen)
    exchanges: list[Exchange] = []
    for attempt in range(ATTEMPTS):
        for keyword in keywords:
            old = keyword.edit.changes[0]
            changes, exchange = answer(old, attempt, chosen.value if attempt == NAMED_ATTEMPT else "")
            exchanges.append(exchange)
            if new := next((change for change in changes if same_value(change.to_value, chosen)), None):
                edit = replace(keyword.edit, changes=(replace(new, to_value=chosen.value),))
                return replace(keyword, edit=edit, exchanges=(*keyword.exchanges, *exchanges))
    return _without_phrase(Edit((), caption, ""), chosen, exchanges, len(keywords))


def chosen_edits(caption: str, values: Sequence[ChosenValue], edits_of: Edits) -> Iterator[Proposal]:
    """One proposal for each value, in order: the language model's edit to it, or a refused edit. Equal questions are
    asked once."""

    @cache
    def answer(factor: Factor, attempt: int, value: str) -> list[Proposal]:
        return edits_of(factor, attempt, value)

    for chosen in values:
        yield _chosen_edit(caption, chosen, answer)


def _chosen_edit(caption: str, chosen: ChosenValue, answer: Edits) -> Proposal:
    exchanges: list[Exchange] = []
    proposed = 0
    for attempt in range(ATTEMPTS):
        proposals = answer(chosen.factor, attempt, chosen.value if attempt == NAMED_ATTEMPT else "")
        exchanges += [exchange for proposal in proposals[:1] for exchange in proposal.exchanges]
        proposed += len(proposals)
        for proposal in accepted_proposals(proposals):
            (change,) = proposal.edit.changes
            if same_value(change.from_value, chosen):
                return _no_change(replace(proposal, exchanges=tuple(exchanges)), chosen)
            if same_value(change.to_value, chosen):
                edit = replace(proposal.edit, changes=(replace(change, to_value=chosen.value),))
                return replace(proposal, edit=edit, exchanges=tuple(exchanges))
    return _without_phrase(Edit((), caption, ""), chosen, exchanges, proposed)


def _no_change(proposal: Proposal, chosen: ChosenValue) -> Proposal:
    (old,) = proposal.edit.changes
    verdict = Verdict(False, "no change", f"the caption already says {chosen.value}: “{old.from_phrase}”")
    change = replace(old, to_phrase="", to_value=chosen.value)
    return replace(proposal, edit=Edit((change,), proposal.edit.caption, ""), verdict=verdict)


def _without_phrase(edit: Edit, chosen: ChosenValue, exchanges: Sequence[Exchange], answers: int) -> Proposal:
    """A refused edit: the caption has nothing of the factor to change, or no reply had the value."""
    if answers:
        verdict = Verdict(False, "chosen value", f"the language model wrote no phrase for {chosen.value}")
    else:
        verdict = Verdict(False, "chosen value", f"the caption has no phrase of {chosen.factor} that may change")
    change = Change(chosen.factor, "", "", "", chosen.value)
    return Proposal(replace(edit, changes=(change,)), 0, verdict, exchanges=tuple(exchanges))


def with_value_seeds(inputs: Inputs[Contract], proposals: Iterable[Proposal], *, same_seed: bool) -> list[Proposal]:
    """The proposals with the seeds of their renderings: the same seed for all, or one that belongs to their value.

    So a value's rendering does not depend on the other values of the image.
    """
    seeded = []
    for proposal in proposals:
        (change,) = proposal.edit.changes
        place: tuple[str | int, ...] = (0,) if same_seed else (change.factor, change.to_value)
        seeded.append(replace(proposal, seed=inputs.derive_seed("render", *place)))
    return seeded
