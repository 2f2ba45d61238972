"""Small weights and profiles of a diffusion_service."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from diffusion_service.loading import load
from diffusion_service.stable_diffusion import StableDiffusion
from shared.profiles.weights import Weights
from tests.support.inversions import PREDICTIONS, Editor, open_editor
from tests.support.small_diffusion import write_diffusion, write_segmenter
from tests.support.small_profile import write_profile

SEGMENTER = """[diffusion]
max_batch = 4
keep_labels = ["object"]
segmenter = { path = "segmenter", licence = "none", gigabytes = 0.01 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights in `base`, `control` and `segmenter`; the profiles `small.toml` and, without segmenter, `blind.toml`."""
    folder = tmp_path_factory.mktemp("diffusion")
    write_diffusion(folder)
    write_segmenter(folder / "segmenter")
    plain = write_profile(folder).read_text()
    (folder / "blind.toml").write_text(plain)
    (folder / "small.toml").write_text(plain.replace("[diffusion]\n", SEGMENTER))
    return folder


@pytest.fixture(scope="module")
def networks(folder: Path) -> StableDiffusion:
    """The networks of the weights in `base`."""
    torch.set_num_threads(1)
    return load(Weights(path=folder / "base", licence="none", gigabytes=0.01), {}, device="cpu")


@pytest.fixture(scope="module", params=PREDICTIONS)
def editor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Editor:
    """An editor by inversion; modules with editors of their own override it."""
    folder = tmp_path_factory.mktemp("diffusion")
    write_diffusion(folder, prediction=request.param)
    return open_editor(folder)
