"""Prompt-to-prompt on small weights: edits without effect, injected fractions, local blend, shared work."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from diffusion_service.editors.inversion import Inversion, InversionItem, Inverter, Steps
from diffusion_service.editors.prompt_to_prompt import Edited, EditItem, PromptToPromptEditor, Refusal
from diffusion_service.stable_diffusion import StableDiffusion
from shared.media.images import Pixels
from shared.problems import NotFinite
from shared.schemas.diffusion import LocalBlend, PhraseWeight, PromptEdit
from tests.support.inversions import (
    BLUE,
    CAPTION,
    DIRECT,
    GUIDANCE,
    KEY,
    MIRRORED,
    NIGHT,
    NULL_TEXT,
    PHOTO,
    QUICKLY,
    STEPS,
    Editor,
    new_inverter,
    open_editor,
    picture,
    round_trip,
    source,
    target,
)
from tests.support.small_diffusion import write_diffusion


@pytest.mark.slow
def test_an_identical_prompt_changes_nothing_under_shared_null_embeddings(editor: Editor) -> None:
    inversion = editor.invert(NULL_TEXT)
    for fraction, cross in [(0.0, 0.0), (0.5, 0.8), (1.0, 1.0)]:
        (image,) = editor.edit(target(inversion, CAPTION, fraction, cross_fraction=cross))
        assert np.abs(image.astype(int) - inversion.reconstruction).max() <= 1


def plain_sampling(editor: Editor, inversion: Inversion, prompt: str) -> Pixels:
    """Guided DDIM sampling from the source's noise, one row at a time, by a UNet that knows of no injection."""
    weights, steps = editor.weights, Steps.of(editor.weights.sampling.config, STEPS)
    latents = inversion.latents[:1]
    with torch.inference_mode():
        states, null = weights.prompts.encode(prompt).states[None], weights.prompts.encode("").states[None]
        for step, time in enumerate(steps.times):
            unwanted = weights.predict(latents, time, null, None, ())
            conditional = weights.predict(latents, time, states, None, ())
            latents = steps.down(step, latents, unwanted + GUIDANCE * (conditional - unwanted))
        return picture(weights, latents)


def test_the_finest_self_attention_stays_the_targets_own(editor: Editor) -> None:
    assert editor.weights.shared_self_attention(64**2) == 32**2


def test_fractions_of_zero_inject_nothing(editor: Editor) -> None:
    inversion = editor.invert()
    (image,) = editor.edit(target(inversion, NIGHT, 0.0, cross_fraction=0))
    assert np.abs(image.astype(int) - plain_sampling(editor, inversion, NIGHT)).max() <= 1


def test_every_fraction_and_option_makes_an_image_of_its_own(editor: Editor) -> None:
    """The reference code's sweep re-weights for its first value only."""
    inversion = editor.invert()
    weigh: dict[str, object] = {"weights": [PhraseWeight(phrase="blue car", weight=4)]}
    blend: dict[str, object] = {"blend": LocalBlend(source_phrase="red car", phrase="blue car", threshold=0.999)}
    options: list[dict[str, object]] = [{}, {"attention": "refine"}, {"cross_fraction": 0.3}, weigh, blend]
    items = [target(inversion, BLUE, fraction, **option) for option in options for fraction in (0.0, 0.5, 1.0)]
    images = editor.edit(*items)
    assert len({image.tobytes() for image in images}) == len(items)


def test_local_blend_keeps_the_source_outside(editor: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its latents there, bit for bit; what the pixels come to is a matter of the autoencoder."""
    inversion, final = editor.invert(), list[torch.Tensor]()
    pictures = StableDiffusion.pictures

    def noting(weights: StableDiffusion, latents: torch.Tensor) -> list[Pixels | NotFinite]:
        final.append(latents)
        return pictures(weights, latents)

    monkeypatch.setattr(StableDiffusion, "pictures", noting)
    blend = LocalBlend(source_phrase="red car", phrase="blue car", threshold=0.999, start=0)
    editor.edit(target(inversion, BLUE), target(inversion, BLUE, blend=blend))
    (latents,) = final
    free, blended = (latents == inversion.latents[-1]).all(dim=1).float().mean(dim=(1, 2)).tolist()
    assert free == 0
    assert 0.25 < blended < 1  # 0.6 to 0.8, of three seeds


@pytest.mark.slow
def test_edits_of_all_sources_and_fractions_share_a_batch(editor: Editor) -> None:
    first, second = editor.invert(), editor.invert(QUICKLY, MIRRORED, "A bus in a city at night.")
    items = [
        target(first, NIGHT, 0.3),
        target(second, "A car in a city at night.", 0.9),
        target(first, BLUE, 0.9, attention="refine"),
        target(second, "A bus in a city.", 0.3, cross_fraction=0.2),
    ]
    together = editor.edit(*items)
    for item, image in zip(items, together, strict=True):
        assert np.abs(editor.edit(item)[0].astype(int) - image).max() <= 1


def test_fixed_shapes_give_the_same_bits_in_any_company(editor: Editor) -> None:
    fixed = PromptToPromptEditor(editor.weights, fixed_shapes=True)
    first, second = editor.invert(), editor.invert(pixels=MIRRORED, caption=BLUE)
    item = target(first, NIGHT, 0.5)
    alone = fixed.edit(KEY, [item] * 4)[0]
    company = [target(second, NIGHT, 0.9), target(second, CAPTION, 0.0, cross_fraction=0), item, target(first, BLUE)]
    crowd = fixed.edit(KEY, company)[2]
    assert isinstance(alone, Edited)
    assert isinstance(crowd, Edited)
    assert np.array_equal(alone.image, crowd.image)


@pytest.mark.slow
def test_batches_at_the_same_time_draw_what_they_draw_alone(editor: Editor) -> None:
    inverter = new_inverter(editor.weights)  # keeps nothing yet
    sources = [source(PHOTO), source(MIRRORED)]

    def draw(number: int, keeper: Inverter) -> Pixels:
        (inversion,) = keeper.invert(QUICKLY, [InversionItem(sources[number % 2], CAPTION)])
        assert isinstance(inversion, Inversion)
        (image,) = editor.edit(EditItem(inversion, PromptEdit(prompt=NIGHT), 0.5))
        return image

    alone = [draw(number, new_inverter(editor.weights)) for number in range(2)]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda number: draw(number, inverter), range(8)))
    for number, image in enumerate(together):
        np.testing.assert_array_equal(image, alone[number % 2])


def test_without_guidance_there_are_no_unconditional_rows(editor: Editor) -> None:
    inversion = editor.invert()
    (plain,) = editor.editor.edit(replace(KEY, guidance=1.0), [target(inversion, NIGHT)])
    (guided,) = editor.editor.edit(KEY, [target(inversion, NIGHT)])
    assert isinstance(plain, Edited)
    assert isinstance(guided, Edited)
    assert (plain.evaluations, guided.evaluations) == (STEPS, 2 * STEPS)
    assert not np.array_equal(plain.image, guided.image)


def test_the_controlnet_can_stand_by_with_an_empty_control(editor: Editor) -> None:
    inversion = editor.invert(replace(DIRECT, control="empty"))
    assert np.array_equal(inversion.reconstruction, round_trip(editor))
    (alone,) = editor.edit(target(editor.invert(), NIGHT))
    (beside,) = editor.edit(target(inversion, NIGHT), key=replace(KEY, control_scale=1.0))
    assert not np.array_equal(alone, beside)


def test_items_that_cannot_be_edited_are_refused_alone(editor: Editor) -> None:
    inversion = editor.invert()
    endless = CAPTION + " It rains and rains on." * 30
    cut = editor.invert(caption=editor.weights.prompts.fit(endless))
    refused = [
        (target(inversion, "x" * 500), "too long for the text encoder"),
        (target(inversion, BLUE, weights=[PhraseWeight(phrase="green", weight=2)]), "no phrase “green”"),
        (
            target(inversion, BLUE, blend=LocalBlend(source_phrase="bus", phrase="blue")),
            "caption has no phrase “bus”",
        ),
        (target(cut, endless + " It snows."), "only after what the text encoder can read"),
    ]
    results = editor.editor.edit(KEY, [target(inversion, BLUE), *(item for item, _ in refused)])
    assert isinstance(results[0], Edited)
    for result, (_, words) in zip(results[1:], refused, strict=True):
        assert isinstance(result, Refusal)
        assert words in result.reason


def test_encoding_leaves_the_tokenizers_as_other_threads_know_them(editor: Editor) -> None:
    """A tokenizer that was asked to pad did so for a thread that counted words: "truck" was not in its caption."""
    prompts = editor.weights.prompts
    prompts.words(CAPTION)
    prompts.encode("A caption that no other test encodes.")
    assert [tokenizer.backend_tokenizer.padding for tokenizer, _ in prompts._pairs] == [None]


@pytest.mark.slow
def test_it_knows_the_layout_of_stable_diffusion_xl(tmp_path: Path) -> None:
    write_diffusion(tmp_path, xl=True)
    editor = open_editor(tmp_path)
    # Of 128² latents at 1024²; 1.5 has 64² at 512². Layers of 32² positions are injected, those of 64² are not.
    assert editor.weights.shared_self_attention(128**2) == 32**2
    inversion = editor.invert(QUICKLY)
    same, night = editor.edit(target(inversion, CAPTION), target(inversion, NIGHT))
    assert np.abs(same.astype(int) - inversion.reconstruction).max() <= 1
    assert not np.array_equal(same, night)
