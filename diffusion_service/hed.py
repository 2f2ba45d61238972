"""Holistically-nested edge detection (HED, arXiv 1504.06375), for the ControlNet of kind `hed`.

The network has the layout of ControlNet's own detector (`ControlNetHED`): VGG's five blocks on RGB, and an edge map
from each. Its public weights are pickled, so a profile names a safetensors file with the same keys.
"""

from __future__ import annotations

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from diffusion_service.loading import local_file
from shared.media.images import Pixels
from shared.problems import NotFinite
from shared.profiles.diffusion import EdgeDetector
from shared.service.load_progress import reading

BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels and convolutions


class _Block(nn.Module):
    """Convolutions of one resolution, and the projection of their features to an edge map."""

    def __init__(self, inputs: int, channels: int, convolutions: int) -> None:
        super().__init__()
        widths = [inputs] + [channels] * (convolutions - 1)
        self.convs = nn.Sequential(*(nn.Conv2d(width, channels, 3, padding=1) for width in widths))
        self.projection = nn.Conv2d(channels, 1, 1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        for convolution in self.convs:
            features = convolution(features).relu()
        return features, self.projection(features)


class HedNetwork(nn.Module):
    """RGB images of 0 … 255 (batch × 3 × height × width) to five edge maps before the sigmoid, each half the last."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.zeros(1, 3, 1, 1))
        inputs = 3
        for number, (channels, convolutions) in enumerate(BLOCKS, start=1):
            self.add_module(f"block{number}", _Block(inputs, channels, convolutions))
            inputs = channels

    def forward(self, images: Tensor) -> list[Tensor]:
        features, edges = images - self.norm, list[Tensor]()
        for number in range(1, len(BLOCKS) + 1):
            if number > 1:
                features = max_pool2d(features, 2)
            features, edge = self.get_submodule(f"block{number}")(features)
            edges.append(edge)
        return edges


class HedDetector:
    """The edges of images, from weights of ControlNet's layout."""

    def __init__(self, weights: EdgeDetector, *, device: str) -> None:
        """Load the profile's safetensors file. Raises ValueError if it is another network, OSError if it is missing."""
        with torch.device("meta"):  # parameters without storage, because the file's parameters replace them
            network = HedNetwork()
        with reading(weights):
            try:
                state = load_file(local_file(weights, weights.file))
            except SafetensorError as error:
                raise ValueError(f"{weights.file} of {weights.id} is not a safetensors file: {error}") from error
        _check_layout(weights, state, network.state_dict())
        network.load_state_dict(state, assign=True)
        self._network = network.to(device, getattr(torch, weights.dtype)).eval().requires_grad_(False)

    @torch.inference_mode()
    def edges(self, image: Pixels) -> Pixels:
        """Edge probability × 255 of an RGB image, height × width: mean of the five maps' logits. Raises NotFinite."""
        norm = self._network.norm
        pixels = torch.from_numpy(image).to(norm.device, norm.dtype).permute(2, 0, 1)[None]
        maps = [
            interpolate(edge.float(), size=image.shape[:2], mode="bilinear", align_corners=False)
            for edge in self._network(pixels)
        ]
        edges = torch.stack(maps).mean(dim=0).sigmoid()[0, 0]
        if not edges.isfinite().all():
            raise NotFinite("the detected edges have NaN or infinity; set CONTRAFACT_DTYPE to float32 or bfloat16")
        return np.asarray(edges.mul(255).byte().cpu().numpy(), np.uint8)


def _check_layout(weights: EdgeDetector, state: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raise ValueError for a file with other parameters than the network's."""
    shapes, present = ({name: tuple(value.shape) for name, value in part.items()} for part in (expected, state))
    if different := sorted(name for name in {*shapes, *present} if shapes.get(name) != present.get(name)):
        name = different[0]
        raise ValueError(
            f"{weights.file} of {weights.id} is not a HED network in ControlNet's layout: {name} is "
            f"{present.get(name, 'missing')}, expected {shapes.get(name, 'none')}; "
            "name the converted ControlNetHED weights"
        )
