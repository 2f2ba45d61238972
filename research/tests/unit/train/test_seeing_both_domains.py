"""Training captioner and scorer on either domain from the shipped weights: a few steps on real pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from research.datasets import round_trips
from research.datasets.captioned_pictures import OBJECTS, PICTURE_DOMAINS, ROADS, Album, PictureDomain, album
from research.networks.small_blip2 import load_trained as trained_captioner
from research.networks.small_clip import load_trained as trained_scorer
from research.networks.vision_tower import FactorTower
from research.objects import pictures as object_pictures
from research.roads import pictures as road_pictures
from research.system.folders import WEIGHTS, weights_of
from research.train import captioner as train_captioner
from research.train import scorer as train_scorer
from research.train.loop import Recipe, command_of, run_name, training_arguments
from research.train.model_card import title_of
from research.train.vision_tower import tower_accuracy
from tinyworld.domain.descriptions import Description
from tinyworld.domain.scenes import UNKNOWN
from tinyworld.networks.clip_tokenizer import token_ids

STEP = Recipe("step", 1, batch=4, seed=1)


@pytest.fixture(scope="module", params=PICTURE_DOMAINS)
def pictures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Album:
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("runs")
        patch.setattr(object_pictures, "CACHE", cache / "objects")
        patch.setattr(round_trips, "RUNS", cache)
        patch.setattr(road_pictures, "CACHE", cache / "roads")
        return album(request.param, "scorer", 3, restored=1)


def road_captions() -> list[str]:
    return [ROADS.describe(scene, index).text for index, scene in enumerate(ROADS.scenes(0, 400, "generator"))]


def object_captions() -> list[str]:
    return [OBJECTS.describe(scene, index).text for index, scene in enumerate(OBJECTS.scenes(0, 200, "generator"))]


def test_an_album_shows_pictures_with_the_targets_of_their_scenes(pictures: Album) -> None:
    assert len(pictures) == 4  # three pictures and one through the autoencoder
    random = np.random.default_rng(0)
    for row in range(4):
        view = pictures.view(row, random, flip=True)
        assert view.image.shape == (128, 128, 3)
        targets = zip(pictures.domain.values.items(), view.targets, strict=True)
        targets_shown = {name: values[target] for (name, values), target in targets if target != UNKNOWN}
        assert targets_shown == pictures.domain.shown(view.scene)
    assert pictures.view(3, random, flip=False).scene == pictures.view(0, random, flip=False).scene


def test_road_pictures_show_no_absent_thing() -> None:
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
    captions = [train_captioner.captions_of(model.eval(), before, images) for model in (shipped, grown)]
    assert captions[0] == captions[1]


def test_a_step_of_the_captioner_learns(pictures: Album) -> None:
    torch.manual_seed(0)
    processor, captioner = trained_captioner(WEIGHTS / "captioner", road_captions())
    model = train_captioner.FactorCaptioner(captioner, FactorTower(captioner.vision_model, 128, pictures.domain.values))
    values, descriptions, targets = train_captioner.batch(pictures, 0, STEP)
    losses = []
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        loss = model.loss(values, *train_captioner.tokens_and_weights(processor, descriptions), targets)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        losses.append(loss.item())
    assert losses[2] < losses[0]


def test_a_step_of_the_scorer_learns(pictures: Album) -> None:
    torch.manual_seed(0)
    tokenizer, scorer = trained_scorer(WEIGHTS / "scorer", road_captions())
    model = train_scorer.Contrast(scorer, pictures.domain.values)
    values, targets, texts, stated, prompts = train_scorer.batch(pictures, 0, STEP)
    assert len(texts) == len(stated) == 2 * len(values)
    loss = model.loss(values, targets, token_ids(tokenizer, texts), stated, token_ids(tokenizer, prompts))
    torch.autograd.backward(loss)
    assert torch.isfinite(loss)
    for name in (pictures.domain.always, "weather"):
        assert model.heads.heads[name].get_parameter("weight").grad is not None


def test_the_scorer_keeps_its_words_and_learns_the_roads() -> None:
    old, _ = trained_scorer(WEIGHTS / "scorer", object_captions())
    tokenizer, scorer = trained_scorer(WEIGHTS / "scorer", road_captions())
    assert old(object_captions()).input_ids == tokenizer(object_captions()).input_ids
    assert max(map(len, tokenizer(road_captions()).input_ids)) <= 60
    assert scorer.config.text_config.vocab_size == len(tokenizer) == len(old) + len(tokenizer.get_added_vocab()) - 2


def test_swapped_captions_of_the_roads_misdescribe_the_same_scene() -> None:
    random = np.random.default_rng(1)
    others = 0
    for seed, scene in enumerate(ROADS.scenes(0, 150, "scorer")):
        description, other = ROADS.describe(scene, seed), train_scorer.misdescribe(ROADS, scene, seed, random)
        common = description.stated.keys() & other.stated.keys()
        others += sum(description.stated[name] != other.stated[name] for name in common) == 1
    assert others >= 145


def test_a_caption_that_states_nothing_has_no_swap() -> None:
    silent = replace(ROADS, describe=lambda scene, seed: Description("There is a road.", ()))
    swap = train_scorer.misdescribe(silent, ROADS.sample("scorer", 0), 0, np.random.default_rng(0))
    assert swap.text == "There is a road."


@pytest.mark.parametrize("domain", PICTURE_DOMAINS.values(), ids=PICTURE_DOMAINS)
def test_each_domain_is_judged_with_its_own_words(domain: PictureDomain[Any]) -> None:
    processor, captioner = trained_captioner(WEIGHTS / "captioner", road_captions())
    tokenizer, scorer = trained_scorer(WEIGHTS / "scorer", road_captions())
    rates = train_captioner.judge(captioner, processor, domain, count=4)["right where stated"]
    near = train_scorer.judge(scorer, tokenizer, domain, count=4)
    swaps = near["nearer to the true caption, clean"]
    assert isinstance(rates, dict)
    assert isinstance(swaps, dict)
    assert set(rates) <= set(domain.values)
    assert {"weather"} < set(swaps) <= set(domain.values)
    assert ("class, zero-shot, clean" in near) == (domain is OBJECTS)  # nothing else has classes
    tower = FactorTower(scorer.vision_model, 128, domain.values)
    assert set(tower_accuracy(tower, domain, count=2)["tower alone, accuracy"]) <= set(domain.values)


def test_runs_commands_titles_and_folders_say_what_differs_from_the_defaults() -> None:
    assert run_name("captioner", "objects", None) == "captioner"
    assert run_name("captioner", "roads", Path("w")) == "captioner-again-roads"
    assert command_of("research.train.scorer", "objects", None) == "python -m research.train.scorer"
    command = command_of("research.train.scorer", "roads", Path("w"), pictures=9)
    assert command == "python -m research.train.scorer --pictures 9 --domain roads --start w"
    assert title_of("Scorer", "objects") == "Scorer"
    assert title_of("Scorer", "roads") == "Scorer of the roads"
    assert weights_of("objects") == WEIGHTS
    assert weights_of("roads") == WEIGHTS / "roads"


def test_a_start_without_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["train", "--start", str(tmp_path)])
    with pytest.raises(SystemExit):
        training_arguments("", 1, start=True)
    assert "folder of weights" in capsys.readouterr().err


def test_the_options_are_those_that_a_command_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train", "--domain", "roads", "--pictures", "9000"])
    chosen = training_arguments("", 1, domain=True, pictures=16_000)
    assert (chosen.domain, chosen.pictures) == ("roads", 9_000)
    monkeypatch.setattr("sys.argv", ["train"])
    assert training_arguments("", 1, domain=True).domain == "objects"
    monkeypatch.setattr("sys.argv", ["train", "--domain", "objects", "roads"])
    with pytest.raises(SystemExit):
        training_arguments("", 1, domain=True)
