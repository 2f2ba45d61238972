"""What a job can show, known from its labels and methods alone; before it starts, and again in its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.analysis.plan import sensitivity
from shared.schemas.diffusion import SEVERITIES
from shared.schemas.jobs import JobKind
from shared.schemas.results import Sensitivity

OF_MASKS = (
    " An image counts for each class in its mask. IoU varies less between images than accuracy, so smaller drops in "
    "IoU may be detectable."
)


def sensitivity_of(
    labels: Iterable[str | None], methods: Sequence[Mapping[str, Any]], kind: JobKind = "classification"
) -> Sensitivity:
    """What source images with these labels can show under methods with these parameters (the job's `methods`)."""
    counts = Counter(label for label in labels if label is not None)
    edits = max((_edits(method.get("parameters", {})) for method in methods), default=1)
    found = sensitivity(dict(sorted(counts.items())), edits)
    if kind == "classification":
        return found
    return found.model_copy(update={"assumption": found.assumption + OF_MASKS})


def _edits(parameters: Mapping[str, Any]) -> int:
    """How many changes of one image a method proposes; DILLEMA's default where its parameters do not say."""
    if "corruptions" in parameters:  # each has one cell (*to* it) where others have two
        return -(-len(parameters["corruptions"]) * len(SEVERITIES) // 2)
    if "shifts" in parameters:
        return len(parameters["shifts"])
    return int(parameters.get("counterfactuals_per_image", 4)) * int(parameters.get("edits_per_counterfactual", 1))
