"""Training the generator's parts on either domain: a step of each on real pictures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CLIPTextModel, CLIPTokenizer

from diffusion_service.prompts import PromptEncoder
from research.datasets.captioned_pictures import PICTURE_DOMAINS, PictureDomain
from research.datasets.generator_pictures import CONTROL_KINDS, Material, material
from research.networks.factor_heads import factor_loss
from research.objects import pictures as object_pictures
from research.roads import pictures as road_pictures
from research.roads.control_edges import sibling, training_edges
from research.system import folders
from research.system.folders import WEIGHTS
from research.train import loop
from research.train import text_encoder as train_text_encoder
from research.train.autoencoder import _Crops, build
from research.train.diffusion import Examples, Generator
from research.train.text_encoder import caption_with_labels, load_trained
from tests.support.scene_fields import differing_fields
from tinyworld.domain.scenes import UNKNOWN
from tinyworld.roads.render import colour_map, render
from tinyworld.roads.world import LOOKS, PALETTE, sample_scene, withheld

CPU = torch.device("cpu")
GENERATOR = WEIGHTS / "diffusion"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_pictures, "CACHE", tmp_path / "objects")
    monkeypatch.setattr(road_pictures, "CACHE", tmp_path / "roads")


def test_siblings_of_a_road_scene_stand_alike_and_are_never_withheld() -> None:
    random = np.random.default_rng(3)
    for index in range(60):
        scene = sample_scene("generator", index, allow_withheld=False)
        other = sibling(scene, random)
        assert not withheld(other)
        assert differing_fields(scene, other) <= set(LOOKS)
        assert other != scene


def test_edges_of_road_scenes_follow_from_the_random_stream() -> None:
    scene = sample_scene("generator", 5, allow_withheld=False)
    drawing, other = render(scene), render(sibling(scene, np.random.default_rng(0)))
    for seed in range(12):
        streams = np.random.default_rng(seed), np.random.default_rng(seed)
        first, second = (training_edges(drawing.image, other.image, drawing.classes, random) for random in streams)
        assert np.array_equal(first, second)
        assert set(np.unique(first)) <= {0, 1}


@pytest.mark.parametrize("domain", PICTURE_DOMAINS)
def test_a_step_of_the_generator_learns_from_every_control_and_from_several_at_once(domain: str) -> None:
    examples = Examples(material(domain, 2), 2, CPU, CONTROL_KINDS)
    model = Generator(examples.text_encoder.config.hidden_size, (32, 64, 64), CONTROL_KINDS)
    for step, controls in enumerate([{"canny"}, {"segmentation"}, {"canny", "segmentation"}]):
        model.zero_grad(set_to_none=True)
        loss = examples.loss(model, step)
        torch.autograd.backward(loss)
        assert torch.isfinite(loss)
        for kind, network in model.controlnets.items():
            assert {parameter.grad is not None for parameter in network.parameters()} == {kind in controls}


def test_segmentation_controls_are_the_classes_in_colours_or_black() -> None:
    data: Material = material("roads", 2)
    classes = render(sample_scene("generator", 0, allow_withheld=False)).classes
    controls = [data.control("segmentation", 0, np.random.default_rng(seed)) for seed in range(40)]
    dropped = [not image.any() for image in controls]
    assert 0 < sum(dropped) < 15
    assert all(
        np.array_equal(image, colour_map(classes)) for image, black in zip(controls, dropped, strict=True) if not black
    )
    assert {tuple(colour) for colour in colour_map(classes).reshape(-1, 3).tolist()} <= set(PALETTE)


@pytest.mark.parametrize("domain", PICTURE_DOMAINS)
def test_the_autoencoder_crops_pictures(domain: str) -> None:
    loss = _Crops(material(domain, 2), 2, CPU).loss(build(), 0)
    assert torch.isfinite(loss)


@pytest.mark.parametrize("domain", PICTURE_DOMAINS.values(), ids=PICTURE_DOMAINS)
def test_the_text_encoder_is_asked_for_the_factors_of_its_domain(domain: PictureDomain[Any]) -> None:
    texts, targets = zip(*(caption_with_labels(index, domain.name) for index in range(4)), strict=True)
    for text, row in zip(texts, targets, strict=True):
        stated = dict(zip(domain.values, row, strict=True))
        assert {name: domain.values[name].index(value) for name, value in domain.read(text).items()} == {
            name: target for name, target in stated.items() if target != UNKNOWN
        }
    logits = [torch.zeros(4, len(values)) for values in domain.values.values()]
    assert factor_loss(logits, torch.tensor(targets), names=domain.values) > 0


def test_a_text_encoder_learns_the_roads_words(tmp_path: Path) -> None:
    road = [caption_with_labels(index, "roads")[0] for index in range(400)]
    objects = [caption_with_labels(index)[0] for index in range(50)]
    shipped = CLIPTokenizer.from_pretrained(GENERATOR / "tokenizer")
    tokenizer, _ = load_trained(GENERATOR, road)
    assert shipped(objects).input_ids == tokenizer(objects).input_ids
    assert max(map(len, shipped(road).input_ids)) > 77 >= max(map(len, tokenizer(road).input_ids))
    tokenizer.save_pretrained(tmp_path)
    tokenizer, encoder = CLIPTokenizer.from_pretrained(tmp_path), load_trained(GENERATOR, road)[1]
    prompts = PromptEncoder([(tokenizer, encoder)])
    text = "An asphalt road in the countryside. It is night."
    assert len(shipped.tokenize("asphalt")) > 1
    assert len(prompts.words(text)) == len(text.replace(".", " .").split())


def test_the_roads_text_encoder_lies_below_their_weights_where_the_generator_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "WEIGHTS", tmp_path)
    monkeypatch.setattr(loop, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(train_text_encoder, "CAPTIONS", 400)
    train_text_encoder.train_text_encoder(math.inf, 0, "roads", GENERATOR, steps=3)
    folder = tmp_path / "roads" / "diffusion"
    assert "# Text encoder of the generator of the roads" in (folder / "text_encoder" / "README.md").read_text()
    assert (tmp_path / "runs" / "text-encoder-again-roads").is_dir()
    examples = Examples(material("roads", 1), 1, CPU, domain="roads")
    assert len(examples.tokenizer.tokenize("asphalt")) == 1
    written = CLIPTextModel.from_pretrained(folder / "text_encoder", dtype=torch.float32).state_dict()
    assert all(torch.equal(written[name], tensor) for name, tensor in examples.text_encoder.state_dict().items())
