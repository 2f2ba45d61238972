"""Inversion and editing with the shipped generator, whose text and image branches are trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from diffusion_service.attention import install
from diffusion_service.control_images import Source
from diffusion_service.editors.inversion import Inversion, InversionItem, InversionKey, Inverter
from diffusion_service.editors.prompt_to_prompt import Edited, EditItem, EditKey, PromptToPromptEditor
from diffusion_service.geometry import fit
from diffusion_service.loading import load
from diffusion_service.stable_diffusion import StableDiffusion
from shared.media.images import Pixels, digest
from shared.problems import InvalidInput
from shared.profiles.arithmetic import native_weights
from shared.profiles.profile import load_profile
from shared.schemas.diffusion import NullText, PromptEdit
from tests.support.inversions import picture
from tinyworld.objects.captions import caption
from tinyworld.objects.render import render
from tinyworld.objects.world import sample_scene

pytestmark = pytest.mark.slow

STEPS, GUIDANCE = 16, 2.5
KEY = InversionKey(128, 128, STEPS, 1.0, None, "none", 1.0)
SCENES = [sample_scene("final-test", number, allow_withheld=False) for number in (3, 8)]
OTHERS = [scene.changed(time="day" if scene.time == "night" else "night") for scene in SCENES]
# Captions leave some factors out; these wordings say the time.
WORDINGS = [
    next(wording for wording in range(100) if caption(scene, wording) != caption(other, wording))
    for scene, other in zip(SCENES, OTHERS, strict=True)
]


def psnr(image: Pixels, reference: Pixels) -> float:
    """Peak signal-to-noise ratio in dB, of different 8-bit images."""
    return 10 * float(np.log10(255**2 / np.mean((image.astype(float) - reference) ** 2)))


@pytest.fixture(scope="module")
def weights() -> StableDiffusion:
    diffusion = native_weights(torch, load_profile("tiny").diffusion, "cpu")
    weights = load(diffusion.base, diffusion.controlnets, device="cpu")
    install(weights.unet)
    return weights


def items(weights: StableDiffusion) -> list[InversionItem]:
    inversions = []
    for scene, wording in zip(SCENES, WORDINGS, strict=True):
        image = np.ascontiguousarray(render(scene).image)
        geometry = fit(128, 128, 128, weights.multiple)
        inversions.append(InversionItem(Source(image, geometry, digest(image)), caption(scene, wording)))
    return inversions


def test_null_text_reconstructs_within_half_a_decibel_of_the_round_trip(weights: StableDiffusion) -> None:
    inverter = Inverter(weights, lambda *_: None, lambda _: None)
    sources = items(weights)
    direct = inverter.invert(KEY, sources)
    null_text = inverter.invert(replace(KEY, guidance=GUIDANCE, null_text=NullText(learning_rate=0.1)), sources)
    for item, exact, near in zip(sources, direct, null_text, strict=True):
        assert isinstance(exact, Inversion)
        assert isinstance(near, Inversion)
        with torch.no_grad():
            round_trip = picture(weights, weights.encode(item.source.image))
        assert np.array_equal(exact.reconstruction, round_trip)
        assert psnr(near.reconstruction, item.source.image) > psnr(round_trip, item.source.image) - 0.5


@pytest.mark.parametrize("guidance", [7.5, GUIDANCE])
def test_an_optimisation_that_does_nothing_is_refused(weights: StableDiffusion, guidance: float) -> None:
    """Its reconstruction has 22 dB at guidance 7.5 and 30 at 2.5, so `least_psnr` of 20 accepted it."""
    inverter = Inverter(weights, lambda *_: None, lambda _: None)
    idle = NullText(iterations=1, learning_rate=1e-9)
    refused = inverter.invert(replace(KEY, guidance=guidance, null_text=idle), items(weights))
    assert ["least_gain" in refusal.detail for refusal in refused if isinstance(refusal, InvalidInput)] == [True, True]
    working = NullText(iterations=3, learning_rate=0.1)
    accepted = inverter.invert(replace(KEY, guidance=guidance, null_text=working), items(weights))
    assert [type(inversion) for inversion in accepted] == [Inversion, Inversion]


def test_a_new_prompt_changes_the_picture_more_than_the_old_one(weights: StableDiffusion) -> None:
    inverter = Inverter(weights, lambda *_: None, lambda _: None)
    inversions = [inversion for inversion in inverter.invert(KEY, items(weights)) if isinstance(inversion, Inversion)]
    edits = [
        EditItem(inversion, PromptEdit(prompt=caption(shown, wording)), 0.5)
        for inversion, wording, *pair in zip(inversions, WORDINGS, SCENES, OTHERS, strict=True)
        for shown in pair
    ]
    key = EditKey(128, 128, STEPS, GUIDANCE, None)
    edited = [
        outcome.image for outcome in PromptToPromptEditor(weights).edit(key, edits) if isinstance(outcome, Edited)
    ]
    for number, inversion in enumerate(inversions):
        null, other = edited[2 * number : 2 * number + 2]
        assert psnr(null, inversion.reconstruction) > psnr(other, inversion.reconstruction) + 1
