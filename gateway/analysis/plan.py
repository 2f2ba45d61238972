"""What a job can show, from the number of source images of each class, before it starts."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.power import detectable_drop, sources_needed
from shared.schemas.results import DetectableDrop, ImagesNeeded, Sensitivity

DROPS = (0.5, 0.25, 0.1)  # told for every job
WISHED = 0.1  # told beside what a class can show


def sensitivity(sources: Mapping[str, int], edits_per_image: int) -> Sensitivity:
    """What classes of so many source images can show when each image is edited so many times.

    An edit is in two cells (to its new value, from its old one); a cell that holds every image of a class leaves room
    for no more than 2 · edits of them, so this is the family that is tested together.
    """
    tested = sum(count >= LEAST_SOURCES for count in sources.values())
    family = max(1, tested) * 2 * edits_per_image
    return Sensitivity(
        family=family,
        classes=[_class(label, count, family) for label, count in sources.items()],
        needed=[ImagesNeeded(drop=drop, sources=sources_needed(drop, family)) for drop in DROPS],
        assumption=(
            "Found 4 times of 5, for a change that every image of the class gets and that the checks accept; a change "
            f"that fewer get shows only what those can show. {family} cells are assumed to be tested together, and a "
            "model that is right on 95 % of null arms."
        ),
    )


def _class(label: str, sources: int, family: int) -> DetectableDrop:
    drop = detectable_drop(sources, family)
    said = f"with your {sources} `{label}` image{'' if sources == 1 else 's'}: "
    if drop is None:
        said += "nothing" + (f", since a cell needs {LEAST_SOURCES}" if sources < LEAST_SOURCES else "")
        wished = DROPS[0]
    else:
        said += f"drops of {round(100 * drop)} points or more"
        wished = WISHED
    needed = sources_needed(wished, family)
    if needed is not None and (drop is None or drop > wished):
        said += f"; for {round(100 * wished)} points bring {needed:,}"
    return DetectableDrop(label=label, sources=sources, drop=drop, sentence=said)
