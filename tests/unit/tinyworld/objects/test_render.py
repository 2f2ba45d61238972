"""The renderer: deterministic, with independent factors that each touch only their own pixels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tinyworld.objects.render import permitted_mask, render
from tinyworld.objects.world import CLASSES, FACTOR_VALUES, SILHOUETTES, Scene, sample_scene

SCENES = [sample_scene("demo", index) for index in range(900, 940)]


def test_render_is_deterministic() -> None:
    for scene in SCENES[:8]:
        assert np.array_equal(render(scene).image, render(scene).image)


def test_shapes_ranges_and_masks() -> None:
    for scene in SCENES:
        rendering = render(scene)
        assert rendering.image.shape == (128, 128, 3)
        assert rendering.image.dtype == np.uint8
        assert rendering.image.std() > 8
        assert not (rendering.object_mask & rendering.companion_mask).any()
        assert rendering.companion_mask.any() == (scene.companion != "none")
    assert render(SCENES[0], size=96).object_mask.shape == (96, 96)


@pytest.mark.parametrize("label", CLASSES)
@pytest.mark.parametrize("silhouette", range(SILHOUETTES))
def test_object_is_whole_and_sized(label: str, silhouette: int) -> None:
    for base in SCENES[:6]:
        scene = _with(base, label=label, silhouette=silhouette, companion="none")
        small, large = (render(scene.changed(size=size)).object_mask for size in ("small", "large"))
        assert 0.025 < small.mean() < large.mean() < 0.35
        assert large.mean() > 1.6 * small.mean()
        assert not large[:, 0].any()
        assert not large[:, -1].any()
        assert not large[0].any()


@pytest.mark.slow
def test_a_companion_hides_little_of_the_object() -> None:
    for base in SCENES:
        alone = render(base.changed(companion="none")).object_mask.sum()
        for companion in FACTOR_VALUES["companion"]:
            beside = render(base.changed(companion=str(companion))).object_mask.sum()
            assert beside > 0.75 * alone


@pytest.mark.slow
@pytest.mark.parametrize("field", [name for name in FACTOR_VALUES if name not in ("label", "silhouette")])
def test_a_factor_changes_only_what_it_may(field: str) -> None:
    for scene in SCENES[:14]:
        before, allowed = render(scene).image, permitted_mask(scene, field)
        for value in FACTOR_VALUES[field]:
            after = render(scene.changed(**{field: str(value)})).image
            touched = (before != after).any(axis=2)
            outside = touched & ~allowed
            assert not outside.any(), f"{field} -> {value} touches {outside.sum()} pixels too many of {scene}"


@pytest.mark.parametrize("field", list(FACTOR_VALUES))
def test_every_value_shows(field: str) -> None:
    for base in SCENES[:8]:
        scene = base.changed(companion="person") if field in ("companion_colour", "relation") else base
        images = [render(_with(scene, **{field: value})).image for value in FACTOR_VALUES[field]]
        for i, first in enumerate(images):
            for second in images[:i]:
                assert np.abs(first.astype(int) - second.astype(int)).max() > 20


def _with(scene: Scene, **factors: str | int) -> Scene:
    return replace(scene, **factors)  # type: ignore[arg-type]
