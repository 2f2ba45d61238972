"""What a job can show, from its labels and methods alone: before it starts, and again in its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pydantic import JsonValue

from gateway.analysis.plan import sensitivity
from shared.schemas.base import Kind
from shared.schemas.diffusion import SEVERITIES
from shared.schemas.jobs import MethodChoice
from shared.schemas.results import Sensitivity

OF_MASKS = (
    " An image counts for each class in its mask. IoU varies less between images than accuracy, so smaller drops in "
    "IoU may be detectable."
)


def sensitivity_of(
    labels: Iterable[str | None], methods: Sequence[MethodChoice], kind: Kind = "classification"
) -> Sensitivity:
    """What source images with these labels can show under the job's methods."""
    counts = Counter(label for label in labels if label is not None)
    edits = max((_edits(method.parameters) for method in methods), default=1)
    result = sensitivity(dict(sorted(counts.items())), edits)
    if kind == "classification":
        return result
    return result.model_copy(update={"assumption": result.assumption + OF_MASKS})


def _edits(parameters: Mapping[str, JsonValue]) -> int:
    """How many changes of one image a method proposes; DILLEMA's default where its parameters do not say."""
    match parameters:
        case {"corruptions": list(corruptions)}:  # each has one cell (*to* it) where others have two
            return -(-len(corruptions) * len(SEVERITIES) // 2)
        case {"shifts": list(shifts)}:
            return len(shifts)
        case {"counterfactuals_per_image": int(counterfactuals), "edits_per_counterfactual": int(edits)}:
            return counterfactuals * edits
        case {"counterfactuals_per_image": int(counterfactuals)}:
            return counterfactuals
        case _:
            return 4
