"""Driving scenes of the domain `roads`: the closed list of factors, and the sampling of scenes.

A scene is the view of a car's camera: a road with its surface, in some place, with buildings and vegetation along it, a
vehicle ahead, a pedestrian, a traffic light, in a weather, at a time of day. Everything not named here (the road's
bend, other vehicles and people, positions, ...) is *geometry* and follows from `geometry_seed` alone. `SHAPES`
determine the masks; a change of a `LOOK` leaves every mask unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tinyworld.domain.scenes import (
    COLOURS,
    COMPANION_COLOURS,
    STYLES,
    TIMES,
    WEATHERS,
    Split,
    check_values,
    geometry_seed,
    withheld_combination,
)

# Indices of the class masks. Void is what is not judged: street lamps.
CLASSES = (
    "void", "road", "sidewalk", "vehicle", "pedestrian", "sky", "building", "vegetation", "traffic light",
)  # fmt: skip
THINGS = ("vehicle", "pedestrian")  # classes whose instances are told apart
PALETTE = (
    (0, 0, 0), (128, 64, 128), (244, 35, 232), (0, 0, 142), (220, 20, 60), (70, 130, 180), (70, 70, 70), (107, 142, 35),
    (250, 170, 30),
)  # fmt: skip

PLACES = ("city", "suburb", "countryside")
SURFACES = ("asphalt", "cobbled", "wet", "snowy")
VEHICLES = ("none", "car", "bus", "truck")
PEDESTRIANS = ("none", "standing", "walking")
WHERE = ("sidewalk", "crossing")
LIGHTS = ("none", "red", "yellow", "green")
SEASONS = ("spring", "summer", "autumn", "winter")
BUILDINGS = ("brick", "stone", "plaster", "glass")

SHAPES: dict[str, tuple[str, ...]] = {
    "place": PLACES,
    "vehicle": VEHICLES,
    "pedestrian": PEDESTRIANS,
    "where": WHERE,
    "traffic_light": LIGHTS,
}
LOOKS: dict[str, tuple[str, ...]] = {
    "surface": SURFACES,
    "vehicle_colour": COLOURS,
    "clothes": COMPANION_COLOURS,
    "season": SEASONS,
    "buildings": BUILDINGS,
    "weather": WEATHERS,
    "time": TIMES,
    "style": STYLES,
}
FACTOR_VALUES: dict[str, tuple[str, ...]] = SHAPES | LOOKS
# Contrafact's factor of each scene factor that an edit may change: masks stay true. A traffic
# light may change its colour; whether there is one is a matter of shape.
EDIT_FACTOR = {
    "surface": "adjective",
    "vehicle_colour": "adjective",
    "clothes": "adjective",
    "traffic_light": "adjective",
    "season": "background",
    "buildings": "background",
    "weather": "weather",
    "time": "weather",
    "style": "domain",
}


@dataclass(frozen=True, slots=True)
class Scene:
    """All factors of one scene. Every field but `geometry_seed` is a factor with a closed value list."""

    place: str
    surface: str
    vehicle: str  # the one ahead in the own lane; others are geometry
    vehicle_colour: str
    pedestrian: str  # the one that captions speak of; others are geometry
    clothes: str
    where: str
    traffic_light: str
    season: str
    buildings: str
    weather: str
    time: str
    style: str
    geometry_seed: int

    def __post_init__(self) -> None:
        check_values(self, FACTOR_VALUES)

    def changed(self, **factors: str) -> Scene:
        """The same scene with some factors changed: the source of a renderer counterfactual."""
        return replace(self, **factors)  # type: ignore[arg-type]


def withheld(scene: Scene) -> bool:
    """Whether (place, surface, vehicle colour, weather, time) is one of the 10 % never shown to generators."""
    return withheld_combination(scene.place, scene.surface, scene.vehicle_colour, scene.weather, scene.time)


def scene_factors(scene: Scene) -> dict[str, str]:
    """All factors that the image of a scene shows; those of an absent vehicle or pedestrian are left out."""
    shown = {name: str(getattr(scene, name)) for name in FACTOR_VALUES}
    if scene.vehicle == "none":
        del shown["vehicle_colour"]
    if scene.pedestrian == "none":
        del shown["clothes"], shown["where"]
    return shown


def sample_scene(split: Split, index: int, *, allow_withheld: bool = True) -> Scene:
    """Scene number `index` (0 to 9,999,999) of a split; no two splits, nor domains, share a geometry seed.

    Factors are drawn independently and uniformly, except that photos are as frequent as the other styles together.
    With `allow_withheld` false, withheld combinations are drawn again from the same stream.
    """
    seed = geometry_seed("roads", split, index)
    random = np.random.default_rng((0x20AD, seed))
    while True:
        values_of_scene = {name: values[int(random.integers(len(values)))] for name, values in FACTOR_VALUES.items()}
        if random.random() < 0.25:  # with one in three drawn above: half are photos
            values_of_scene["style"] = "photo"
        scene = Scene(**values_of_scene, geometry_seed=seed)
        if allow_withheld or not withheld(scene):
            return scene
