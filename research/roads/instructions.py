"""The instructions of the domain `roads`: the looks of things, and the colour of a traffic light. Masks stay true."""

from __future__ import annotations

from research.domain.instructions import SHARED_INSTRUCTIONS, InstructionWording
from tinyworld.domain.wording import Sentences
from tinyworld.roads.phrases import SLOTS

INSTRUCTIONS = InstructionWording(SLOTS, {
    **SHARED_INSTRUCTIONS,
    "surface": Sentences(
        (
            "make the road {surface}",
            "turn the road into a {surface} road",
            "change the {old surface} road to a {surface} road",
        ),
        ("the road should be {surface}",),
    ),
    "vehicle_colour": Sentences(
        (
            "make the {vehicle} {vehicle_colour}",
            "paint the {vehicle} {vehicle_colour}",
            "turn the {old vehicle_colour} {vehicle} into a {vehicle_colour} {vehicle}",
        ),
        ("the {vehicle} should be {vehicle_colour}",),
    ),
    "clothes": Sentences(
        ("dress the pedestrian in {clothes}", "change the clothes of the pedestrian to {clothes}"),
        ("the pedestrian should be in {clothes}",),
    ),
    "traffic_light": Sentences(
        (
            "turn the traffic light {traffic_light}",
            "make the traffic light {traffic_light}",
            "switch the traffic light from {old traffic_light} to {traffic_light}",
        ),
        ("the traffic light should be {traffic_light}",),
    ),
    "season": Sentences(
        ("make the trees {season}", "turn the trees into {season} trees", "show the road with {season} trees"),
        ("the trees should be {season}",),
    ),
    "buildings": Sentences(
        (
            "turn the buildings into {buildings} buildings",
            "replace the {old buildings} buildings with {buildings} buildings",
            "show the road with {buildings} buildings",
        ),
        ("there should be {buildings} buildings",),
    ),
})  # fmt: skip
