"""Protected classes on small weights: which latents are held, for how long, and what the reply reports."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from diffusion_service.app import create_app
from diffusion_service.control_images import ControlImages
from diffusion_service.editors.controlnet import ControlNetEditor, Rendered
from diffusion_service.schedulers import Sampling
from shared.media.images import decode
from shared.problems import InvalidInput
from shared.schemas.diffusion import Protection, ProtectionKind, Rendering, RenderRequest
from shared.service.endpoints import Services
from tests.support.control_sources import source
from tests.support.controlnet_items import load_networks, weights
from tests.support.diffusion_requests import photo
from tests.support.inversions import picture
from tests.support.protected_items import KEY, HalfSegmenter, Watched, image, item
from tests.support.service_settings import settings
from tests.support.serving import call, serving


@pytest.fixture(scope="module")
def editor(folder: Path) -> ControlNetEditor:
    return ControlNetEditor(load_networks(folder), ControlImages(half_segmenter(folder)))


def half_segmenter(folder: Path) -> HalfSegmenter:
    return HalfSegmenter(weights(folder / "segmenter"), ["object"], device="cpu")


def distance_inside(editor: ControlNetEditor, strength: float) -> float:
    """Mean distance from the source in its protected half, over eight seeds: a single one may nearly tie."""
    target = picture(editor._weights, editor._weights.encode(source().image)).astype(float)
    rendered = image(editor, *(item("blended", strength, seed) for seed in range(8)))
    return float(np.mean([np.abs(image[:, :24] - target[:, :24]) for image in rendered]))


@pytest.mark.slow
def test_a_strength_of_zero_and_no_mechanism_leave_every_bit(editor: ControlNetEditor) -> None:
    (plain,) = image(editor, item(None))
    cases: list[tuple[ProtectionKind, float]] = [("none", 1.0), ("blended", 0.0), ("relit", 0.0), ("edges", 0.0)]
    for by, strength in cases:
        assert np.array_equal(image(editor, item(by, strength))[0], plain), by


@pytest.mark.slow
def test_every_mechanism_acts_and_more_strength_holds_more(editor: ControlNetEditor) -> None:
    (plain,) = image(editor, item(None))
    for by in ("blended", "relit", "edges"):
        assert not np.array_equal(image(editor, item(by))[0], plain), by
    far = [distance_inside(editor, share) for share in (0.0, 0.5, 1.0)]
    assert far[0] > far[1] > far[2], far


@pytest.mark.parametrize(("strength", "until"), [(0.0, 0), (0.1, 1), (0.5, 2), (1.0, 4)])
def test_protection_lasts_as_many_steps_as_its_strength_says(
    editor: ControlNetEditor, strength: float, until: int
) -> None:
    scheduler = editor._weights.fresh_scheduler(4)
    for by in ("blended", "relit"):
        prepared = editor._prepare(KEY, item(by, strength))
        assert not isinstance(prepared, InvalidInput)
        shape = editor._shape(prepared, editor._weights.noise(0, 64, 64), scheduler)
        assert shape is not None
        assert (shape.until, shape.relit) == (until, by == "relit")


def test_held_to_the_end_the_latents_inside_are_the_sources(
    editor: ControlNetEditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks, recorded = editor._weights, list[torch.Tensor]()
    monkeypatch.setattr(editor, "_weights", Watched(networks, recorded))
    image(editor, item("blended"), item(None))
    (latents,) = recorded
    clean = networks.encode(source().image)
    columns = networks.noise(0, 64, 64).shape[-1] // 2 - 1  # all but the soft edge
    assert torch.allclose(latents[:1, :, :, :columns], clean[:, :, :, :columns], atol=1e-5)
    assert not torch.allclose(latents[:1, :, :, columns + 2 :], clean[:, :, :, columns + 2 :], atol=0.1)
    assert not torch.allclose(latents[1:, :, :, :columns], clean[:, :, :, :columns], atol=0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # UniPC on a numpy above 2.0
def test_a_corrector_keeps_the_held_latents_and_the_bits_of_neighbours(folder: Path) -> None:
    networks = load_networks(folder)
    sampling = Sampling.of(networks.sampling.config, "UniPCMultistepScheduler")
    editor = ControlNetEditor(replace(networks, sampling=sampling), ControlImages(half_segmenter(folder)))
    assert np.array_equal(image(editor, item("blended", 0.5), item(None))[1], image(editor, item(None), item(None))[1])
    far = [distance_inside(editor, share) for share in (0.0, 0.5, 1.0)]
    assert far[0] > far[1]


@pytest.mark.parametrize("options", [{"skip_prk_steps": True}, {"skip_prk_steps": False}])
def test_pndm_keeps_what_was_held_in_its_first_step(
    editor: ControlNetEditor, options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first step takes several evaluations, each from the latents before the first; the held ones must outlast it.

    The network predicts no noise, so that the latents keep what they are given.
    """
    config = {**editor._weights.sampling.config, "prediction_type": "epsilon"}
    networks = replace(editor._weights, sampling=Sampling.of(config, "PNDMScheduler", options))
    latents: list[torch.Tensor] = []
    watched = Watched(networks, latents)
    monkeypatch.setattr(watched, "predict", lambda inputs, *_: torch.zeros_like(inputs), raising=False)
    pndm = ControlNetEditor(networks, editor.images)
    monkeypatch.setattr(pndm, "_weights", watched)
    image(pndm, item("blended", 0.05), item(None))
    inside = latents[0][..., : latents[0].shape[-1] // 2 - 1]
    outside = latents[0][..., latents[0].shape[-1] // 2 + 1 :]
    assert not torch.allclose(inside[0], inside[1], atol=0.1)
    assert torch.allclose(outside[0], outside[1], atol=1e-5)


@pytest.mark.slow
def test_neighbours_with_other_protection_change_no_bit(editor: ControlNetEditor) -> None:
    for by in (None, "blended", "relit", "edges"):
        alone = image(editor, *[item(by, 0.5)] * 4)[0]
        company = image(editor, item("relit", 1.0, seed=8), item("edges", 1.0), item(by, 0.5), item("blended", 0.75))
        assert np.array_equal(company[2], alone), by


def test_regions_and_what_became_of_them_come_back(editor: ControlNetEditor) -> None:
    (rendered,) = editor.render(KEY, [item("relit")])
    assert isinstance(rendered, Rendered)
    (region,) = rendered.regions
    assert (region.label, int(region.mask.sum())) == ("object", 64 * 32)
    (outcome,) = rendered.outcomes
    assert outcome.iou == 1.0
    assert outcome.outline > 0
    assert outcome.inside == pytest.approx(rendered.image[:, :32].reshape(-1, 3).mean(axis=0))
    assert outcome.around == pytest.approx(rendered.image[:, 32:35].reshape(-1, 3).mean(axis=0))


def test_classes_that_cannot_be_protected_are_refused(editor: ControlNetEditor) -> None:
    good, bad = editor.render(KEY, [item(None), item("relit", label="pedestrian")])
    assert isinstance(good, Rendered)
    assert isinstance(bad, InvalidInput)
    assert "pedestrian" in bad.detail
    (blind,) = ControlNetEditor(editor._weights, None).render(KEY, [item("none")])
    assert isinstance(blind, InvalidInput)
    assert "segmenter" in blind.detail


@pytest.mark.slow
def test_the_service_answers_in_the_sources_pixels(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(create_app(settings(folder / "small.toml"))) as client:
            plain = RenderRequest(source=photo(90, 70), renderings=[Rendering(prompt="Snow.", seed=1)] * 2, steps=2)
            relit = plain.model_copy(update={"protection": Protection(classes=("object",), by="relit", strength=0.5)})
            reply = await call(client, Services.render, relit)
            assert reply.protection is not None
            assert decode(reply.protection.mask.png, "L").shape == (70, 90)
            (region,) = reply.protection.regions
            assert (region.label, region.box, region.share) == ("object", (0, 0, 90, 70), 1.0)
            assert [len(regions) for regions in reply.protection.outcomes] == [1, 1]
            unprotected = await call(client, Services.render, plain)
            assert unprotected.protection is None
            assert unprotected.images != reply.images
            cases: list[tuple[dict[str, object], str]] = [
                ({"controls": [{"kind": "depth"}]}, "no ControlNet for depth"),
                ({"control": "segmentation"}, "no ControlNet for segmentation"),
                ({"protection": {"classes": []}}, "classes"),
                ({"controls": [{"kind": "canny", "start": 0.5, "end": 0.2}]}, "let it end later"),
            ]
            for update, message in cases:
                refusal = await client.post("/v1/renderings", json={**plain.model_dump(mode="json"), **update})
                assert refusal.status_code == 422
                assert message in refusal.json()["detail"]

    asyncio.run(scenario())
