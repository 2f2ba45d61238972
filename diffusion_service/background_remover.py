"""The main object of a photograph, found by a background remover: an ONNX network of salient objects.

Such a network knows no classes. It answers for every photograph, also where nothing stands out, so a mask that does not
look like one object is refused with a reason, in place of a counterfactual that shows the mask's fault.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from diffusion_service.loading import local_file
from diffusion_service.once import Once
from shared.media.images import Pixels
from shared.media.regions import Mask, box_of, connected_regions
from shared.problems import NotFinite
from shared.profiles import diffusion as profiles
from shared.service.load_progress import reading

LEAST_SHARE, MOST_SHARE = 0.02, 0.8  # of the picture's area
LEAST_IN_ONE_PIECE = 0.8  # of the object's area
MOST_EDGES = 2  # of the picture, that an object touches; one that fills a corner touches two
MOST_SOFT = 0.3  # area of doubtful pixels, as a share of the object's
SURE = 0.9  # an opacity above it, or below 1 - SURE, is not doubtful
CACHED = 128  # pictures: the backgrounds of a job come again with every source image
_ERRORS_ONLY = 3
_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")
Opacity = NDArray[np.uint8]  # 0 to 255


class BackgroundRemover:
    """A loaded network."""

    def __init__(self, weights: profiles.BackgroundRemover, *, device: str) -> None:
        """Raises ValueError for a file of another digest, or a network of other inputs."""
        with reading(weights):
            data = Path(local_file(weights, weights.file)).read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            if digest != weights.sha256:
                raise ValueError(
                    f"{weights.file} of {weights.id} has SHA-256 {digest}, the profile says {weights.sha256}"
                )
            self._session = _session(data, device)
        inputs = self._session.get_inputs()
        shape = inputs[0].shape
        if (
            len(inputs) != 1
            or len(shape) != 4
            or shape[1] != 3
            or shape[2] != shape[3]
            or not isinstance(shape[2], int)
        ):
            raise ValueError(f"{weights.file} takes {shape}; a background remover takes 1 × 3 × side × side")
        self._input, self._side = inputs[0].name, shape[2]
        self._output = self._session.get_outputs()[0].name
        self._mean, self._std = (np.array(values, np.float32) for values in (weights.mean, weights.std))
        self._known = Once[bytes, Opacity](CACHED)

    def find(self, _: None, images: Sequence[Pixels]) -> list[Pixels | str | NotFinite]:
        """The object in each RGB picture: its mask (255 or 0, the picture's size), or why there is none."""
        masks: list[Pixels | str | NotFinite] = []
        for image in images:
            try:
                key = hashlib.sha256(image.tobytes() + str(image.shape).encode()).digest()
                opacity = self._known.get(key, partial(self.opacity, image))
            except NotFinite as problem:
                masks.append(problem)
                continue
            size = (image.shape[1], image.shape[0])
            mask = np.asarray(cv2.resize(opacity, size, interpolation=cv2.INTER_LINEAR) > 127)
            masks.append(implausible(opacity) or np.where(mask, np.uint8(255), np.uint8(0)))
        return masks

    def opacity(self, image: Pixels) -> Opacity:
        """The object's opacity, side × side of the network. Raises NotFinite."""
        way = cv2.INTER_AREA if min(image.shape[:2]) > self._side else cv2.INTER_LINEAR
        picture = cv2.resize(image, (self._side, self._side), interpolation=way).astype(np.float32)
        picture = (picture / max(float(picture.max()), 1.0) - self._mean) / self._std
        (output,) = self._session.run([self._output], {self._input: picture.transpose(2, 0, 1)[None]})
        if output.shape != (1, 1, self._side, self._side):
            raise ValueError(
                f"the background remover returns {output.shape}; its first output must be 1 × 1 × side × side"
            )
        if not np.isfinite(output).all():
            raise NotFinite("the background remover's output has NaN or infinity")
        return np.asarray(np.rint(output[0, 0].clip(0, 1) * 255), np.uint8)


def implausible(opacity: Opacity) -> str:
    """Why the mask that an opacity makes is not taken for one object; "" if it is."""
    mask = np.asarray(opacity > 127)
    share = float(mask.mean())
    if share < LEAST_SHARE:
        return f"nothing stands out in the photograph: the object would be {share:.1%} of it; send a mask"
    if share > MOST_SHARE:
        return f"the object found fills {share:.0%} of the photograph; send a mask"
    largest = _largest(mask)
    if largest.sum() < LEAST_IN_ONE_PIECE * mask.sum():
        return "the object found is in several pieces; send a mask"
    left, top, right, bottom = box_of(largest)
    height, width = mask.shape
    if (left == 0) + (top == 0) + (right == width) + (bottom == height) > MOST_EDGES:
        return "the object found is cut by the photograph's frame on three sides; send a mask"
    doubtful = np.mean((opacity > 255 * (1 - SURE)) & (opacity < 255 * SURE))
    if doubtful > MOST_SOFT * share:
        return "the outline of the object found is uncertain; send a mask"
    return ""


def _largest(mask: Mask) -> Mask:
    return max(connected_regions(mask), key=lambda region: int(region.sum()), default=mask)


def _session(data: bytes, device: str) -> onnxruntime.InferenceSession:
    """From bytes, so that a file cannot name others as its data."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    available = onnxruntime.get_available_providers()
    chosen = [name for name in _PROVIDERS[0 if device.startswith("cuda") else 1 :] if name in available]
    return onnxruntime.InferenceSession(data, options, providers=chosen)
