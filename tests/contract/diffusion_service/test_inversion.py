"""Inversion on small weights: exact reconstruction, null-text embeddings, shared work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from diffusion_service.attention import install
from diffusion_service.editors import inversion
from diffusion_service.editors.inversion import Inversion, InversionItem, InversionKey, Inverter, scale_gradient
from diffusion_service.editors.prompt_to_prompt import Edited
from diffusion_service.loading import load
from shared.problems import InvalidInput
from shared.profiles.weights import Weights
from shared.schemas.diffusion import LocalBlend, NullText, PhraseWeight
from tests.support.inversions import (
    BLUE,
    CAPTION,
    DIRECT,
    KEY,
    MIRRORED,
    NULL_TEXT,
    QUICKLY,
    STEPS,
    Editor,
    new_inverter,
    round_trip,
    rows_of,
    source,
    target,
)
from tests.support.small_diffusion import write_diffusion


def test_direct_reconstructs_the_round_trip_through_the_autoencoder_exactly(editor: Editor) -> None:
    inversion = editor.invert()
    assert np.array_equal(inversion.reconstruction, round_trip(editor))
    assert inversion.evaluations == STEPS
    assert torch.isfinite(inversion.latents).all()


@pytest.mark.slow
def test_null_text_brings_guided_sampling_nearer_to_the_way_up(editor: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    """How near it comes depends on the weights; `test_shipped_editing.py` measures that on trained ones."""
    followed = editor.invert(NULL_TEXT)
    monkeypatch.setattr(inversion, "TOLERANCE", 1e6)  # content with the null embedding as it is
    (drifted,) = new_inverter(editor.weights).invert(NULL_TEXT, [InversionItem(source(), CAPTION)])
    assert isinstance(drifted, Inversion)
    goal = editor.invert().latents
    error = (followed.latents - goal).square().mean(dim=(1, 2, 3))
    assert torch.all(error[1:] < (drifted.latents - goal).square().mean(dim=(1, 2, 3))[1:])
    assert not torch.equal(followed.nulls[0], followed.nulls[-1])


def test_an_inversion_that_loses_the_image_is_refused_and_direct_never_is(editor: Editor) -> None:
    far = replace(NULL_TEXT, guidance=15.0, null_text=NullText(iterations=1, least_psnr=60, least_gain=0))
    (refusal,) = editor.inverter.invert(far, [InversionItem(source(), CAPTION)])
    assert isinstance(refusal, InvalidInput)
    assert "least_psnr" in refusal.detail
    assert isinstance(
        editor.invert(replace(far, null_text=NullText(iterations=1, least_psnr=0, least_gain=0))), Inversion
    )
    assert isinstance(editor.invert(), Inversion)


@pytest.mark.slow
def test_an_optimisation_that_does_nothing_is_refused(editor: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reconstruction may still look near: in half precision all gradients were zero, and nothing said so."""
    idle = replace(NULL_TEXT, null_text=NullText(learning_rate=1e-9, iterations=2, least_psnr=0))
    (refusal,) = editor.inverter.invert(idle, [InversionItem(source(), CAPTION)])
    assert isinstance(refusal, InvalidInput)
    assert "least_gain" in refusal.detail
    working = replace(NULL_TEXT, null_text=NullText(learning_rate=0.1, least_psnr=0))
    assert isinstance(editor.invert(working), Inversion)
    monkeypatch.setattr(inversion, "TOLERANCE", 1e6)
    (content,) = new_inverter(editor.weights).invert(idle, [InversionItem(source(), CAPTION)])
    assert isinstance(content, Inversion), "nothing was to be done"


def test_null_text_trains_embeddings_and_no_weight(editor: Editor) -> None:
    """The reference code leaves the UNet's weights to collect gradients, which costs time and memory."""
    editor.invert(NULL_TEXT)
    networks = (editor.weights.unet, editor.weights.vae, editor.weights.controlnets["canny"])
    parameters = [parameter for network in networks for parameter in network.parameters()]
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in parameters)


def test_null_text_stops_early_row_by_row(editor: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    untiring = 3 * STEPS + STEPS * 3 * NullText().iterations
    assert editor.invert(NULL_TEXT).evaluations <= untiring
    monkeypatch.setattr(inversion, "TOLERANCE", 1e6)
    fresh = new_inverter(editor.weights)
    (content,) = fresh.invert(NULL_TEXT, [InversionItem(source(), CAPTION)])
    assert isinstance(content, Inversion)
    assert content.evaluations == 3 * STEPS, "inversion, conditional, one look at the null embedding"


@pytest.mark.slow
def test_rows_that_are_done_leave_the_batch(editor: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes cost as many rows as the reply counts; a backward pass counts twice, so a third of the rest is forward."""
    items = [InversionItem(source(), CAPTION), InversionItem(source(MIRRORED), "A bus.")]
    alone = [editor.invert(NULL_TEXT, item.source.image, item.caption) for item in items]
    tolerance = min(_last_losses(editor, inversion) for inversion in alone) * 1.5  # one row is done before the other
    monkeypatch.setattr(inversion, "TOLERANCE", tolerance)
    monkeypatch.setattr(inversion, "TOLERANCE_GROWTH", 0.0)
    for fixed_shapes in (False, True):
        inverter = Inverter(editor.weights, lambda *_: None, lambda _: None, fixed_shapes=fixed_shapes)
        rows: list[int] = []
        handle = rows_of(editor.weights.unet, rows)
        both = inverter.invert(NULL_TEXT, items)
        handle.remove()
        first, second = both
        assert isinstance(first, Inversion)
        assert isinstance(second, Inversion)
        counted = [(inversion.evaluations - 3 * STEPS) // 3 + 3 * STEPS for inversion in (first, second)]
        assert counted[0] != counted[1]
        assert (sum(rows) == sum(counted)) != fixed_shapes
        assert (set(rows) == {1, 2}) != fixed_shapes


def _last_losses(editor: Editor, inversion: Inversion) -> float:
    goal = editor.invert(pixels=inversion.source.image, caption=inversion.caption).latents
    return float((inversion.latents[1:] - goal[1:]).square().mean(dim=(1, 2, 3)).max())


@pytest.mark.slow
def test_in_half_precision_the_gradient_keeps_its_direction(tmp_path: Path) -> None:
    """Unscaled, most of it is rounded to zero on the way back through the network."""
    write_diffusion(tmp_path)
    gradients = {}
    for dtype in ("float32", "float16"):
        paths = [
            Weights(path=tmp_path / name, dtype=dtype, licence="none", gigabytes=0.01) for name in ("base", "control")
        ]
        weights = load(paths[0], {"canny": paths[1]}, device="cpu")
        install(weights.unet)
        generator = torch.Generator().manual_seed(1)
        latents = torch.randn(1, 4, 64, 64, generator=generator)
        states = weights.prompts.encode("").states.float()[None].clone().requires_grad_()
        with torch.no_grad():
            goal = weights.predict(latents, 500, weights.prompts.encode(CAPTION).states.float()[None], None, ())
        losses = 1e-2 * (weights.predict(latents, 500, states, None, ()) - goal).square().mean(dim=(1, 2, 3))
        (plain,) = torch.autograd.grad(losses.sum(), states, retain_graph=True)
        gradients[dtype] = plain, scale_gradient(losses, states, latents.numel())
    expected = gradients["float32"][0]
    assert torch.equal(expected, gradients["float32"][1]), "a power of two changes no bit"
    unscaled, scaled = (
        float(torch.cosine_similarity(expected.flatten(), gradient.flatten(), dim=0))
        for gradient in gradients["float16"]
    )
    assert scaled > 0.99
    assert unscaled < 0.5


def test_sources_leave_the_batch_once_no_target_needs_them(editor: Editor) -> None:
    inversion = editor.invert()
    weigh = [PhraseWeight(phrase="blue car", weight=4)]
    blend = LocalBlend(source_phrase="red car", phrase="blue car", threshold=0.999)
    for item, sources in [
        (target(inversion, BLUE, 0.0, cross_fraction=0), 0),
        (target(inversion, BLUE, 0.5, cross_fraction=0), 2),
        (target(inversion, BLUE, 0.25, cross_fraction=0.75), 3),
        (target(inversion, BLUE, 0.0, cross_fraction=0, weights=weigh), STEPS),
        (target(inversion, BLUE, 0.0, cross_fraction=0, blend=blend), STEPS),
    ]:
        rows: list[int] = []
        handle = rows_of(editor.weights.unet, rows)
        (edited,) = editor.editor.edit(KEY, [item])
        handle.remove()
        assert isinstance(edited, Edited)
        assert rows == [3] * sources + [2] * (STEPS - sources)
        assert (edited.evaluations, edited.source_evaluations) == (2 * STEPS, sources)


@pytest.mark.slow
@pytest.mark.parametrize("key", [DIRECT, QUICKLY], ids=["direct", "null_text"])
def test_inversions_of_a_batch_do_not_feel_one_another_and_are_kept(editor: Editor, key: InversionKey) -> None:
    items = [InversionItem(source(), CAPTION), InversionItem(source(MIRRORED), "A bus.")]
    alone = new_inverter(editor.weights).invert(key, [items[0]] * 2)
    inverter = new_inverter(editor.weights)
    both = inverter.invert(key, items)
    assert isinstance(alone[0], Inversion)
    assert isinstance(both[0], Inversion)
    assert torch.equal(alone[0].latents, both[0].latents)
    assert alone[0].evaluations == both[0].evaluations
    assert inverter.invert(key, items[::-1]) == both[::-1], "the same objects: nothing is inverted twice"
