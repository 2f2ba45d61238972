"""Prometheus metrics of gateway and worker: calls of the services, steps, messages.

In one process they share the default registry. The gauges of waiting work are in `gateway.operations.gauges`.
"""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from shared.service.asgi import SECONDS

CALLS = Histogram(
    "contrafact_service_call_seconds",
    "Seconds of one HTTP call to a model service, queueing included; `outcome` is the status, or `unreachable`.",
    ["service", "path", "outcome"],
    buckets=SECONDS,
)
RECORDED = Counter(
    "contrafact_recorded_calls",
    "Calls that methods requested: `found` when the reply was recorded, `made` when the service was called.",
    ["path", "outcome"],
)
STEPS = Histogram(
    "contrafact_step_seconds",
    "Seconds of work on one source image (load, call, apply) or of one analysis, by outcome.",
    ["stage", "outcome"],
    buckets=SECONDS,
)
MESSAGES = Counter(
    "contrafact_messages",
    "Celery messages: `sent`, or `lost` because of the broker; workers pick up the work of a lost one later.",
    ["task", "outcome"],
)
