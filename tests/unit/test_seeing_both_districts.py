"""Captioner and scorer can be trained on both districts, from the shipped weights: a few steps on real pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CLIPTokenizer

from tinyworld import pictures as object_pictures
from tinyworld import round_trips, train_captioner, train_scorer
from tinyworld.captions import Description
from tinyworld.factors import UNKNOWN
from tinyworld.model_card import WEIGHTS
from tinyworld.picture_districts import OBJECTS, ROADS, Album, album, by_district
from tinyworld.roads import pictures as road_pictures
from tinyworld.small_blip2 import trained as trained_captioner
from tinyworld.training_loop import Recipe, begun, command_of, training_arguments
from tinyworld.vision_tower import FactorTower, tower_accuracy

BOTH = ("objects", "roads")
STEP = Recipe("step", 1, batch=4, seed=1)  # two pictures of each district


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Album:
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("runs")
        patch.setattr(object_pictures, "RUNS", cache)
        patch.setattr(round_trips, "RUNS", cache)
        patch.setattr(road_pictures, "CACHE", cache / "roads")
        return album(BOTH, "scorer", 3, restored=1)


def road_captions() -> list[str]:
    return [ROADS.describe(scene, index).text for index, scene in enumerate(ROADS.scenes(0, 400, "generator"))]


def object_captions() -> list[str]:
    return [OBJECTS.describe(scene, index).text for index, scene in enumerate(OBJECTS.scenes(0, 200, "generator"))]


def test_an_album_shows_the_districts_in_turn_each_with_targets_of_its_own(seen: Album) -> None:
    assert len(seen) == 8  # three pictures and one through the autoencoder, of each
    random = np.random.default_rng(0)
    names = list(seen.names)
    for row in range(8):
        one = seen.seen(row, random, flip=True)
        assert one.district is (OBJECTS, ROADS)[row % 2]
        assert one.image.shape == (128, 128, 3)
        known = {names[place] for place, target in enumerate(one.wanted) if target != UNKNOWN}
        assert known == {f"{one.district.prefix}{name}" for name in one.district.shown(one.scene)}
    assert seen.seen(6, random, flip=False).scene == seen.seen(0, random, flip=False).scene


def test_road_pictures_show_nothing_of_what_is_not_there() -> None:
    scene = ROADS.sample("calibration", 0)
    assert not {"clothes", "where"} & set(ROADS.shown(scene.changed(pedestrian="none")))
    assert "vehicle_colour" not in ROADS.shown(scene.changed(vehicle="none"))
    assert {"clothes", "where", "vehicle_colour"} <= set(
        ROADS.shown(scene.changed(pedestrian="walking", vehicle="bus"))
    )


def test_a_captioner_grown_for_the_roads_reads_and_says_objects_as_before() -> None:
    before, shipped = trained_captioner(WEIGHTS / "captioner", object_captions())
    after, grown = trained_captioner(WEIGHTS / "captioner", road_captions())
    new = len(after.tokenizer) - len(before.tokenizer)
    assert 0 < new < 80
    assert grown.num_parameters() - shipped.num_parameters() == new * grown.config.text_config.hidden_size
    texts = object_captions()
    assert before.tokenizer(texts).input_ids == after.tokenizer(texts).input_ids
    for text in road_captions():
        ids = after.tokenizer(text).input_ids
        assert after.tokenizer.decode(ids, skip_special_tokens=True) == text
        assert len(ids) <= 60
    images = [OBJECTS.picture(scene) for scene in OBJECTS.scenes(0, 2)]
    said = [train_captioner.captions_of(model.eval(), before, images) for model in (shipped, grown)]
    assert said[0] == said[1]


def test_a_step_of_the_captioner_learns_from_both(seen: Album) -> None:
    torch.manual_seed(0)
    processor, captioner = trained_captioner(WEIGHTS / "captioner", road_captions())
    model = train_captioner.SayFactors(captioner, FactorTower(captioner.vision_model, 128, seen.names))
    values, descriptions, wanted = train_captioner.batch(seen, 0, STEP)
    known = (wanted != UNKNOWN)[:, [list(seen.names).index(name) for name in ("label", "road surface")]]
    assert known.any(0).all()
    assert (known.sum(1) == 1).all()
    losses = []
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        loss = model.loss(values, *train_captioner.tokens_and_weights(processor, descriptions), wanted)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        losses.append(loss.item())
    assert losses[2] < losses[0]


def test_the_scorer_keeps_its_words_and_learns_from_both(seen: Album) -> None:
    torch.manual_seed(0)
    old, _ = train_scorer.trained(WEIGHTS / "scorer", object_captions())
    tokenizer, scorer = train_scorer.trained(WEIGHTS / "scorer", road_captions())
    assert old(object_captions()).input_ids == tokenizer(object_captions()).input_ids
    assert max(map(len, tokenizer(road_captions()).input_ids)) <= 60
    assert scorer.config.text_config.vocab_size == len(tokenizer) == len(old) + len(tokenizer.get_added_vocab()) - 2
    model = train_scorer.Contrast(scorer, seen.names)
    values, wanted, texts, stated, prompts = train_scorer.batch(seen, 0, STEP)
    assert len(texts) == len(stated) == 2 * len(values)
    loss = model.loss(values, wanted, token_ids(tokenizer, texts), stated, token_ids(tokenizer, prompts))
    torch.autograd.backward(loss)
    assert torch.isfinite(loss)
    for name in ("label", "road surface", "road weather"):
        assert model.heads.heads[name].get_parameter("weight").grad is not None


def token_ids(tokenizer: CLIPTokenizer, texts: list[str]) -> torch.Tensor:
    ids: torch.Tensor = tokenizer(texts, padding=True, truncation=True, return_tensors="pt").input_ids
    return ids


def test_a_scorer_of_the_roads_alone_needs_no_class(seen: Album) -> None:
    alone = Album(seen.parts[1:], {name: values for name, values in seen.names.items() if name.startswith("road ")})
    tokenizer, scorer = train_scorer.trained(WEIGHTS / "scorer", road_captions())
    values, wanted, texts, stated, prompts = train_scorer.batch(alone, 0, STEP)
    model = train_scorer.Contrast(scorer, alone.names)
    loss = model.loss(values, wanted, token_ids(tokenizer, texts), stated, token_ids(tokenizer, prompts))
    assert torch.isfinite(loss)


def test_swapped_captions_of_the_roads_say_something_else_of_the_same_scene() -> None:
    random = np.random.default_rng(1)
    others = 0
    for seed, scene in enumerate(ROADS.scenes(0, 150, "scorer")):
        own, other = ROADS.describe(scene, seed), train_scorer.swapped(ROADS, scene, seed, random)
        common = own.stated.keys() & other.stated.keys()
        others += sum(own.stated[name] != other.stated[name] for name in common) == 1
    assert others >= 145


def test_a_caption_that_states_nothing_has_no_swap() -> None:
    silent = replace(ROADS, describe=lambda scene, seed: Description("There is a road.", ()))
    swap = train_scorer.swapped(silent, ROADS.sample("scorer", 0), 0, np.random.default_rng(0))
    assert swap.text == "There is a road."


def test_each_district_is_judged_with_its_own_words() -> None:
    processor, captioner = trained_captioner(WEIGHTS / "captioner", road_captions())
    tokenizer, scorer = train_scorer.trained(WEIGHTS / "scorer", road_captions())
    said = by_district([OBJECTS, ROADS], lambda one: train_captioner.judge(captioner, processor, one, count=4))
    near = by_district([OBJECTS, ROADS], lambda one: train_scorer.judge(scorer, tokenizer, one, count=4))
    assert {name for name in said if name.startswith("roads: ")} == {
        f"roads: {name}" for name in said if not name.startswith("roads: ")
    }
    swaps = near["roads: nearer to the true caption, clean"]
    assert isinstance(swaps, dict)
    assert {"surface", "season", "buildings"} <= set(swaps) <= set(ROADS.values)
    assert "class, zero-shot, clean" in near
    assert "roads: class, zero-shot, clean" not in near
    tower = FactorTower(scorer.vision_model, 128, ROADS.values)
    assert set(tower_accuracy(tower, ROADS, count=2)["tower alone, accuracy"]) <= set(ROADS.values)


def test_runs_and_commands_say_what_differs_from_the_defaults() -> None:
    assert begun("captioner", ["objects"], None) == "captioner"
    assert begun("captioner", BOTH, Path("w")) == "captioner-again-objects-roads"
    assert command_of("tinyworld.train_scorer", ["objects"], None) == "python -m tinyworld.train_scorer"
    assert command_of("tinyworld.train_scorer", BOTH, Path("w")).endswith("--districts objects roads --start w")


def test_a_start_without_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["train", "--start", str(tmp_path)])
    with pytest.raises(SystemExit):
        training_arguments("", 1, start=True)
    assert "name a folder of weights" in capsys.readouterr().err
