"""The funnel of proposed counterfactuals: rejected by a text check, rendered, rejected by an image check, accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.analysis.certainty import clustered_rate
from shared.schemas.results import CheckCount, CheckedObjects, Funnel


@dataclass(frozen=True, slots=True)
class EditOutcome:
    """The outcome of one edit of a source image in `group`. `rejected_by`: the check that rejected it, or "".

    `shapes_checked`: whether a segmenter could check the shapes of the mask. `recaptioned`: whether a new caption could
    check the class. `lost_to`: the check that its null or sham arm failed, if any.
    """

    group: int
    rendered: bool
    rejected_by: str
    shapes_checked: bool = False
    recaptioned: bool = False
    lost_to: str = ""

    @property
    def counted(self) -> bool:
        """Whether the edit enters the main estimates: both it and the arm that it is measured against are accepted."""
        return not (self.rejected_by or self.lost_to)


def funnel(
    method: str,
    edits: Sequence[EditOutcome],
    *,
    shapes: bool = False,
    recaption: bool = False,
    refusal: str = "",
    asked_again: int = 0,
    label_unchecked: int = 0,
    moved_back: int = 0,
    objects: CheckedObjects | None = None,
) -> Funnel:
    """The funnel of one method's edits (without null arms). Checks are sorted by count, then name.

    `shapes`, `recaption`: whether the method checks the shapes of rendered images, and their new captions. `refusal`:
    if no edit was accepted, the most frequent reason. `asked_again`: edits with a repeated question.
    `label_unchecked`: rendered edits whose label can have any rank. `moved_back`: those that their editor had moved.
    `objects`: those of the boxes in rendered images.
    """
    accepted = np.array([not edit.rejected_by for edit in edits], bool)
    counted = np.array([edit.counted for edit in edits], bool)
    groups = np.array([edit.group for edit in edits], np.int64)
    return Funnel(
        method=method,
        proposed=len(edits),
        refused_by_text=_check_counts(edit.rejected_by for edit in edits if edit.rejected_by and not edit.rendered),
        rendered=sum(edit.rendered for edit in edits),
        refused_by_image=_check_counts(edit.rejected_by for edit in edits if edit.rejected_by and edit.rendered),
        shapes_unchecked=sum(edit.rendered and not edit.shapes_checked for edit in edits) if shapes else None,
        recaption_unchecked=sum(edit.rendered and not edit.recaptioned for edit in edits) if recaption else None,
        accepted=clustered_rate(accepted, groups),
        lost_to_arm=_check_counts(edit.lost_to for edit in edits if edit.lost_to and not edit.rejected_by),
        counted=clustered_rate(counted, groups),
        refusal=refusal,
        asked_again=asked_again,
        label_unchecked=label_unchecked,
        moved_back=moved_back,
        objects=objects,
    )


def _check_counts(checks: Iterable[str]) -> list[CheckCount]:
    counts = Counter(checks)
    return [CheckCount(check=check, count=counts[check]) for check in sorted(counts, key=lambda c: (-counts[c], c))]
