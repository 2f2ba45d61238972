"""The failures of a job that people should review first, from a stream of its source images.

Only the largest failures of each fault are kept, so memory does not grow with the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest

from gateway.analysis.priority import Failure, Fault, evidence, review_order
from gateway.results.stream import CounterfactualRow, PredictionRow, SourceRows, cells_of, triples
from shared.schemas.results import JobResults

MAX_LISTED = 200
MAX_PER_FAULT = 50


class ReviewList:
    """Collects failures from a stream of source images, then orders them for review."""

    def __init__(self, results: JobResults) -> None:
        self._models = list(dict.fromkeys(figures.model for figures in results.results))
        self._relation = results.results[0].relation if results.results else "labelled"
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
            for failure in self._failures(rows):
                for fault in failure.faults:
                    candidates = [*self._largest[fault], failure]
                    self._largest[fault] = nsmallest(MAX_PER_FAULT, candidates, key=lambda item: (-item.loss, item.id))
            yield rows

    def order(self) -> list[str]:
        """At most 200 ids of counterfactuals. Each adds as much evidence as possible to those before it."""
        failures = {failure.id: failure for largest in self._largest.values() for failure in largest}
        return review_order(failures.values(), self._evidence, MAX_LISTED)

    def _failures(self, rows: SourceRows) -> Iterator[Failure]:
        by_model = {model: rows.predictions_of(model) for model in self._models}
        for triple in triples(rows.counterfactuals):
            edit = triple.edit
            if not edit.counted:
                continue
            faults: list[Fault] = []
            loss = 0.0
            for model, predictions in by_model.items():
                compared = triple.predictions(predictions)
                reference, image = compared.reference, compared.counterfactual
                if reference is None or image is None:
                    continue
                for label in rows.labels(compared.original, self._relation):
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
