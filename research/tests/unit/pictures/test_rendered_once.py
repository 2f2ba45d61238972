"""The cache of rendered pictures: equal to rendering, and never half written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from research.objects import pictures as objects
from research.objects.pictures import render_pair
from research.pictures.augmentation import SIDE
from research.pictures.rendered_once import render_once
from research.roads import pictures as roads
from tinyworld.objects.world import sample_scene
from tinyworld.roads import world
from tinyworld.roads.render import render


def test_both_domains_store_what_they_render(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "CACHE", tmp_path / "objects")
    monkeypatch.setattr(roads, "CACHE", tmp_path / "roads")
    for _ in ("rendered", "from the cache"):
        split = objects.pictures("few", 2, lambda index: sample_scene("demo", index))
        driven = roads.pictures("few", 2, lambda index: world.sample_scene("demo", index))
        for row in range(2):
            image, mask = render_pair(split.scenes[row])
            assert np.array_equal(split.images[row], image)
            assert np.array_equal(split.masks[row], mask)
            fresh, stored = render(driven.scenes[row], SIDE, SIDE), driven.rendering(row)
            assert np.array_equal(stored.image, fresh.image)
            assert np.array_equal(stored.classes, fresh.classes)
            assert np.array_equal(stored.instances, fresh.instances)
    assert len(list(tmp_path.rglob("*.npy"))) == 2


def test_an_interrupted_cache_is_rendered_again_and_a_complete_one_is_not(tmp_path: Path) -> None:
    path, rendered_numbers = tmp_path / "cache" / "numbers.npy", []

    def planes_of(number: int) -> np.ndarray:
        rendered_numbers.append(number)
        if number == 3 and len(rendered_numbers) == 2:
            raise KeyboardInterrupt
        return np.full((2, 2, 1), number, np.uint8)

    with pytest.raises(KeyboardInterrupt):
        render_once(path, [7, 3], planes_of, (2, 2, 1))
    assert not path.exists()
    for _ in range(2):
        assert render_once(path, [7, 3], planes_of, (2, 2, 1))[:, 0, 0, 0].tolist() == [7, 3]
    assert rendered_numbers == [7, 3, 7, 3]
