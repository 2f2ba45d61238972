"""In which fields two scenes of a domain differ."""

from __future__ import annotations

from dataclasses import fields

from tinyworld.objects.world import Scene
from tinyworld.roads.world import Scene as RoadScene


def differing_fields(first: Scene | RoadScene, second: Scene | RoadScene) -> set[str]:
    """Names of the fields in which they differ."""
    return {field.name for field in fields(first) if getattr(first, field.name) != getattr(second, field.name)}
