"""The failures of a job that are worth a person's look first, from a stream of its source images.

Of each fault only the gravest failures are kept, so a job of any size needs the same memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest

from gateway.analysis.priority import Failure, Fault, evidence, review_order
from gateway.results.stream import CounterfactualRow, PredictionRow, SourceRows, cells_of
from shared.schemas.results import JobResults

LISTED = 200
_KEPT = 50  # of one fault


class ReviewList:
    """Watches source images go by and then says what to look at first; `results` are the job's figures."""

    def __init__(self, results: JobResults) -> None:
        self._models = list(dict.fromkeys(found.model for found in results.results))
        self._relation = results.results[0].relation if results.results else "labelled"
        self._evidence = {
            Fault(found.model, found.method, effect.cell): worth
            for found in results.results
            for effect in found.cells
            if (worth := evidence(effect)) > 0
        }
        self._gravest: dict[Fault, list[Failure]] = {fault: [] for fault in self._evidence}

    def watching(self, sources: Iterable[SourceRows]) -> Iterator[SourceRows]:
        """The same source images, noted as they go by."""
        for rows in sources:
            for failure in self._failures(rows):
                for fault in failure.faults:
                    kept = self._gravest[fault]
                    kept[:] = nsmallest(_KEPT, [*kept, failure], key=lambda one: (-one.loss, one.id))
            yield rows

    def order(self) -> list[str]:
        """Ids of counterfactuals, at most 200: what shows most that was not shown before comes first."""
        failures = {failure.id: failure for kept in self._gravest.values() for failure in kept}
        return review_order(failures.values(), self._evidence, LISTED)

    def _failures(self, rows: SourceRows) -> Iterator[Failure]:
        edits = [row for row in rows.counterfactuals if row.arm == "edit" and row.accepted]
        nulls = {(row.method, row.ordinal): row.id for row in rows.counterfactuals if row.arm == "null"}
        said = {model: rows.said_by(model) for model in self._models}
        for row in edits:
            faults: list[Fault] = []
            loss = 0.0
            null_id = row.source if row.null_ordinal is None else nulls.get((row.method, row.null_ordinal), "")
            for model, answers in said.items():
                original, null, seen = (answers.get(image) for image in (row.source, null_id, row.id))
                if null is None or seen is None:
                    continue
                for label in rows.labels(original, self._relation):
                    if null.holds(label) and not seen.holds(label):
                        faults += self._faults(model, row, label)
                        loss = max(loss, _loss(null, seen, label))
            if faults:
                yield Failure(row.id, loss, tuple(faults))

    def _faults(self, model: str, row: CounterfactualRow, label: str) -> list[Fault]:
        faults = (Fault(model, row.method, cell) for cell in dict.fromkeys(cells_of(row, label)))
        return [fault for fault in faults if fault in self._evidence]


def _loss(null: PredictionRow, seen: PredictionRow, label: str) -> float:
    """Of the truth's probability, or of a class's IoU; 0 where it is not known."""
    before, after = null.worth(label), seen.worth(label)
    return 0.0 if before is None or after is None else before - after
