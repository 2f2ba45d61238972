"""The failures of a job that are worth a person's look first, from a stream of its source images.

Of each fault only the gravest failures are kept, so a job of any size needs the same memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest

from gateway.analysis.priority import Failure, Fault, evidence, review_order
from gateway.results.stream import CounterfactualRow, PredictionRow, SourceRows, cells_of, triples
from shared.schemas.results import JobResults

LISTED = 200
_KEPT = 50  # of one fault


class ReviewList:
    """Watches a stream of source images, then orders their failures for review; `results` are the job's figures."""

    def __init__(self, results: JobResults) -> None:
        self._models = list(dict.fromkeys(figures.model for figures in results.results))
        self._relation = results.results[0].relation if results.results else "labelled"
        self._evidence = {
            Fault(figures.model, figures.method, effect.cell): weight
            for figures in results.results
            for effect in figures.cells
            if (weight := evidence(effect)) > 0
        }
        self._gravest: dict[Fault, list[Failure]] = {fault: [] for fault in self._evidence}

    def watching(self, sources: Iterable[SourceRows]) -> Iterator[SourceRows]:
        """The same source images, noted as they go by."""
        for rows in sources:
            for failure in self._failures(rows):
                for fault in failure.faults:
                    kept = self._gravest[fault]
                    kept[:] = nsmallest(_KEPT, [*kept, failure], key=lambda failure: (-failure.loss, failure.id))
            yield rows

    def order(self) -> list[str]:
        """Ids of counterfactuals, at most 200; each shows as much as possible that those before it do not show."""
        failures = {failure.id: failure for kept in self._gravest.values() for failure in kept}
        return review_order(failures.values(), self._evidence, LISTED)

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
