"""Prometheus metrics of the batchers of a service."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class BatchMetrics:
    """Prometheus metrics of the batchers of one service, in the service's own registry."""

    def __init__(self, service: str, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            labelled = Histogram(f"contrafact_{name}", text, ["service"], registry=registry, buckets=buckets)
            return labelled.labels(service)

        self.batch_size = histogram("batch_size", "Items that ran together", SIZES)
        self.wait_seconds = histogram("batch_wait_seconds", "Time in the queue, per item", SECONDS)
        self.run_seconds = histogram("batch_run_seconds", "Time in the model, per batch", SECONDS)
        self.waiting = Gauge("contrafact_waiting", "Items in the queue", ["service"], registry=registry).labels(service)
        self._outcomes = Counter(
            "contrafact_batch_items", "Items by outcome", ["service", "outcome"], registry=registry
        )
        self._service = service

    def count(self, outcome: str, amount: int = 1) -> None:
        """Count items: done, failed, expired, cancelled, refused, halved (ran again in a smaller batch)."""
        self._outcomes.labels(self._service, outcome).inc(amount)
