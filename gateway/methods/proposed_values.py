"""Which values a job changes its images to, if it names none: one question about its task and some of its captions.

The language model proposes them. A profile that declares `[defaults] values`, because its editor or its language model
knows a closed vocabulary, has its values ordered instead: those that few captions show come first. Either way a value
is left out if it could change the ground truth, by the guards of `alternatives` (`text_checks.py`), or if most captions
say it already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import TypeAdapter

from gateway.methods.counterfactual import Change, Edit, Factor, TaskDescription
from gateway.methods.questions import InvalidReply, Question, ask, object_schema, text_schema
from gateway.methods.text_checks import check_change, check_protected
from gateway.methods.words import content_stems
from shared.problems import InvalidInput
from shared.schemas.designs import LONGEST_VALUE, ChosenValue, ValueSource
from shared.seeds import derive_seed
from shared.service.endpoints import Services

MOST_PROPOSED = 12
MOST_CLASSES = 20  # in the question; the checks know all
SHOWN_BY_MOST = 0.5  # the share of captions above which a value is no change
SHOWN_BY_SOME = 0.25  # the share above which a declared value comes after the others
_TOKENS_PER_VALUE = 40

PROPOSE = Question(
    "values",
    "You help to test a vision model. Captions of some of its test images follow. Propose values that its images can "
    "be changed to: conditions that occur where the model is used, that its test images lack, and that may mislead it. "
    "Every image must be able to show each of them, and a person must see it at once. The answer to the task must "
    "stay the same, so name no class. Leave out what the captions say already. Propose only what fits this kind of "
    "image: pictures of the inside of a body, a cell or a machine have no weather and no landscape, but lighting, "
    "contrast, noise, implements, markers and surfaces. Begin with the most useful value, and mix the factors. "
    "Factors: subject (what the picture is of), object (another thing nearby), background (the place or surface), "
    "adjective (colour, size, pattern), domain (kind of picture), weather (and time of day), other. The value is "
    "the plainest word.",
    "Task: name the fruit\nClasses: apple, pear, plum\nFactors: object, background, adjective, other\nValues: 4\n"
    "Captions:\nAn apple on a white plate.\nTwo pears on a white cloth in bright light.\nA plum on a white plate.",
    '{"values":[{"factor":"other","value":"dim light"},{"factor":"object","value":"knife"},'
    '{"factor":"background","value":"wooden crate"},{"factor":"adjective","value":"bruised"}]}',
    TypeAdapter(dict[Literal["values"], list[ChosenValue]]),
)


class ProposedValues(NamedTuple):
    """The values in their order, who chose them, and why others were left out, by value."""

    values: tuple[ChosenValue, ...]
    source: ValueSource
    left_out: Mapping[str, str]


def propose_values(
    services: Services,
    task: TaskDescription,
    captions: Sequence[str],
    factors: Sequence[Factor],
    seed: int,
    declared: Sequence[ChosenValue] = (),
    protect: Sequence[str] = (),
) -> ProposedValues:
    """Values of these factors for images with such captions. `declared`: those of the profile.

    Raises InvalidInput without a usable value, and what the services raise.
    """
    if declared:
        source: ValueSource = "profile"
        known = [chosen for chosen in declared if chosen.factor in factors]
        proposed = sorted(known, key=lambda chosen: _share(captions, chosen) > SHOWN_BY_SOME)
    else:
        source, proposed = "language model", _ask(services, task, captions, factors, seed)
    left_out: dict[str, str] = {}
    values: dict[frozenset[str], ChosenValue] = {}
    for chosen in proposed:
        if reason := _refusal(chosen, task, captions, factors, protect):
            left_out[chosen.value] = reason
        else:
            values.setdefault(frozenset(content_stems(chosen.value)), chosen)
    if not values:
        whose = "the profile" if declared else "the language model"
        reasons = "; ".join(f"{value}: {reason}" for value, reason in left_out.items()) or "it named none"
        raise InvalidInput(
            f"{whose} has no usable value for this job ({reasons}); name `values`, such as weather=night, or set "
            "`design` to free"
        )
    return ProposedValues(tuple(values.values()), source, left_out)


def _ask(
    services: Services, task: TaskDescription, captions: Sequence[str], factors: Sequence[Factor], seed: int
) -> list[ChosenValue]:
    lines = [f"Task: {task.text}"]
    if task.classes:
        lines.append(f"Classes: {', '.join(task.classes[:MOST_CLASSES])}")
    lines += [f"Factors: {', '.join(factors)}", f"Values: {MOST_PROPOSED}", "Captions:", *captions]
    value = object_schema(factor={"enum": [*factors]}, value=text_schema(LONGEST_VALUE))
    schema = object_schema(values={"type": "array", "items": value, "minItems": 1, "maxItems": MOST_PROPOSED})
    try:
        reply, _ = ask(
            services, PROPOSE, PROPOSE.messages("\n".join(lines)), schema,
            seed=derive_seed("values", seed), max_tokens=_TOKENS_PER_VALUE * MOST_PROPOSED,
        )  # fmt: skip
    except InvalidReply as invalid:
        raise InvalidInput(
            f"the language model proposed no values ({invalid}); name `values`, such as weather=night, or set `design` "
            "to free"
        ) from invalid
    return reply["values"]


def _share(captions: Sequence[str], chosen: ChosenValue) -> float:
    """The share of captions that say the value."""
    words = content_stems(chosen.value)
    return sum(words <= content_stems(caption) for caption in captions) / max(1, len(captions))


def _refusal(
    chosen: ChosenValue,
    task: TaskDescription,
    captions: Sequence[str],
    factors: Sequence[Factor],
    protect: Sequence[str],
) -> str:
    """Why images should not be changed to a value; "" if they can."""
    if chosen.factor not in factors:
        return f"no method changes the factor {chosen.factor}"
    if not content_stems(chosen.value):
        return "it says nothing"
    change = Change(chosen.factor, "", chosen.value, "", chosen.value)
    touched = (check_change(change, label, ()) for label in task.classes)
    edit = Edit((change,), "", f"A picture with {chosen.value}.")
    verdict = next(filter(None, touched), None) or check_change(change, None, task.classes)
    verdict = verdict or check_protected(edit, task, protect)
    if verdict is not None:
        return verdict.reason
    return "most captions say it already" if _share(captions, chosen) > SHOWN_BY_MOST else ""
