"""The trainer's probes, of a real process with a real broker."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from tests.support.deployment import redis, redis_url
from tests.support.paths import REPOSITORY
from tests.support.processes import Program, free_port, http_ready


@pytest.mark.slow
def test_a_trainer_answers_the_paths_of_the_probes_alone(tmp_path: Path) -> None:
    broker = redis(tmp_path)
    broker.start()
    broker.wait()
    port = free_port()
    environment = {
        "CONTRAFACT_BROKER_URL": redis_url(broker),
        "CONTRAFACT_OBJECT_STORE": f"directory:{tmp_path}/objects",
        "CONTRAFACT_DEVICE": "cpu",
        "CONTRAFACT_METRICS_PORT": str(port),
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "evaluator_service.repair_worker"]
    url = f"http://127.0.0.1:{port}"
    trainer = Program("trainer", command, http_ready(f"{url}/readyz"), tmp_path / "trainer.log", environment)
    trainer.start()
    try:
        trainer.wait()
        replies = {path: httpx.get(f"{url}{path}") for path in ("/readyz", "/healthz", "/metrics", "/")}
        assert {path: reply.status_code for path, reply in replies.items()} == {
            "/readyz": 200,
            "/healthz": 200,
            "/metrics": 200,
            "/": 404,
        }
        assert replies["/readyz"].json() == {"status": "ready"}
        assert "process_resident_memory_bytes" in replies["/metrics"].text
        assert trainer.stop() == 0
    finally:
        trainer.kill()
        broker.kill()
