"""HED's edges: the layout of ControlNet's file, the sum over five maps, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch.nn.functional import conv2d, interpolate, max_pool2d

from diffusion_service.hed import HedDetector
from gateway.operations.weights_check import needed_weights
from shared.fetch_weights import hub_files
from shared.problems import NotFinite
from shared.profile_diffusion import EdgeDetector
from shared.profiles import load_profile
from tests.support.small_diffusion import hed_weights, write_hed
from tests.support.small_profile import write_profile

FILE = "ControlNetHED.safetensors"
PHOTO = np.random.default_rng(3).integers(0, 256, (48, 80, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("hed") / "detector"
    write_hed(folder)
    return folder


def test_the_file_has_controlnets_keys_and_vggs_size(folder: Path) -> None:
    state = load_file(folder / FILE)
    assert state["norm"].shape == (1, 3, 1, 1)
    assert state["block1.convs.0.weight"].shape == (64, 3, 3, 3)
    assert state["block5.convs.2.weight"].shape == (512, 512, 3, 3)
    assert state["block5.projection.weight"].shape == (1, 512, 1, 1)
    assert len(state) == 1 + 2 * (13 + 5)
    vgg = 14_714_688  # the convolutions of VGG-16
    assert sum(value.numel() for value in state.values()) == vgg + sum((64, 128, 256, 512, 512)) + 5 + 3


def test_edges_are_the_sigmoid_of_the_mean_map(folder: Path) -> None:
    state = load_file(folder / FILE)
    features = torch.from_numpy(PHOTO).permute(2, 0, 1)[None].float() - state["norm"]
    maps = []
    for block, convolutions in enumerate((2, 2, 3, 3, 3), start=1):
        if block > 1:
            features = max_pool2d(features, 2)
        for number in range(convolutions):
            name = f"block{block}.convs.{number}"
            features = conv2d(features, state[f"{name}.weight"], state[f"{name}.bias"], padding=1).relu()
        name = f"block{block}.projection"
        edge = conv2d(features, state[f"{name}.weight"], state[f"{name}.bias"])
        maps.append(interpolate(edge, (48, 80), mode="bilinear", align_corners=False))
    expected = torch.stack(maps).mean(dim=0).sigmoid()[0, 0].mul(255).byte().numpy()
    edges = HedDetector(hed_weights(folder), device="cpu").edges(PHOTO)
    assert edges.shape == (48, 80)
    assert edges.dtype == np.uint8
    assert np.abs(edges.astype(int) - expected).max() <= 1
    assert edges.std() > 0


def test_another_network_or_no_safetensors_is_refused(folder: Path, tmp_path: Path) -> None:
    state = load_file(folder / FILE)
    del state["block3.convs.1.bias"]
    save_file(state, tmp_path / FILE)
    with pytest.raises(ValueError, match=r"block3\.convs\.1\.bias"):
        HedDetector(hed_weights(tmp_path), device="cpu")
    (tmp_path / FILE).write_bytes(b"pickle")
    with pytest.raises(ValueError, match="safetensors"):
        HedDetector(hed_weights(tmp_path), device="cpu")
    with pytest.raises(ValidationError):
        EdgeDetector(path=folder, file="ControlNetHED.pth", licence="none", gigabytes=1)


def test_weights_that_compute_nan_give_no_edges(folder: Path, tmp_path: Path) -> None:
    state = load_file(folder / FILE)
    state["block1.projection.bias"].fill_(float("nan"))
    save_file(state, tmp_path / FILE)
    with pytest.raises(NotFinite):
        HedDetector(hed_weights(tmp_path), device="cpu").edges(PHOTO)


def test_a_profile_names_detector_and_controlnet_together(tmp_path: Path) -> None:
    path = write_profile(tmp_path)
    control = 'controlnets.hed = { path = "control", licence = "none", gigabytes = 0.01 }\n'
    detector = 'hed = { hub = "someone/hed", revision = "1234", licence = "none", gigabytes = 0.1 }\n'
    text = path.read_text()
    path.write_text(text.replace("[evaluator]", f"{control}[evaluator]"))
    with pytest.raises(ValueError, match="hed"):
        load_profile(str(path))
    path.write_text(text.replace("[evaluator]", f"{control}{detector}[evaluator]"))
    profile = load_profile(str(path))
    (files,) = (files for files in hub_files(profile) if files.repository == "someone/hed")
    assert files.patterns == (FILE,)
    assert profile.diffusion.hed in needed_weights(profile)["diffusion_service"]
