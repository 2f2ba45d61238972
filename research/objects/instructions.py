"""The instructions of the domain `objects`: every factor that an edit may change but the size, which moves edges."""

from __future__ import annotations

from research.domain.instructions import SHARED_INSTRUCTIONS, InstructionWording
from tinyworld.domain.wording import Sentences
from tinyworld.objects.phrases import SLOTS

INSTRUCTIONS = InstructionWording(SLOTS, {
    **SHARED_INSTRUCTIONS,
    "background": Sentences(
        (
            "{background}",
            "put the {label} {background}",
            "show the {label} {background}",
        ),
        ("the {label} should be {background}",),
    ),
    "colour": Sentences(
        (
            "make the {label} {colour}",
            "paint the {label} {colour}",
            "change the colour of the {label} to {colour}",
            "turn the {old colour} {label} into a {colour} {label}",
        ),
        ("the {label} should be {colour}",),
    ),
    "pattern": Sentences(
        (
            "make the {label} {pattern}",
            "change the pattern of the {label} to {pattern}",
            "turn the {old pattern} {label} into a {pattern} {label}",
        ),
        ("the {label} should be {pattern}",),
    ),
    "companion": Sentences(
        (
            "replace the {old companion} with a {companion}",
            "turn the {old companion} into a {companion}",
            "change the {old companion} to a {companion}",
        ),
        ("put a {companion} where the {old companion} is",),
    ),
})  # fmt: skip
