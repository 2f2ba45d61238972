"""Prometheus metrics of gateway and worker: calls of the services, steps, messages.

In one process they share `REGISTRY`. The gauges of waiting work are in `gateway.operations.gauges`.
"""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest

from shared.asgi import SECONDS

CALLS = Histogram(
    "contrafact_service_call_seconds",
    "One call of a model service over HTTP, waiting in its line included; `outcome` is the status, or `unreachable`.",
    ["service", "path", "outcome"],
    buckets=SECONDS,
)
RECORDED = Counter(
    "contrafact_recorded_calls",
    "Calls that methods asked for: `found` among the recorded ones, or `made`.",
    ["path", "outcome"],
)
STEPS = Histogram(
    "contrafact_step_seconds",
    "Work on one source image (load, call, apply) or one analysis, by how it ended.",
    ["stage", "outcome"],
    buckets=SECONDS,
)
MESSAGES = Counter(
    "contrafact_messages",
    "Celery messages: `sent`, or `lost` because of the broker; what a lost one was about is found later.",
    ["task", "outcome"],
)


def exposition(*registries: CollectorRegistry) -> bytes:
    """The Prometheus text format of these registries and of the process's default one."""
    return b"".join(generate_latest(registry) for registry in (*registries, REGISTRY))
