"""What the generator's training rests on: the quick group normalisation and the control images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from tinyworld.dataset import edges_of, sibling, training_edges
from tinyworld.group_norm import quicken
from tinyworld.narrow_diffusion import kept, narrowed
from tinyworld.pictures import rendered
from tinyworld.publish_diffusion import save_small
from tinyworld.train_diffusion import Generator
from tinyworld.world import sample_scene, withheld


def test_quick_group_norm_has_the_gradients_of_torch() -> None:
    torch.manual_seed(0)
    norm = nn.GroupNorm(4, 24)
    nn.init.normal_(norm.weight)
    x = torch.randn(3, 24, 6, 10).to(memory_format=torch.channels_last).requires_grad_()
    expected = torch.autograd.grad((norm(x) ** 3).sum(), (x, norm.weight, norm.bias))
    quicken(norm)
    found = torch.autograd.grad((norm(x) ** 3).sum(), (x, norm.weight, norm.bias))
    for ours, theirs in zip(found, expected, strict=True):
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
    image, mask = rendered(sample_scene("demo", 4))
    full, held = edges_of(image, mask, "full"), edges_of(image, mask, "object")
    assert 0 < held.sum() < full.sum()
    assert not (held & ~full).any()
    assert not edges_of(image, mask, "none").any()


def test_training_edges_follow_from_the_random_stream() -> None:
    scene = sample_scene("generator", 5, allow_withheld=False)
    first, second = (training_edges(scene, *rendered(scene), np.random.default_rng(9)) for _ in range(2))
    assert np.array_equal(first, second)
    assert set(np.unique(first)) <= {0, 1}


def test_a_narrowed_generator_keeps_five_channels_of_six_of_the_widest_level() -> None:
    assert kept(12, 10).tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert kept(11, 10).tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]  # six of the widest level, then five of another
    narrow = Generator(32).state_dict()
    wide = {name: torch.zeros([_widened(size) for size in tensor.shape]) for name, tensor in narrow.items()}
    shapes = {name: tensor.shape for name, tensor in narrowed(wide, narrow).items()}
    assert shapes == {name: tensor.shape for name, tensor in narrow.items()}


def _widened(size: int) -> int:
    """What a size was before 192 channels became 160: joints of the widest level with itself or the next, too."""
    if size == 288:
        return 320
    return size * 6 // 5 if size % 160 == 0 else size


def test_a_published_generator_takes_half_the_bytes_and_can_be_gone_on_with(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained, other = Generator(32), Generator(32)
    for name, part in trained.named_children():
        save_small(part, tmp_path / name)
    written = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert written < 1.1 * sum(parameter.numel() for parameter in trained.parameters()), "one byte a parameter, or so"
    other.take_published(tmp_path)
    found = other.state_dict()
    for name, tensor in trained.float().state_dict().items():
        assert found[name].dtype == torch.float32
        torch.testing.assert_close(found[name], tensor, rtol=2**-4, atol=2**-9)
