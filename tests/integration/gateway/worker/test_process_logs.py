"""The logs of processes that Celery runs have one JSON object a line, so that collectors can read them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import redis as redis_client

from tests.support.deployment import redis, redis_url
from tests.support.paths import REPOSITORY
from tests.support.processes import Program

UNUSABLE_BROKER = """
import transformers
from evaluator_service.repair_worker import main
try:
    main()
except SystemExit:
    assert not transformers.utils.logging.is_progress_bar_enabled()
"""


@pytest.mark.slow
def test_a_trainer_starts_without_a_banner(tmp_path: Path) -> None:
    broker = redis(tmp_path)
    broker.start()
    broker.wait()
    client = redis_client.Redis.from_url(redis_url(broker))
    environment = {
        "CONTRAFACT_BROKER_URL": redis_url(broker),
        "CONTRAFACT_OBJECT_STORE": f"directory:{tmp_path}/objects",
        "CONTRAFACT_DEVICE": "cpu",
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "evaluator_service.repair_worker"]
    trainer = Program(
        "trainer", command, lambda: bool(client.exists("_kombu.binding.repairs")), tmp_path / "trainer.log", environment
    )
    trainer.start()
    try:
        trainer.wait()
    finally:
        trainer.kill()
        client.close()
        broker.kill()
    for line in trainer.log.read_text(encoding="utf-8").splitlines():
        assert isinstance(json.loads(line), dict)


@pytest.mark.slow
def test_a_trainer_draws_no_progress_bars(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(REPOSITORY), "CONTRAFACT_BROKER_URL": "nothing://nobody", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", UNUSABLE_BROKER], env=environment, cwd=tmp_path, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
