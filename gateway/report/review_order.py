"""The failures of a job that people should review first, from a stream of its source images.

First a random sample of the images that each finding rests on: ids are digests, so the largest ids are one (the random
sample of the whole job begins at the smallest). Then the largest failures of each fault; only these are kept, so memory
does not grow with the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nlargest, nsmallest
from itertools import chain, zip_longest

from gateway.analysis.priority import Failure, Fault, evidence, review_order
from gateway.analysis.reviews import LEAST_OWN
from gateway.kinds.rows import CounterfactualRow, PredictionRow, labels
from gateway.results.cells import with_cells
from gateway.results.pairing import change, triples
from gateway.results.stream import SourceRows, cells_of
from gateway.results.wording import with_reviews
from shared.schemas.effects import CellEffect, ChangedImages
from shared.schemas.results import JobResults, ModelResults

MAX_LISTED = 200  # unless the samples of the findings are more
MAX_PER_FAULT = 50

# Whether the reviewers of a counterfactual that was lost (−1) or gained (1) found it valid; None if undecided.
Verdict = Callable[[str, int], bool | None]


@dataclass(slots=True)
class _Changed:
    """The changed images of a finding: `sign` is −1 for images that are lost, 1 for those that are gained.

    `size`: how many of them reviewers see first.
    """

    sign: int
    size: int
    n: int = 0
    reviewed: int = 0
    valid: int = 0
    sample: list[str] = field(default_factory=list)

    def add(self, name: str, valid: bool | None) -> None:
        self.n += 1
        self.reviewed += valid is not None
        self.valid += valid is True
        self.sample = nlargest(self.size, [*self.sample, name])

    def images(self) -> ChangedImages:
        return ChangedImages(n=self.n, reviewed=self.reviewed, valid=self.valid, sample=self.sample)


class ReviewList:
    """Collects failures from a stream of source images, then orders them for review."""

    def __init__(self, results: JobResults, verdict: Verdict = lambda name, sign: None) -> None:
        self._verdict = verdict
        self._changed = {
            Fault(figures.model, figures.method, effect.cell): _Changed(
                -1 if effect.standing == "weakness" else 1, max(LEAST_OWN, effect.reviews_needed or 0)
            )
            for figures in results.results
            for effect in figures.findings
        }
        self._models = list(dict.fromkeys(figures.model for figures in results.results))
        self._evidence = {
            Fault(figures.model, figures.method, effect.cell): weight
            for figures in results.results
            for effect in figures.cells
            if (weight := evidence(effect)) > 0
        }
        self._largest: dict[Fault, list[Failure]] = {fault: [] for fault in self._evidence}

    def collect(self, sources: Iterable[SourceRows]) -> Iterator[SourceRows]:
        """Yield the source images unchanged and collect their failures."""
        for rows in sources:
            self._collect_changed(rows)
            for failure in self._failures(rows):
                for fault in failure.faults:
                    candidates = [*self._largest[fault], failure]
                    self._largest[fault] = nsmallest(MAX_PER_FAULT, candidates, key=lambda item: (-item.loss, item.id))
            yield rows

    def apply(self, results: JobResults) -> JobResults:
        """The results with the order of review, and with the changed images of each finding."""
        first = self._samples()
        models = with_cells(results.results, self._with_changed)
        order = list(dict.fromkeys([*first, *self.order()]))[: max(MAX_LISTED, len(first))]
        return results.model_copy(update={"results": models, "review": order, "review_first": len(first)})

    def _samples(self) -> list[str]:
        """The samples of all findings, one image of each in turn; an image of several findings once."""
        in_turn = chain.from_iterable(zip_longest(*(changed.sample for changed in self._changed.values())))
        return list(dict.fromkeys(name for name in in_turn if name is not None))

    def _with_changed(self, figures: ModelResults, effect: CellEffect) -> CellEffect:
        changed = self._changed.get(Fault(figures.model, figures.method, effect.cell))
        return effect if changed is None else with_reviews(effect, changed.images())

    def order(self) -> list[str]:
        """At most 200 ids of counterfactuals. Each adds as much evidence as possible to those before it."""
        failures = {failure.id: failure for largest in self._largest.values() for failure in largest}
        return review_order(failures.values(), self._evidence, MAX_LISTED)

    def _collect_changed(self, rows: SourceRows) -> None:
        """Add the counted edits of a source image that are changed to the findings whose cells they are in."""
        for model in self._models:
            predictions = rows.predictions_of(model)
            for triple in triples(rows.counterfactuals):
                compared = triple.compare(predictions)
                if not triple.edit.counted:
                    continue
                for label in labels(compared.original):
                    sign = change(compared, label)
                    for cell in dict.fromkeys(cells_of(triple.edit, label)):
                        changed = self._changed.get(Fault(model, triple.edit.method, cell))
                        if changed is not None and changed.sign == sign:
                            changed.add(triple.edit.id, self._verdict(triple.edit.id, sign))

    def _failures(self, rows: SourceRows) -> Iterator[Failure]:
        by_model = {model: rows.predictions_of(model) for model in self._models}
        for triple in triples(rows.counterfactuals):
            edit = triple.edit
            if not edit.counted:
                continue
            faults: list[Fault] = []
            loss = 0.0
            for model, predictions in by_model.items():
                compared = triple.compare(predictions)
                reference, image = compared.reference, compared.counterfactual
                if reference is None or image is None:
                    continue
                for label in labels(compared.original):
                    if reference.holds(label) and not image.holds(label):
                        faults += self._faults(model, edit, label)
                        loss = max(loss, _loss(reference, image, label))
            if faults:
                yield Failure(edit.id, loss, tuple(faults))

    def _faults(self, model: str, row: CounterfactualRow, label: str) -> list[Fault]:
        faults = (Fault(model, row.method, cell) for cell in dict.fromkeys(cells_of(row, label)))
        return [fault for fault in faults if fault in self._evidence]


def _loss(reference: PredictionRow, counterfactual: PredictionRow, label: str) -> float:
    """Of the truth's probability, or of a class's IoU; 0 where it is not known."""
    before, after = reference.confidence(label), counterfactual.confidence(label)
    return 0.0 if before is None or after is None else before - after
