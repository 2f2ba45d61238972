"""The row of a counterfactual that the work on a source image writes."""

from __future__ import annotations

from pydantic_core import to_jsonable_python

from gateway.database.columns import (
    CounterfactualColumns,
    StoredChange,
)
from gateway.methods import JobMethod
from gateway.methods.counterfactual import Change, MethodCounterfactual
from gateway.model_services.image_shelf import ImageShelf
from gateway.worker.image_work import ImageWork
from shared.schemas.base import JsonObject
from shared.seeds import derive_id


def row_of(
    work: ImageWork, method: JobMethod, counterfactual: MethodCounterfactual, shelf: ImageShelf
) -> CounterfactualColumns:
    """A method's counterfactual as columns of `tables.Counterfactual`; keeps its images on the shelf."""
    edit = counterfactual.edit
    changes = edit.changes if edit else ()
    only = changes[0] if len(changes) == 1 else None
    control = None if counterfactual.control is None else shelf.keep(counterfactual.control.png)
    place = (work.position, method.name, method.revision, counterfactual.ordinal, counterfactual.seed)
    return {
        "id": derive_id("counterfactual", work.owner_id, work.job_id, *place),
        "method": method.name,
        "ordinal": counterfactual.ordinal,
        "arm": counterfactual.arm,
        "null_ordinal": counterfactual.null_ordinal,
        "null_check": counterfactual.null_check,
        "sham_ordinal": counterfactual.sham_ordinal,
        "sham_check": counterfactual.sham_check,
        "seed": counterfactual.seed,
        "changes": [_stored_change(change) for change in changes],
        "factor": only.factor if only else None,
        "from_value": only.from_value if only else None,
        "to_value": only.to_value if only else None,
        "caption": counterfactual.caption,
        "new_caption": edit.new_caption if edit else "",
        "image_digest": shelf.keep(counterfactual.image.png) if counterfactual.image is not None else None,
        "control_digest": control,
        "accepted": counterfactual.verdict.accepted,
        "check": counterfactual.verdict.check,
        "reason": counterfactual.verdict.reason,
        "scores": counterfactual.scores,
        "lineage": _stored_lineage(counterfactual, control),
    }


def _stored_lineage(counterfactual: MethodCounterfactual, control: str | None) -> JsonObject:
    """The lineage with the caption, the cost, the digest of the control image and how often a question was repeated."""
    stored: JsonObject = to_jsonable_python({**counterfactual.lineage, "evaluations": counterfactual.evaluations})
    if repeats := sum(exchange.get("asked", 1) - 1 for exchange in counterfactual.lineage.get("exchanges", [])):
        stored["asked_again"] = repeats
    if counterfactual.caption:
        stored["caption"] = counterfactual.caption
    if control is not None:
        stored["control"] = {"digest": control}
    return stored


def _stored_change(change: Change) -> StoredChange:
    return {
        "factor": change.factor,
        "from_phrase": change.from_phrase,
        "to_phrase": change.to_phrase,
        "from_value": change.from_value,
        "to_value": change.to_value,
    }
