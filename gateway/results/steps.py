"""What each step of a method gets right, as DILLEMA's first research question asks (arXiv 2502.04378, RQ1).

captions       elements of the ground truth that they name; and of the classes that they name, those not in the mask.
               Not judged by a label that the method puts into them (`label_aware`)
keywords       phrases that may change; hallucinated if the caption does not have them
alternatives   phrases in their place; hallucinated if they name another class
new captions   hallucinated if they name another class than the caption
images         reviews alone

The checks of words decide on all but captions and images.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.analysis.certainty import clustered_rate
from gateway.database.tables import Counterfactual, Job, SourceImage
from gateway.feedback.reviews import Reviews
from gateway.methods import METHODS
from gateway.methods.lance import LanceParameters
from gateway.methods.words import in_captions, names_class
from shared.schemas.effects import Rate
from shared.schemas.results import Step, StepFigures

_HALLUCINATED = ("keyword in caption", "other class")
Outcomes = dict[tuple[str, Step, bool], list[tuple[str, bool]]]  # method, step, hallucination: the source, and whether


def steps_of(session: Session, job: Job, reviews: Reviews) -> dict[str, list[StepFigures]]:
    """The steps of each method that has reviews."""
    methods = {review.method for review in reviews.by_edit.values()}
    parameters = {method.name: method.parameters for method in job.methods}
    labelled = {name for name, given in parameters.items() if isinstance(given, LanceParameters) and given.label_aware}
    c, s = Counterfactual, SourceImage
    rows = select(
        c.id, c.method, s.id, c.changes, c.caption, c.new_caption, c.check, c.image_digest.is_not(None),
        s.ground_truth, s.mask_classes,
    )  # fmt: skip
    rows = rows.join(s, c.source_image_id == s.id).where(c.job_id == job.id, c.arm == "edit", c.method.in_(methods))
    outcomes: Outcomes = defaultdict(list)
    captions = set[tuple[str, str]]()
    for edit, method, source, changes, caption, new_caption, check, rendered, truth, mask in session.execute(rows):
        if (method, source) not in captions:
            captions.add((method, source))
            truths = mask or ([truth] if truth and method not in labelled else [])
            _add_caption(outcomes, method, source, caption, truths, job.classes, mask)
        refused = not rendered and bool(check)
        reached: Step = "new captions" if new_caption else "alternatives" if _replaced(changes) else "keywords"
        for step in _steps(method, reached):
            stopped = refused and step == reached
            outcomes[method, step, False].append((source, not stopped))
            outcomes[method, step, True].append((source, stopped and check in _HALLUCINATED))
        review = reviews.by_edit.get(edit)
        if rendered and review is not None and review.valid is not None and reviews.is_sampled(edit):
            outcomes[method, "images", False].append((source, review.valid))
    return {
        method: [
            StepFigures(step=step, valid=valid, hallucinated=_rate(outcomes[method, step, True]))
            for step in get_args(Step)
            if (valid := _rate(outcomes[method, step, False])) is not None
        ]
        for method in methods
    }


def _replaced(changes: Sequence[Mapping[str, object]]) -> bool:
    return any(change["to_phrase"] for change in changes)


def _steps(method: str, reached: Step) -> Sequence[Step]:
    """The steps that a proposal went through."""
    order = METHODS[method].steps if method in METHODS else ()
    return order[: order.index(reached) + 1] if reached in order else ()


def _add_caption(
    outcomes: Outcomes,
    method: str,
    source: str,
    caption: str,
    truths: Sequence[str],
    classes: Sequence[str],
    mask: Sequence[str] | None,
) -> None:
    """A caption of a picture with a mask invents the classes that the mask lacks; a label says nothing of others."""
    for truth in truths:
        outcomes[method, "captions", False].append((source, names_class(caption, in_captions(truth))))
    named = [label for label in classes if names_class(caption, in_captions(label))] if mask is not None else []
    for label in named:
        outcomes[method, "captions", True].append((source, label not in truths))


def _rate(outcomes: Sequence[tuple[str, bool]]) -> Rate | None:
    if not outcomes:
        return None
    groups = np.unique(np.array([source for source, _ in outcomes]), return_inverse=True)[1].astype(np.int64)
    return clustered_rate(np.array([right for _, right in outcomes], np.bool_), groups)
