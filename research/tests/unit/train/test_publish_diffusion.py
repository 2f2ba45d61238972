"""Publishing a generator of the roads: what the diffusion service loads, and sample edits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL

from diffusion_service.loading import load
from research.datasets.generator_edits import edit
from research.datasets.generator_pictures import ControlKind
from research.train import publish_diffusion
from research.train.diffusion import FOLDERS, Generator
from shared.profiles.weights import REPOSITORY, Weights

SHIPPED = REPOSITORY / "tinyworld" / "weights" / "diffusion"
BOTH: tuple[ControlKind, ...] = ("canny", "segmentation")


def weights(path: Path, subfolder: str = "") -> Weights:
    return Weights(path=path, subfolder=subfolder, licence="none", gigabytes=0.01)


def test_a_checkpoint_of_two_controlnets_becomes_what_the_service_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_diffusion, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(publish_diffusion, "weights_of", lambda domain: tmp_path / domain)
    torch.manual_seed(0)
    trained = Generator(128, (32, 32, 64), BOTH)
    (tmp_path / "runs" / "some").mkdir(parents=True)
    torch.save({"average": trained.state_dict(), "at": (7, 1.0, 0.5)}, tmp_path / "runs" / "some" / "checkpoint.pt")
    generator, progress = publish_diffusion.average("some")
    assert progress == {"steps": 7, "seconds": 1.0, "loss": 0.5}
    folder = tmp_path / "roads" / "diffusion"
    for part in ("tokenizer", "text_encoder"):  # the service needs them beside the UNet
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).symlink_to(SHIPPED / part)
    publish_diffusion.publish(generator, progress, "some", "roads")
    loaded = load(
        weights(folder),
        {kind: weights(folder, FOLDERS[kind]) for kind in BOTH},
        device="cpu",
        vae=weights(SHIPPED, "vae"),
    )
    assert set(loaded.controlnets) == set(BOTH)
    assert loaded.unet.config.block_out_channels == [32, 32, 64]
    for name, tensor in trained.unet.state_dict().items():
        torch.testing.assert_close(loaded.unet.state_dict()[name].float(), tensor, rtol=2**-4, atol=2**-9)
    shipped = AutoencoderKL.from_pretrained(SHIPPED / "vae").float().state_dict()
    assert all(torch.equal(shipped[name], tensor) for name, tensor in loaded.vae.state_dict().items())
    assert "of the roads" in (folder / "README.md").read_text()


@pytest.mark.parametrize("domain", ["objects", "roads"])
def test_edits_to_look_at_show_a_source_its_controls_and_what_is_asked_for(domain: str) -> None:
    for index in range(10):
        shown, again = edit(domain, index), edit(domain, index)
        assert np.array_equal(shown.source, again.source)
        assert shown.caption == again.caption
        assert not np.array_equal(shown.source, shown.truth)
        assert shown.controls["canny"].shape == (128, 128)
        assert set(np.unique(shown.controls["canny"])) <= {0, 1}
        assert shown.controls["segmentation"].shape == (128, 128, 3)
