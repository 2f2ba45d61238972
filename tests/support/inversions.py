"""Small editors by inversion, and requests to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from diffusion_service.attention import install
from diffusion_service.control_images import Source
from diffusion_service.editors.inversion import Inversion, InversionItem, InversionKey, Inverter
from diffusion_service.editors.prompt_to_prompt import Edited, EditItem, EditKey, PromptToPromptEditor
from diffusion_service.geometry import fit
from diffusion_service.loading import load
from diffusion_service.stable_diffusion import StableDiffusion
from shared.media.images import Pixels, digest
from shared.problems import NotFinite
from shared.profiles.weights import Weights
from shared.schemas.diffusion import NullText, PromptEdit

RANDOM = np.random.default_rng(5)
PHOTO = np.kron(RANDOM.integers(0, 256, (4, 4, 3), dtype=np.uint8), np.ones((8, 8, 1), np.uint8))
MIRRORED = np.ascontiguousarray(PHOTO[:, ::-1])
CAPTION = "A red car stands on a beach. It rains."
NIGHT = "A red car stands on a beach at night. It rains."
BLUE = "A blue car stands on a beach. It rains."
SIDE, STEPS, GUIDANCE = 32, 4, 4.0
DIRECT = InversionKey(SIDE, SIDE, STEPS, 1.0, None, "none", 1.0)
NULL_TEXT = replace(DIRECT, guidance=GUIDANCE, null_text=NullText(least_psnr=0, least_gain=0))  # of random weights
QUICKLY = replace(NULL_TEXT, null_text=NullText(iterations=1, least_psnr=0, least_gain=0))
KEY = EditKey(SIDE, SIDE, STEPS, GUIDANCE, None)
PREDICTIONS = ["epsilon", "v_prediction"]  # the latter with zero terminal SNR and trailing spacing


def source(pixels: Pixels = PHOTO) -> Source:
    return Source(pixels, fit(SIDE, SIDE, SIDE, 8), digest(pixels))


def open_weights(folder: Path) -> StableDiffusion:
    torch.set_num_threads(1)
    paths = [Weights(path=folder / name, licence="none", gigabytes=0.01) for name in ("base", "control")]
    weights = load(paths[0], {"canny": paths[1]}, device="cpu")
    install(weights.unet)
    return weights


@dataclass(frozen=True)
class Editor:
    """Inverter and editor over one set of weights, with edges that a test can recognise as control."""

    weights: StableDiffusion
    inverter: Inverter
    editor: PromptToPromptEditor

    def invert(self, key: InversionKey = DIRECT, pixels: Pixels = PHOTO, caption: str = CAPTION) -> Inversion:
        (inversion,) = self.inverter.invert(key, [InversionItem(source(pixels), caption)])
        assert isinstance(inversion, Inversion)
        return inversion

    def edit(self, *items: EditItem, key: EditKey = KEY) -> list[Pixels]:
        edited = self.editor.edit(key, items)
        return [outcome.image for outcome in edited if isinstance(outcome, Edited)]


def new_inverter(weights: StableDiffusion) -> Inverter:
    empty = np.zeros((SIDE, SIDE), np.uint8)
    return Inverter(weights, lambda _, kind: None if kind == "none" else empty, lambda _: None)


def open_editor(folder: Path, fixed_shapes: bool = False) -> Editor:
    weights = open_weights(folder)
    inverter = new_inverter(weights)
    return Editor(weights, inverter, PromptToPromptEditor(weights, fixed_shapes=fixed_shapes))


def target(inversion: Inversion, prompt: str, fraction: float = 0.5, **changes: object) -> EditItem:
    return EditItem(inversion, PromptEdit.model_validate({"prompt": prompt, **changes}), fraction)


def picture(weights: StableDiffusion, latents: torch.Tensor) -> Pixels:
    """The picture of the first latents, which are finite."""
    image = weights.pictures(latents)[0]
    assert not isinstance(image, NotFinite)
    return image


def round_trip(editor: Editor, pixels: Pixels = PHOTO) -> Pixels:
    with torch.no_grad():
        return picture(editor.weights, editor.weights.encode(pixels))


def rows_of(unet: torch.nn.Module, rows: list[int]) -> torch.utils.hooks.RemovableHandle:
    """Note the number of rows of every pass."""
    return unet.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
