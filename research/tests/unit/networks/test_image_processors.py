"""Image processors give networks the pixel values that they are trained on."""

from __future__ import annotations

import pytest
import torch

from research.networks.image_processors import classifier_processor, segmenter_processor
from research.objects.pictures import render_pair
from research.pictures.augmentation import as_pixel_values
from tinyworld.objects.world import sample_scene


@pytest.mark.parametrize("processor", [classifier_processor(), segmenter_processor()])
def test_processors_give_the_pixel_values_of_training(processor: object) -> None:
    image, _ = render_pair(sample_scene("demo", 0))
    values = processor([image], return_tensors="pt").pixel_values  # type: ignore[operator]
    torch.testing.assert_close(values, as_pixel_values(image[None]), rtol=0, atol=1e-6)
