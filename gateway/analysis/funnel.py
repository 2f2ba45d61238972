"""The funnel of proposed counterfactuals: rejected by a text check, rendered, rejected by an image check, accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.analysis.certainty import clustered_rate
from shared.schemas.results import CheckCount, Funnel


@dataclass(frozen=True, slots=True)
class Fate:
    """The outcome of one edit of a source image in `group`: whether it was rendered, and what rejected it, if anything.

    `shapes_checked`: whether a segmenter could check the shapes of the mask. `recaptioned`: whether a new caption could
    check the class. `lost_to`: the check that the null or sham arm fails which it would be measured against, if any.
    """

    group: int
    rendered: bool
    refused_by: str
    shapes_checked: bool = False
    recaptioned: bool = False
    lost_to: str = ""


def funnel(method: str, fates: Sequence[Fate], *, shapes: bool = False, recaption: bool = False) -> Funnel:
    """The funnel of one method's edits (without null arms); checks sorted by count, then name.

    `shapes`, `recaption`: whether the method checks rendered images for their shapes, and by a new caption.
    """
    accepted = np.array([not fate.refused_by for fate in fates], bool)
    counted = np.array([not (fate.refused_by or fate.lost_to) for fate in fates], bool)
    groups = np.array([fate.group for fate in fates], np.int64)
    return Funnel(
        method=method,
        proposed=len(fates),
        refused_by_text=_counted(fate.refused_by for fate in fates if fate.refused_by and not fate.rendered),
        rendered=sum(fate.rendered for fate in fates),
        refused_by_image=_counted(fate.refused_by for fate in fates if fate.refused_by and fate.rendered),
        shapes_unchecked=sum(fate.rendered and not fate.shapes_checked for fate in fates) if shapes else None,
        recaption_unchecked=sum(fate.rendered and not fate.recaptioned for fate in fates) if recaption else None,
        accepted=clustered_rate(accepted, groups),
        lost_to_arm=_counted(fate.lost_to for fate in fates if fate.lost_to and not fate.refused_by),
        counted=clustered_rate(counted, groups),
    )


def _counted(checks: Iterable[str]) -> list[CheckCount]:
    counts = Counter(checks)
    return [CheckCount(check=check, count=counts[check]) for check in sorted(counts, key=lambda c: (-counts[c], c))]
