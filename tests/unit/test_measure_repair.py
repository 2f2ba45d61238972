"""Repaired models are judged as they are saved: in half precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tinyworld.measure_repair import Judge
from tinyworld.own_distribution import own_distribution
from tinyworld.pictures import rendered
from tinyworld.train_classifier import new_classifier
from tinyworld.world import CLASSES
from tinyworld.yardstick.classifiers import model_folder, save
from tinyworld.yardstick.plants import Planned


def test_a_model_in_half_precision_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    planned = Planned("half", 1)
    save(new_classifier(), planned, {})
    images = [rendered(own_distribution(index, "demo"))[0] for index in range(4)]
    right = np.array([Judge(model_folder(planned.name)).right(images, [label] * 4) for label in CLASSES])
    assert right.sum(axis=0).tolist() == [1, 1, 1, 1]  # of all labels, each picture is called exactly one
