"""Training the generator: the fast group normalisation, control images, and smaller widths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from research.datasets.generator_pictures import CONTROL_KINDS
from research.networks.group_norm import speed_up_group_norm
from research.objects.control_edges import sibling, training_edges
from research.objects.pictures import render_pair
from research.pictures.control_edges import edges_of
from research.system.folders import WEIGHTS
from research.train import narrow_diffusion
from research.train.diffusion import FOLDERS, Generator
from research.train.narrow_diffusion import channels_kept
from research.train.publish_diffusion import save_small
from tinyworld.objects.world import sample_scene, withheld


def test_quick_group_norm_has_the_gradients_of_torch() -> None:
    torch.manual_seed(0)
    norm = nn.GroupNorm(4, 24)
    nn.init.normal_(norm.weight)
    x = torch.randn(3, 24, 6, 10).to(memory_format=torch.channels_last).requires_grad_()
    expected = torch.autograd.grad((norm(x) ** 3).sum(), (x, norm.weight, norm.bias))
    speed_up_group_norm(norm)
    gradients = torch.autograd.grad((norm(x) ** 3).sum(), (x, norm.weight, norm.bias))
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_siblings_share_geometry_and_are_never_withheld() -> None:
    random = np.random.default_rng(3)
    for index in range(200):
        scene = sample_scene("generator", index, allow_withheld=False)
        other = sibling(scene, random)
        assert not withheld(other)
        assert other != scene
        assert (other.label, other.size, other.geometry_seed) == (scene.label, scene.size, scene.geometry_seed)


def test_object_edges_are_some_of_all_edges() -> None:
    image, mask = render_pair(sample_scene("demo", 4))
    full, of_object = edges_of(image, mask, "full"), edges_of(image, mask, "object")
    assert 0 < of_object.sum() < full.sum()
    assert not (of_object & ~full).any()
    assert not edges_of(image, mask, "none").any()


def test_training_edges_follow_from_the_random_stream() -> None:
    scene = sample_scene("generator", 5, allow_withheld=False)
    first, second = (training_edges(scene, *render_pair(scene), np.random.default_rng(9)) for _ in range(2))
    assert np.array_equal(first, second)
    assert set(np.unique(first)) <= {0, 1}


LEVELS = [(64, 64), (128, 96), (160, 128)]


def test_narrowing_keeps_channels_at_equal_distances() -> None:
    assert channels_kept(160, 128, LEVELS).tolist() == [place for place in range(160) if place % 5 < 4]
    assert channels_kept(128, 96, LEVELS).tolist() == [place for place in range(128) if place % 4 < 3]
    assert channels_kept(64, 64, LEVELS).tolist() == list(range(64))
    assert torch.equal(
        channels_kept(1280, 1024, LEVELS)[:128], channels_kept(160, 128, LEVELS)
    )  # a gated feed-forward of the widest
    joint = torch.cat([channels_kept(160, 128, LEVELS), 160 + channels_kept(128, 96, LEVELS)])
    assert torch.equal(channels_kept(288, 224, LEVELS), joint)
    with pytest.raises(ValueError, match="no way from 100 to 90"):
        channels_kept(100, 90, LEVELS)


def test_a_narrowed_generator_begins_with_the_shipped_one_s_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narrow_diffusion, "RUNS", tmp_path)
    arguments = ["--widths", "64", "96", "128", "--controls", *CONTROL_KINDS]
    monkeypatch.setattr("sys.argv", ["narrow", str(WEIGHTS / "diffusion"), "slim", *arguments])
    narrow_diffusion.main()
    start = torch.load(tmp_path / "slim" / "start.pt", weights_only=True)
    slim, shipped = Generator(128, (64, 96, 128), CONTROL_KINDS), Generator(128)
    slim.load_state_dict(start)
    shipped.take_published(WEIGHTS / "diffusion")
    wide, narrow = (model.unet.mid_block.resnets[0].conv1.weight for model in (shipped, slim))
    rows = channels_kept(160, 128, LEVELS)
    assert torch.equal(narrow, wide[rows][:, rows])
    edges, classes = (slim.controlnets[kind].state_dict() for kind in CONTROL_KINDS)
    assert all(torch.equal(edges[name], tensor) for name, tensor in classes.items())


def test_a_published_generator_takes_half_the_bytes_and_can_be_gone_on_with(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained, other = (Generator(32, controls=CONTROL_KINDS) for _ in range(2))
    save_small(trained.unet, tmp_path / "unet")
    for kind, network in trained.controlnets.items():
        save_small(network, tmp_path / FOLDERS[kind])
    written = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert written < 1.1 * sum(parameter.numel() for parameter in trained.parameters()), "one byte a parameter, or so"
    other.take_published(tmp_path)
    restored = other.state_dict()
    for name, tensor in trained.float().state_dict().items():
        assert restored[name].dtype == torch.float32
        torch.testing.assert_close(restored[name], tensor, rtol=2**-4, atol=2**-9)
