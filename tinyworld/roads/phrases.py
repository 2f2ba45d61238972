"""The language of driving scenes: the phrases of every factor value, and the sentences that use them.

Weather, time, style and colours have the phrases of the domain `objects`, so that a phrase has the same value in both;
except "wet", which describes roads here and never the weather.
"""

from __future__ import annotations

from tinyworld.domain.scenes import COLOURS, COMPANION_COLOURS
from tinyworld.domain.wording import COLOUR_WORDINGS, SHARED_SLOTS, SKY_SLOTS, Sentences, Slot, Wording, check_wordings
from tinyworld.roads.world import FACTOR_VALUES

SLOTS: dict[str, Slot] = {
    **{name: SHARED_SLOTS[name] for name in (*SKY_SLOTS, "style")},
    "weather adjective": Slot("weather", {
        **SHARED_SLOTS["weather adjective"].wordings, "rain": Wording(("rainy", "showery"), ("drizzly",)),
    }),
    "place": Slot("place", {
        "city": Wording(("in a city", "among tall buildings"), ("downtown",)),
        "suburb": Wording(("in a suburb", "in a residential area"), ("in a quiet neighbourhood",)),
        "countryside": Wording(("in the countryside", "between fields"), ("out in the country",)),
    }),
    "surface": Slot("surface", {
        "asphalt": Wording(("asphalt", "paved"), ("tarmac",)),
        "cobbled": Wording(("cobbled", "cobblestone"), ("stone-set",)),
        "wet": Wording(("wet", "rain-soaked"), ("sodden",)),
        "snowy": Wording(("snow-covered", "snowed-over"), ("snowbound",)),
    }),
    "vehicle": Slot("vehicle", {
        "car": Wording(("car",)), "bus": Wording(("bus",)), "truck": Wording(("truck", "lorry")),
    }),
    "vehicle_colour": Slot("vehicle_colour", {colour: COLOUR_WORDINGS[colour] for colour in COLOURS}),
    "pedestrian": Slot("pedestrian", {
        "standing": Wording(("standing", "waiting"), ("idling",)),
        "walking": Wording(("walking", "strolling"), ("striding",)),
    }),
    "clothes": Slot("clothes", {colour: COLOUR_WORDINGS[colour] for colour in COMPANION_COLOURS}),
    "where": Slot("where", {
        "sidewalk": Wording(("on the sidewalk", "on the pavement"), ("on the footpath",)),
        "crossing": Wording(("on the crossing", "on the crosswalk"), ("on the zebra crossing",)),
    }),
    "traffic_light": Slot("traffic_light", {
        "red": Wording(("red",)), "yellow": Wording(("yellow", "amber")), "green": Wording(("green",)),
    }),
    "season": Slot("season", {
        "spring": Wording(("blossoming", "flowering"), ("blooming",)),
        "summer": Wording(("leafy", "lush"), ("verdant",)),
        "autumn": Wording(("autumnal", "russet"), ("rust-brown",)),
        "winter": Wording(("bare", "leafless"), ("naked",)),
    }),
    "buildings": Slot("buildings", {
        "brick": Wording(("brick", "brick-built"), ("clinker",)),
        "stone": Wording(("stone", "stone-built"), ("granite",)),
        "plaster": Wording(("plastered", "stuccoed"), ("rendered",)),
        "glass": Wording(("glass", "glass-fronted"), ("glazed",)),
    }),
}  # fmt: skip

# Keyed by which of the optional factors are stated. `{road}` is "road" with its surface, `{ahead}` the vehicle
# with its colour, `{person}` the pedestrian with its clothes.
OPENINGS: dict[frozenset[str], Sentences] = {
    frozenset({"style", "place"}): Sentences(
        ("A {style} of a {road} {place}.", "This {style} shows a {road} {place}."),
        ("Here is a {style} in which a {road} runs on {place}.",),
    ),
    frozenset({"style"}): Sentences(
        ("A {style} of a {road}.", "This {style} shows a {road}."), ("Here is a {style} in which a {road} runs on.",)
    ),
    frozenset({"place"}): Sentences(
        ("There is a {road} {place}.", "The camera looks along a {road} {place}."), ("One drives on a {road} {place}.",)
    ),
    frozenset(): Sentences(
        ("There is a {road}.", "The camera looks along a {road}."), ("One drives on a {road} here.",)
    ),
}
SURROUNDINGS: dict[frozenset[str], Sentences] = {
    frozenset({"season", "buildings"}): Sentences(
        (
            "Along the road there are {season} trees and {buildings} buildings.",
            "The road is lined by {buildings} buildings and {season} trees.",
        ),
        ("To both sides one sees {season} trees and {buildings} buildings.",),
    ),
    frozenset({"season"}): Sentences(
        ("Along the road there are {season} trees.", "The road is lined by {season} trees."),
        ("To both sides one sees {season} trees.",),
    ),
    frozenset({"buildings"}): Sentences(
        ("Along the road there are {buildings} buildings.", "The road is lined by {buildings} buildings."),
        ("To both sides one sees {buildings} buildings.",),
    ),
}
TRAFFIC = Sentences(
    ("A {ahead} is driving ahead.", "Ahead there is a {ahead}.", "A {ahead} is in front."),
    ("In the own lane drives a {ahead}.",),
)
PEOPLE: dict[frozenset[str], Sentences] = {
    frozenset({"pedestrian", "where"}): Sentences(
        ("A {person} is {pedestrian} {where}.", "There is a {person} {pedestrian} {where}."),
        ("One sees a {person} who is {pedestrian} {where}.",),
    ),
    frozenset({"pedestrian"}): Sentences(
        ("A {person} is {pedestrian} nearby.", "There is a {person} {pedestrian} nearby."),
        ("One sees a {person} who is {pedestrian}.",),
    ),
    frozenset({"where"}): Sentences(
        ("A {person} is {where}.", "There is a {person} {where}."), ("One sees a {person} {where}.",)
    ),
    frozenset(): Sentences(("A {person} is nearby.", "There is also a {person}."), ("One sees a {person}.",)),
}
LIGHT = Sentences(
    ("The traffic light is {traffic_light}.", "The traffic light shows {traffic_light}."),
    ("The traffic light has turned {traffic_light}.",),
)

check_wordings(SLOTS, FACTOR_VALUES)
