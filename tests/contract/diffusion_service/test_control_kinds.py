"""Each kind of control on small weights: control image, combinations, strength, range, refusals."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import MultiControlNetModel
from pydantic import ValidationError

from diffusion_service.control_images import ControlImages, DepthEstimator
from diffusion_service.editors.controlnet import BatchKey, ControlNetEditor, Rendered, RenderItem
from diffusion_service.hed import HedDetector
from diffusion_service.loading import load
from diffusion_service.model import palette
from diffusion_service.segmentation import Segmenter
from shared.problems import InvalidInput, NotFinite
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import ControlKind, Controls, ControlStrength, Rendering, RenderRequest, chosen_controls
from tests.support.broken_weights import spoil
from tests.support.control_sources import source
from tests.support.controlnet_items import PHOTO, weights
from tests.support.small_diffusion import (
    hed_weights,
    write_control,
    write_depth,
    write_diffusion,
    write_hed,
    write_segmenter,
)

KINDS: tuple[ControlKind, ...] = ("canny", "segmentation", "depth", "soft_edges", "hed")
COLOURS = {"background": (10, 20, 30), "object": (200, 100, 50)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("controls")
    write_diffusion(folder)
    write_segmenter(folder / "segmenter")
    write_depth(folder / "estimator")
    write_hed(folder / "hed-detector")
    for seed, kind in enumerate(KINDS):
        write_control(folder / kind, folder / "base", seed)
    return folder


@pytest.fixture(scope="module")
def editor(folder: Path) -> ControlNetEditor:
    torch.set_num_threads(1)
    segmenter = Segmenter(weights(folder / "segmenter"), ["object"], device="cpu")
    depth = DepthEstimator(weights(folder / "estimator"), device="cpu")
    hed = HedDetector(hed_weights(folder / "hed-detector"), device="cpu")
    networks = load(weights(folder / "base"), {kind: weights(folder / kind) for kind in KINDS}, device="cpu")
    return ControlNetEditor(networks, ControlImages(segmenter, palette(COLOURS, segmenter.labels), depth, hed))


def rendered(editor: ControlNetEditor, *controls: ControlStrength, region: str = "full") -> Rendered:
    key = BatchKey(64, 64, 4, 3.0, controls)
    rendering = Rendering.model_validate({"prompt": "A red car.", "seed": 3, "region": region})
    (outcome,) = editor.render(key, [RenderItem(source(), rendering, "")])
    assert isinstance(outcome, Rendered), outcome
    return outcome


def test_an_estimator_or_a_segmenter_that_computes_nan_gives_no_control_image(folder: Path, tmp_path: Path) -> None:
    for name, part in (("segmenter", "decode_head.classifier"), ("estimator", "head")):
        shutil.copytree(folder / name, tmp_path / name)
        spoil(tmp_path / name, part)
    segmenter = Segmenter(weights(tmp_path / "segmenter"), ["object"], device="cpu")
    with pytest.raises(NotFinite):
        ControlImages(segmenter).keep(source())
    depth = DepthEstimator(weights(tmp_path / "estimator"), device="cpu")
    with pytest.raises(NotFinite):
        ControlImages(None, depth=depth).image(source(), "depth", "full")


def strength(kind: ControlKind, **changes: float) -> ControlStrength:
    return ControlStrength(kind=kind, **changes)


@pytest.mark.slow
def test_each_kind_shows_its_own_of_the_source(editor: ControlNetEditor) -> None:
    images = {kind: rendered(editor, strength(kind)).controls[0] for kind in KINDS}
    assert np.array_equal(np.unique(images["segmentation"].reshape(-1, 3), axis=0), [COLOURS["object"]])
    assert {images[kind].shape for kind in ("canny", "depth", "soft_edges", "hed")} == {(64, 64)}
    assert (images["depth"].min(), images["depth"].max()) == (0, 255)
    strong = images["soft_edges"].astype(int)
    assert strong[images["canny"] > 0].mean() > 2 * strong[images["canny"] == 0].mean()
    assert len({rendered(editor, strength(kind)).image.tobytes() for kind in KINDS}) == len(KINDS)


def test_several_are_what_diffusers_adds_up(editor: ControlNetEditor) -> None:
    networks = editor._weights
    kinds: tuple[ControlKind, ...] = ("canny", "segmentation")
    random = torch.Generator().manual_seed(1)
    latents, states = torch.randn(2, 4, 16, 16, generator=random), torch.randn(2, 77, 32, generator=random)
    controls = [
        networks.control([PHOTO, PHOTO[::-1].copy()], scale, kind) for kind, scale in zip(kinds, (1, 0.4), strict=True)
    ]
    with torch.inference_mode():
        down, middle = MultiControlNetModel([networks.controlnets[kind] for kind in kinds])(
            latents, 500, states, [control.images for control in controls], [1.0, 0.4], return_dict=False
        )
        expected = networks.unet(
            latents, 500, states, down_block_additional_residuals=down, mid_block_additional_residual=middle
        ).sample
        prediction = networks.predict(latents, 500, states, None, controls)
    assert torch.allclose(prediction, expected, atol=1e-5)


@pytest.mark.slow
def test_controls_add_up_in_any_order_and_a_scale_of_0_switches_one_off(editor: ControlNetEditor) -> None:
    alone = rendered(editor, strength("canny")).image
    both = rendered(editor, strength("canny"), strength("depth")).image
    assert not np.array_equal(alone, both)
    assert np.array_equal(rendered(editor, strength("canny"), strength("depth", scale=0)).image, alone)
    swapped = rendered(editor, strength("depth"), strength("canny")).image
    assert np.abs(swapped.astype(int) - both).max() <= 1, "the order counts for no more than rounding"


@pytest.mark.slow
def test_a_range_of_steps_starts_and_ends_where_it_says(editor: ControlNetEditor) -> None:
    whole = rendered(editor, strength("canny")).image
    never = rendered(editor, strength("canny", end=0.1)).image  # of 4 steps, none
    assert np.array_equal(rendered(editor, strength("canny", scale=0)).image, never)
    parts = [rendered(editor, strength("canny", start=a, end=b)).image for a, b in [(0, 0.5), (0.5, 1), (0, 0.75)]]
    assert len({image.tobytes() for image in [whole, never, *parts]}) == 5
    steps = [[strength("canny", start=a, end=b).holds(step, 20) for step in range(20)] for a, b in [(0, 0.3), (0.3, 1)]]
    assert [sum(calls) for calls in steps] == [6, 14]
    assert all(first != second for first, second in zip(*steps, strict=True)), "ranges that meet leave no step out"


@pytest.mark.slow
def test_regions_cut_every_kind(editor: ControlNetEditor) -> None:
    for kind in KINDS:
        structure = rendered(editor, strength(kind), region="structure").controls[0]
        assert structure.shape[:2] == (64, 64)
        cut = rendered(editor, strength(kind), region="object").controls[0]
        assert np.array_equal(cut, rendered(editor, strength(kind)).controls[0]), "the segmenter calls all an object"


def test_a_region_cuts_a_control_image_which_is_made_once(editor: ControlNetEditor) -> None:
    images = editor.images.image
    for kind in KINDS:
        whole, structure, cut = (images(source(), kind, region) for region in ("full", "structure", "object"))
        assert np.array_equal(whole, cut), "the segmenter calls all an object"
        assert np.array_equal(whole, structure) == (kind in ("segmentation", "depth")), "they have no texture"
        assert images(source(), kind, "structure") is structure


@pytest.mark.slow
@pytest.mark.parametrize("region", ["full", "structure", "object"])
def test_the_models_thread_finds_filtered_edges_and_fitted_prompts_ready(editor: ControlNetEditor, region: str) -> None:
    key = BatchKey(64, 64, 1, 1.0, (strength("canny"), strength("soft_edges")))
    rendering = Rendering.model_validate({"prompt": f"A red car, {region}.", "seed": 3, "region": region})
    items = [RenderItem(source(), rendering, "grey")]
    editor.images.image.cache_clear()
    editor.prepare(key, items)
    caches = editor.images.filtered, editor._weights.prompts.fit
    misses = [cache.cache_info().misses for cache in caches]
    (outcome,) = editor.render(key, items)
    assert isinstance(outcome, Rendered), outcome
    assert [cache.cache_info().misses for cache in caches] == misses


@pytest.mark.slow
def test_a_control_image_is_made_once(editor: ControlNetEditor) -> None:
    for _ in range(3):
        rendered(editor, *(strength(kind) for kind in KINDS))
    before = editor.images.image.cache_info().misses
    rendered(editor, *(strength(kind) for kind in KINDS))
    assert editor.images.image.cache_info().misses == before
    assert editor.images.labels.cache_info().misses == 1


@pytest.mark.parametrize("kind", ["depth_anything", "dpt"])
@pytest.mark.parametrize("shape", [(64, 64), (48, 96)])
def test_depth_has_the_images_size_and_all_greys(tmp_path: Path, kind: str, shape: tuple[int, int]) -> None:
    write_depth(tmp_path, kind)
    image = np.random.default_rng(1).integers(0, 256, (*shape, 3), dtype=np.uint8)
    depth = DepthEstimator(weights(tmp_path), device="cpu").depth(image)
    assert (depth.shape, depth.min(), depth.max()) == (shape, 0, 255)


def test_palettes_colour_labels_and_name_what_they_lack() -> None:
    assert palette({"road": (1, 2, 3)}, ["sky", "road"]).tolist() == [[0, 0, 0], [1, 2, 3]]
    with pytest.raises(ValueError, match=r"\['rail'\].*\['road'\]"):
        palette({"rail": (1, 2, 3)}, ["road"])
    ade = palette("ade20k", [str(n) for n in range(150)])
    assert ade.shape == (150, 3)
    # wall, building, sky, person and car, as everybody draws them
    assert ade[[0, 1, 2, 12, 20]].tolist() == [
        [120, 120, 120], [180, 120, 120], [6, 230, 230], [150, 5, 61], [0, 102, 200],
    ]  # fmt: skip
    with pytest.raises(ValueError, match="150 labels"):
        palette("ade20k", ["a", "b"])


def test_kinds_without_what_they_need_are_refused(editor: ControlNetEditor) -> None:
    blind = ControlNetEditor(editor._weights, None)
    for kind, message in [("segmentation", "'segmentation'"), ("depth", "'depth'"), ("hed", "'hed'")]:
        key = BatchKey(64, 64, 2, 3.0, (ControlStrength.model_validate({"kind": kind}),))
        (refusal,) = blind.render(key, [RenderItem(source(), Rendering(prompt="A car.", seed=1), "")])
        assert isinstance(refusal, InvalidInput)
        assert message in refusal.detail


def test_controls_are_chosen_in_one_way_and_a_plain_request_is_written_as_ever() -> None:
    canny = strength("canny", scale=0.5)
    assert chosen_controls("canny", 0.5, ()) == (canny,)
    several: Controls = (canny, strength("depth", end=0.5))
    assert chosen_controls("canny", 1.0, several) == several
    for controls, message in [((canny, canny), "twice"), ((canny,), "not by both")]:
        with pytest.raises(ValueError, match=message):
            chosen_controls("canny", 0.5 if message == "not by both" else 1.0, controls)
    with pytest.raises(ValidationError, match="let it end later"):
        strength("canny", start=0.5, end=0.5)
    plain = {"source": ImagePayload(png=b"x"), "renderings": [Rendering(prompt="A car.", seed=1)]}
    assert set(RenderRequest.model_validate(plain).model_dump(mode="json")) == {
        "editor", "source", "renderings", "control", "control_scale", "negative_prompt", "steps", "guidance",
    }  # fmt: skip
    assert "controls" in RenderRequest.model_validate({**plain, "controls": [canny]}).model_dump(mode="json")
