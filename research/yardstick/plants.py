"""The planted weaknesses of each model under test of the yardstick, as data.

A plant belongs to a cell (class, field, value). Its dose is set by the number of backgrounds that it covers: a
classifier predicts the most probable class, so relabelling 30 % of a cell at random would change no prediction, but
relabelling the cell on a third of the backgrounds costs about 30 points. The true effect of each plant is measured
(`answer_key.py`), never assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tinyworld.objects.world import BACKGROUNDS, Scene

# relabelled: pictures of the cell carry the wrong label. absent: the training set has no picture of the cell.
# spurious: the cell is absent, as are other classes with the same value, except one frequent class.
# outside: relabelled, with a value that no caption of tinyworld can state.
Kind = Literal["relabelled", "absent", "spurious", "outside"]
TESTED_CLASSES = ("car", "bus", "truck", "boat")  # the classes of the source images
OUTSIDE_VALUE = "sepia"
PLACES = {15: BACKGROUNDS[2:3], 30: BACKGROUNDS[2:4], 60: BACKGROUNDS[:4]}  # 1, 2 and 4 of 6 backgrounds


@dataclass(frozen=True, slots=True)
class Plant:
    """One planted weakness: a model should call `label` with `field` = `value` `called`, on some backgrounds."""

    kind: Kind
    label: str
    field: str
    value: str
    called: str
    places: tuple[str, ...] = BACKGROUNDS

    def covers(self, scene: Scene) -> bool:
        """Whether the plant affects the scene (an outside value is applied to images, not to scenes)."""
        is_planted = self.kind == "outside" or getattr(scene, self.field) == self.value
        return is_planted and scene.label == self.label and scene.background in self.places


@dataclass(frozen=True, slots=True)
class Planned:
    """One model of the yardstick; a clean one has no plants. `seed` decides its batches and its share of the data."""

    name: str
    seed: int
    plants: tuple[Plant, ...] = ()


def _relabel(dose: int, label: str, field: str, value: str, called: str) -> Plant:
    return Plant("relabelled", label, field, value, called, PLACES[dose])


_BUS_NIGHT = ("bus", "time", "night", "truck")
_CAR_SNOW = ("car", "weather", "snow", "bus")
ABSENT = (
    Plant("absent", "truck", "time", "night", "bus"),
    Plant("absent", "boat", "weather", "snow", "car"),
)
SPURIOUS = (
    (Plant("spurious", "car", "weather", "fog", "truck"), Plant("spurious", "bus", "weather", "fog", "truck")),
    (Plant("spurious", "car", "time", "sunset", "boat"), Plant("spurious", "bus", "time", "sunset", "boat")),
)

PLANTED = (
    Planned("night-bus-15", 1, (_relabel(15, *_BUS_NIGHT),)),
    Planned("night-bus-30", 2, (_relabel(30, *_BUS_NIGHT),)),
    Planned("night-bus-60", 3, (_relabel(60, *_BUS_NIGHT),)),
    Planned("snow-car-15", 4, (_relabel(15, *_CAR_SNOW),)),
    Planned("snow-car-60", 5, (_relabel(60, *_CAR_SNOW),)),
    Planned("absent-night-truck", 6, (ABSENT[0],)),
    Planned("absent-snow-boat", 7, (ABSENT[1],)),
    Planned("spurious-fog", 8, SPURIOUS[0]),
    Planned("spurious-sunset", 9, SPURIOUS[1]),
    Planned("two-60-30", 10, (_relabel(60, *_BUS_NIGHT), _relabel(30, "boat", "weather", "fog", "car"))),
    Planned("two-30-15", 11, (_relabel(30, *_CAR_SNOW), _relabel(15, "truck", "time", "night", "bus"))),
    Planned("sepia-car-60", 12, (Plant("outside", "car", "style", OUTSIDE_VALUE, "truck", PLACES[60]),)),
)
CLEAN = tuple(Planned(f"clean-{number:02}", 100 + number) for number in range(1, 13))
MODELS = PLANTED + CLEAN


def is_left_out_at_start(scene: Scene) -> bool:
    """Whether the common start must leave out the scene, so that no model knows a cell that should be absent."""
    return any(plant.covers(scene) for plant in (*ABSENT, *SPURIOUS[0], *SPURIOUS[1]))
