"""Training in several processes: the gradients of all batches of a step are averaged, and one process writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.ports import free_port
from research.train.loop import Recipe, train
from research.train.ranks import Ranks

STEPS = 4
RECIPE = Recipe("some", 600, 1, 0.05, weight_decay=0.0, warmup_steps=1, ema=0.0, steps=STEPS)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def loss(network: nn.Module, number: int) -> Tensor:
    """Of the batch with this number."""
    inputs = torch.arange(3.0)[None] + number
    result: Tensor = (network(inputs) - number).square().mean()
    return result


def test_alone_a_process_is_the_first_of_one() -> None:
    ranks = Ranks.join()
    assert (ranks.first, ranks.batch(7), ranks.agree(0.25)) == (True, 7, 0.25)


def test_two_processes_train_as_one_with_both_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    code = (
        "from research.tests.unit.train.test_ranks import RECIPE, loss, model\n"
        "from research.train.loop import train\n"
        "network = model()\n"
        "train(network, loss, RECIPE)\n"
        "print(network.weight.tolist()[0])\n"
    )
    repository = Path(__file__).parents[4]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=os.environ | torchrun | {"RANK": str(rank), "PYTHONPATH": str(repository)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    weights = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert weights[0] == weights[1]
    assert (tmp_path / "runs" / "some" / "checkpoint.pt").exists()
    monkeypatch.setattr("research.train.loop.RUNS", tmp_path / "alone")
    together = model()
    train(together, lambda network, step: (loss(network, 2 * step) + loss(network, 2 * step + 1)) / 2, RECIPE)
    assert isinstance(together.weight, torch.Tensor)
    torch.testing.assert_close(together.weight[0].tolist(), [float(w) for w in weights[0][1:-1].split(",")])
