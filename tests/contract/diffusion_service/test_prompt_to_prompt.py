"""Inversion and prompt-to-prompt on small weights: exact reconstruction, edits without effect, shared work."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from diffusion_service.attention import install
from diffusion_service.control_images import Source
from diffusion_service.editors import inversion as inversion_module
from diffusion_service.editors.inversion import Inversion, InversionItem, InversionKey, Inverter, scaled_gradient
from diffusion_service.editors.prompt_to_prompt import Edited, EditItem, EditKey, PromptToPromptEditor, Refusal
from diffusion_service.geometry import fit
from diffusion_service.stable_diffusion import StableDiffusion, load
from diffusion_service.steps import Steps
from shared.images import Pixels, digest
from shared.problems import InvalidInput
from shared.schemas.diffusion import LocalBlend, NullText, PhraseWeight, PromptEdit
from shared.weights import Weights
from tests.support.small_diffusion import write_diffusion

RANDOM = np.random.default_rng(5)
PHOTO = np.kron(RANDOM.integers(0, 256, (4, 4, 3), dtype=np.uint8), np.ones((8, 8, 1), np.uint8))
MIRRORED = np.ascontiguousarray(PHOTO[:, ::-1])
CAPTION = "A red car stands on a beach. It rains."
NIGHT = "A red car stands on a beach at night. It rains."
BLUE = "A blue car stands on a beach. It rains."
SIDE, STEPS, GUIDANCE = 32, 4, 4.0
DIRECT = InversionKey(SIDE, SIDE, STEPS, 1.0, None, "none", 1.0)
NULL_TEXT = replace(DIRECT, guidance=GUIDANCE, null_text=NullText(least_psnr=0))  # of random weights
QUICKLY = replace(NULL_TEXT, null_text=NullText(iterations=1, least_psnr=0))
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


@pytest.fixture(scope="module", params=PREDICTIONS)
def editor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Editor:
    folder = tmp_path_factory.mktemp("diffusion")
    write_diffusion(folder, prediction=request.param)
    return open_editor(folder)


def target(inversion: Inversion, prompt: str, fraction: float = 0.5, **changes: object) -> EditItem:
    return EditItem(inversion, PromptEdit.model_validate({"prompt": prompt, **changes}), fraction)


def round_trip(editor: Editor, pixels: Pixels = PHOTO) -> Pixels:
    with torch.no_grad():
        return editor.weights.pictures(editor.weights.encode(pixels))[0]


def test_direct_reconstructs_the_round_trip_through_the_autoencoder_exactly(editor: Editor) -> None:
    inversion = editor.invert()
    assert np.array_equal(inversion.reconstruction, round_trip(editor))
    assert inversion.evaluations == STEPS
    assert torch.isfinite(inversion.latents).all()


def test_null_text_brings_guided_sampling_nearer_to_the_way_up(editor: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    """How near it comes depends on the weights; `test_shipped_editing.py` measures that on trained ones."""
    followed = editor.invert(NULL_TEXT)
    monkeypatch.setattr(inversion_module, "TOLERANCE", 1e6)  # content with the null embedding as it is
    (drifted,) = new_inverter(editor.weights).invert(NULL_TEXT, [InversionItem(source(), CAPTION)])
    assert isinstance(drifted, Inversion)
    goal = editor.invert().latents
    error = (followed.latents - goal).square().mean(dim=(1, 2, 3))
    assert torch.all(error[1:] < (drifted.latents - goal).square().mean(dim=(1, 2, 3))[1:])
    assert not torch.equal(followed.nulls[0], followed.nulls[-1])


def test_an_inversion_that_loses_the_image_is_refused_and_direct_never_is(editor: Editor) -> None:
    far = replace(NULL_TEXT, guidance=15.0, null_text=NullText(iterations=1, least_psnr=60))
    (refusal,) = editor.inverter.invert(far, [InversionItem(source(), CAPTION)])
    assert isinstance(refusal, InvalidInput)
    assert "least_psnr" in refusal.detail
    assert isinstance(editor.invert(replace(far, null_text=NullText(iterations=1, least_psnr=0))), Inversion)
    assert isinstance(editor.invert(), Inversion)


def test_null_text_trains_embeddings_and_no_weight(editor: Editor) -> None:
    """The reference code leaves the UNet's weights to collect gradients, which costs time and memory."""
    editor.invert(NULL_TEXT)
    networks = (editor.weights.unet, editor.weights.vae, editor.weights.controlnets["canny"])
    parameters = [parameter for network in networks for parameter in network.parameters()]
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in parameters)


def test_null_text_stops_early_row_by_row(editor: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    untiring = 3 * STEPS + STEPS * 3 * NullText().iterations
    assert editor.invert(NULL_TEXT).evaluations <= untiring
    monkeypatch.setattr(inversion_module, "TOLERANCE", 1e6)
    fresh = new_inverter(editor.weights)
    (content,) = fresh.invert(NULL_TEXT, [InversionItem(source(), CAPTION)])
    assert isinstance(content, Inversion)
    assert content.evaluations == 3 * STEPS, "way up, conditional, one look at the null embedding"


def rows_of(unet: torch.nn.Module, rows: list[int]) -> torch.utils.hooks.RemovableHandle:
    """Note the number of rows of every pass."""
    return unet.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))


def test_rows_that_are_done_leave_the_batch(editor: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes cost as many rows as the reply counts; a backward pass counts twice, so a third of the rest is forward."""
    items = [InversionItem(source(), CAPTION), InversionItem(source(MIRRORED), "A bus.")]
    alone = [editor.invert(NULL_TEXT, item.source.image, item.caption) for item in items]
    tolerance = min(_last_losses(editor, inversion) for inversion in alone) * 1.5  # one row is done before the other
    monkeypatch.setattr(inversion_module, "TOLERANCE", tolerance)
    monkeypatch.setattr(inversion_module, "TOLERANCE_GROWTH", 0.0)
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
        gradients[dtype] = plain, scaled_gradient(losses, states, latents.numel())
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
        return weights.pictures(latents)[0]


def test_the_finest_self_attention_stays_the_targets_own(editor: Editor) -> None:
    assert editor.weights.shared_self_attention(64**2) == 32**2


def test_fractions_of_zero_inject_nothing(editor: Editor) -> None:
    inversion = editor.invert()
    (image,) = editor.edit(target(inversion, NIGHT, 0.0, cross_fraction=0))
    assert np.abs(image.astype(int) - plain_sampling(editor, inversion, NIGHT)).max() <= 1


def test_every_fraction_and_option_makes_an_image_of_its_own(editor: Editor) -> None:
    """The reference code's sweep re-weights for its first value only."""
    inversion = editor.invert()
    weigh = {"weights": [PhraseWeight(phrase="blue car", weight=4)]}
    blend = {"blend": LocalBlend(source_phrase="red car", phrase="blue car", threshold=0.999)}
    options: list[dict[str, object]] = [{}, {"attention": "refine"}, {"cross_fraction": 0.3}, weigh, blend]
    items = [target(inversion, BLUE, fraction, **option) for option in options for fraction in (0.0, 0.5, 1.0)]
    images = editor.edit(*items)
    assert len({image.tobytes() for image in images}) == len(items)


def test_local_blend_keeps_the_source_outside(editor: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its latents there, bit for bit; what the pixels come to is a matter of the autoencoder."""
    inversion, final = editor.invert(), list[torch.Tensor]()
    pictures = StableDiffusion.pictures

    def noting(weights: StableDiffusion, latents: torch.Tensor) -> list[Pixels]:
        final.append(latents)
        return pictures(weights, latents)

    monkeypatch.setattr(StableDiffusion, "pictures", noting)
    blend = LocalBlend(source_phrase="red car", phrase="blue car", threshold=0.999, start=0)
    editor.edit(target(inversion, BLUE), target(inversion, BLUE, blend=blend))
    (latents,) = final
    free, blended = (latents == inversion.latents[-1]).all(dim=1).float().mean(dim=(1, 2)).tolist()
    assert free == 0
    assert 0.25 < blended < 1  # 0.6 to 0.8, of three seeds


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
    cut = editor.invert(caption=editor.weights.prompts.fitted(endless))
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


def test_it_knows_the_layout_of_stable_diffusion_xl(tmp_path: Path) -> None:
    write_diffusion(tmp_path, xl=True)
    editor = open_editor(tmp_path)
    # Of 128² latents at 1024²; 1.5 has 64² at 512². Layers of 32² positions are injected, those of 64² are not.
    assert editor.weights.shared_self_attention(128**2) == 32**2
    inversion = editor.invert(QUICKLY)
    same, night = editor.edit(target(inversion, CAPTION), target(inversion, NIGHT))
    assert np.abs(same.astype(int) - inversion.reconstruction).max() <= 1
    assert not np.array_equal(same, night)
