"""A small classifier under test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.small_evaluator import write_classifier


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resnet") / "model"
    write_classifier(folder, 1)
    return folder
