"""The ControlNet editor on small weights: seeds, batching, sizes, layouts, prompts, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionControlNetPipeline
from PIL import Image

from diffusion_service.control_images import canny
from diffusion_service.editors.controlnet import ControlNetEditor, Rendered
from diffusion_service.loading import load
from diffusion_service.segmentation import Segmenter
from shared.problems import InvalidInput
from shared.profiles.weights import Dtype
from tests.support.controlnet_items import KEY, PHOTO, images, item, weights
from tests.support.small_diffusion import write_diffusion


def open_editor(
    folder: Path, dtype: Dtype = "float32", segmenter: bool = False, scheduler: str | None = None
) -> ControlNetEditor:
    torch.set_num_threads(1)
    networks = load(
        weights(folder / "base", dtype),
        {"canny": weights(folder / "control", dtype)},
        device="cpu",
        scheduler=scheduler,
    )
    keep = Segmenter(weights(folder / "segmenter"), ["object"], device="cpu") if segmenter else None
    return ControlNetEditor(networks, keep)


@pytest.fixture(scope="module")
def editor(folder: Path) -> ControlNetEditor:
    return open_editor(folder, segmenter=True)


def test_an_image_follows_from_its_seed_prompt_and_source(editor: ControlNetEditor) -> None:
    other = np.ascontiguousarray(PHOTO[:, ::-1])
    varied = [item(), item(), item(seed=4), item(prompt="A bus."), item(pixels=other), item(region="object")]
    first, again, *different = images(editor.render(KEY, varied))
    assert np.array_equal(first, again), "a null arm is the edit's image where the inputs are equal"
    for image in different[:-1]:
        assert not np.array_equal(first, image)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_neighbours_change_no_bit_of_a_padded_batch(folder: Path, dtype: Dtype) -> None:
    editor = open_editor(folder, dtype)
    alone = images(editor.render(KEY, [item()] * 4))[0]
    company = [item("A bus in a city at night.", seed=9), item("Snow.", seed=11), item(), item("Fog.", seed=1)]
    assert np.array_equal(images(editor.render(KEY, company))[2], alone)


def test_it_computes_what_the_reference_pipeline_computes(folder: Path, editor: ControlNetEditor) -> None:
    networks = editor._weights
    pipeline = StableDiffusionControlNetPipeline(
        vae=networks.vae,
        text_encoder=networks.prompts._pairs[0][1],
        tokenizer=networks.prompts._pairs[0][0],
        unet=networks.unet,
        controlnet=networks.controlnets["canny"],
        scheduler=networks.fresh_scheduler(3),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    control = canny(PHOTO)
    expected = pipeline(
        "A red car on a beach.",
        image=Image.fromarray(np.stack([control] * 3, axis=-1)),
        num_inference_steps=3,
        guidance_scale=4.0,
        latents=networks.noise(3, 64, 64),
        width=64,
        height=64,
        output_type="np",
    ).images[0]
    assert np.abs(images(editor.render(KEY, [item()]))[0] / 255 - expected).max() < 0.01


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # UniPC on a numpy above 2.0
@pytest.mark.parametrize(
    ("prediction", "scheduler"), [("epsilon", "unipc"), ("v_prediction", "ddim"), ("v_prediction", "unipc")]
)
def test_layouts_of_stable_diffusion_1_and_2(tmp_path: Path, prediction: str, scheduler: str) -> None:
    write_diffusion(tmp_path, prediction=prediction, scheduler=scheduler)
    editor = open_editor(tmp_path)
    first, second = images(editor.render(KEY, [item(), item(seed=4)]))
    assert not np.array_equal(first, second)
    assert np.array_equal(images(editor.render(KEY, [item(), item(seed=4)]))[1], second), "no state stays behind"


@pytest.mark.slow
def test_layout_of_stable_diffusion_xl(tmp_path: Path) -> None:
    write_diffusion(tmp_path, xl=True)
    editor = open_editor(tmp_path, "bfloat16")
    first, second = images(editor.render(KEY, [item(), item("A bus.")]))
    assert first.shape == (64, 64, 3)
    assert not np.array_equal(first, second)


def test_evaluations_count_guidance(editor: ControlNetEditor) -> None:
    guided, plain = editor.render(KEY, [item()])[0], editor.render(replace(KEY, guidance=1.0), [item()])[0]
    assert isinstance(guided, Rendered)
    assert isinstance(plain, Rendered)
    assert (guided.evaluations, plain.evaluations) == (6, 3)


def test_a_long_prompt_is_cut_at_the_end_of_a_sentence(editor: ControlNetEditor) -> None:
    sentence = "A red car stands on a beach while it rains."
    rendered = editor.render(KEY, [item(" ".join([sentence] * 30))])[0]
    assert isinstance(rendered, Rendered)
    assert rendered.prompt.endswith("rains.")
    assert rendered.prompt.count(sentence) >= 1
    short = editor.render(KEY, [item(rendered.prompt)])[0]
    assert isinstance(short, Rendered)
    assert np.array_equal(short.image, rendered.image)


def test_one_bad_item_does_not_touch_the_others(editor: ControlNetEditor, folder: Path) -> None:
    good, bad = editor.render(KEY, [item(), item("x" * 500)])
    assert isinstance(bad, InvalidInput)
    assert isinstance(good, Rendered)
    blind = open_editor(folder)
    refusal = blind.render(KEY, [item(region="object")])[0]
    assert isinstance(refusal, InvalidInput)
    assert "segmenter" in refusal.detail
    assert (blind.images.regions, editor.images.regions) == (("full",), ("full", "structure", "object"))


def test_unsupported_schedulers_and_labels_are_named(folder: Path) -> None:
    with pytest.raises(ValueError, match="choose one of"):
        open_editor(folder, scheduler="EulerAncestralDiscreteScheduler")
    with pytest.raises(ValueError, match="background"):
        Segmenter(weights(folder / "segmenter"), ["car"], device="cpu")
