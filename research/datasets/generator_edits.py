"""Edits for inspecting a generator, in both domains: a source, its control images and a caption."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from research.datasets.generator_pictures import OBJECT_COLOURS
from research.objects.pictures import render_pair
from research.pictures.control_edges import edges_of
from research.pictures.rendered_once import Pixels
from research.roads import control_edges as roads
from tinyworld.domain.descriptions import Description
from tinyworld.domain.names import DOMAINS
from tinyworld.objects import captions, world
from tinyworld.roads import captions as road_captions
from tinyworld.roads import render as road_render
from tinyworld.roads import world as road_world

FIRST = 5_000_000  # of the split "calibration"


@dataclass(frozen=True, slots=True)
class ShownEdit:
    """Pictures are 128 x 128 x 3; `controls` by kind, edges 0 and 1 and classes in colours."""

    source: Pixels
    controls: Mapping[str, Pixels]
    truth: Pixels
    caption: str
    before: str
    after: str


def edit(domain: str, index: int) -> ShownEdit:
    """Number `index` of a fixed series: a source scene, and the same with one factor changed."""
    return _EDITS[domain](index)


def _of_objects(index: int) -> ShownEdit:
    random = np.random.default_rng((0xED17, index))
    source = world.sample_scene("calibration", FIRST + index)
    fields = [field for field in world.EDIT_FACTOR if field != "size"]
    target, field = _change(source, fields[index % len(fields)], world.FACTOR_VALUES, random)
    picture, mask = render_pair(source)
    # as the service holds on to the source for such an edit
    edges = edges_of(picture, mask, "object" if field in ("background", "companion") else "structure")
    return ShownEdit(
        picture,
        {"canny": edges, "segmentation": OBJECT_COLOURS[mask]},
        render_pair(target)[0],
        _caption(captions.describe, target, field, index),
        f"{source.label}, {getattr(source, field)}",
        f"-> {getattr(target, field)}",
    )


def _of_roads(index: int) -> ShownEdit:
    random = np.random.default_rng((0xED18, index))
    source = road_world.sample_scene("calibration", FIRST + index)
    fields = [field for field in road_world.LOOKS if field in road_world.scene_factors(source)]
    target, field = _change(source, fields[index % len(fields)], road_world.LOOKS, random)
    rendering = road_render.render(source)
    edges = edges_of(rendering.image, roads.standing(rendering.classes), "structure")
    return ShownEdit(
        rendering.image,
        {"canny": edges, "segmentation": road_render.colour_map(rendering.classes)},
        road_render.render(target).image,
        _caption(road_captions.describe, target, field, index),
        f"{field} {getattr(source, field)}",
        f"-> {getattr(target, field)}",
    )


_EDITS: dict[str, Callable[[int], ShownEdit]] = dict(zip(DOMAINS, (_of_objects, _of_roads), strict=True))


def _change(
    source: Any, field: str, values: Mapping[str, Sequence[object]], random: np.random.Generator
) -> tuple[Any, str]:
    other_values = [value for value in values[field] if value != getattr(source, field)]
    return source.changed(**{field: str(random.choice(np.array(other_values)))}), field


def _caption(describe: Callable[[Any, int], Description], scene: Any, field: str, index: int) -> str:
    """A caption that states the factor in question, where one of 50 does."""
    descriptions = [describe(scene, seed) for seed in range(index * 50, index * 50 + 50)]
    return next((caption.text for caption in descriptions if field in caption.stated), descriptions[0].text)
