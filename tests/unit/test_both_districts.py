"""The generator's side can be trained on both districts: a few steps of each part on real pictures of both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CLIPTokenizer

from diffusion_service.prompts import PromptEncoder
from tinyworld import pictures as object_pictures
from tinyworld.factors import factor_loss
from tinyworld.generator_material import Material, material
from tinyworld.picture_districts import factors_of
from tinyworld.roads import pictures as road_pictures
from tinyworld.roads.dataset import sibling, training_edges
from tinyworld.roads.render import coloured, render
from tinyworld.roads.world import LOOKS, PALETTE, differing_factors, sample_scene, withheld
from tinyworld.train_autoencoder import _Crops, build
from tinyworld.train_diffusion import Examples, Generator
from tinyworld.train_text_encoder import FOLDER as GENERATOR
from tinyworld.train_text_encoder import Held, captioned, trained, whole_ids

CPU = torch.device("cpu")
BOTH = ("objects", "roads")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_pictures, "RUNS", tmp_path)
    monkeypatch.setattr(road_pictures, "CACHE", tmp_path / "roads")


def test_siblings_of_a_road_scene_stand_alike_and_are_never_withheld() -> None:
    random = np.random.default_rng(3)
    for index in range(60):
        scene = sample_scene("generator", index, allow_withheld=False)
        other = sibling(scene, random)
        assert not withheld(other)
        assert differing_factors(scene, other) <= set(LOOKS)
        assert other != scene


def test_edges_of_road_scenes_follow_from_the_random_stream() -> None:
    scene = sample_scene("generator", 5, allow_withheld=False)
    seen = render(scene)
    first, second = (training_edges(scene, seen.image, seen.classes, np.random.default_rng(9)) for _ in range(2))
    assert np.array_equal(first, second)
    assert set(np.unique(first)) <= {0, 1}


def test_districts_take_turns_in_pictures_captions_and_controls() -> None:
    both, objects, roads = material(BOTH, 3), material(["objects"], 3), material(["roads"], 3)
    assert both.count == 6
    for row in range(3):
        for part, place in ((objects, 2 * row), (roads, 2 * row + 1)):
            assert np.array_equal(part.image(row), both.image(place))
            assert part.caption(row, 4) == both.caption(place, 4)
            alone, among = part.control(row, np.random.default_rng(1)), both.control(place, np.random.default_rng(1))
            assert np.array_equal(alone, among)


def test_a_step_of_the_generator_learns_from_edges_of_both() -> None:
    examples = Examples(material(BOTH, 2), 2, CPU)
    model = Generator(examples.text_encoder.config.hidden_size)
    loss = examples.loss(model, 0)
    torch.autograd.backward(loss)
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in model.controlnet.controlnet_cond_embedding.parameters())


def test_a_segmentation_controlnet_learns_colours_beside_a_unet_that_stays() -> None:
    examples = Examples(material(BOTH, 2, "segmentation"), 2, CPU)
    width = examples.text_encoder.config.hidden_size
    trained, model = Generator(width), Generator(width)
    model.keep_unet(trained.state_dict())
    before = {name: tensor.clone() for name, tensor in model.unet.state_dict().items()}
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for step in range(2):
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(examples.loss(model, step))
        optimiser.step()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.unet.state_dict().items())
    assert model.controlnet.controlnet_mid_block.weight.abs().sum() > 0  # zero in an untrained one


def test_segmentation_controls_are_the_classes_in_colours_or_black() -> None:
    data: Material = material(["roads"], 2, "segmentation")
    seen = render(sample_scene("generator", 0, allow_withheld=False)).classes
    drawn = [data.control(0, np.random.default_rng(seed)) for seed in range(40)]
    dropped = [not image.any() for image in drawn]
    assert 0 < sum(dropped) < 15
    assert all(np.array_equal(image, coloured(seen)) for image, black in zip(drawn, dropped, strict=True) if not black)
    assert {tuple(colour) for colour in coloured(seen).reshape(-1, 3).tolist()} <= set(PALETTE)


def test_the_autoencoder_crops_pictures_of_both() -> None:
    loss = _Crops(material(BOTH, 2), 2, CPU).loss(build(), 0)
    assert torch.isfinite(loss)


def test_the_text_encoder_is_asked_for_the_factors_of_both() -> None:
    names = factors_of(BOTH)
    texts, wanted = zip(*(captioned(index, BOTH) for index in range(4)), strict=True)
    assert [sum(target >= 0 for target in row) > 0 for row in wanted] == [True] * 4
    place = list(names).index("road surface")
    assert all(row[place] < 0 for row in wanted[::2])  # objects have none
    assert "road" in texts[1]
    logits = [torch.zeros(4, len(values)) for values in names.values()]
    assert factor_loss(logits, torch.tensor(wanted), names=names) > 0
    assert captioned(0) == captioned(0, ("objects",))


def test_a_text_encoder_learns_the_roads_words_and_keeps_what_a_unet_knows(tmp_path: Path) -> None:
    road = [captioned(2 * index + 1, BOTH)[0] for index in range(400)]
    objects = [captioned(index)[0] for index in range(50)]
    shipped = CLIPTokenizer.from_pretrained(GENERATOR / "tokenizer")
    tokenizer, encoder = trained(GENERATOR, road)
    assert shipped(objects).input_ids == tokenizer(objects).input_ids
    assert max(map(len, shipped(road).input_ids)) > 77 >= max(map(len, tokenizer(road).input_ids))
    held, ids = Held(encoder), whole_ids(tokenizer, objects)
    assert held.moved(encoder, ids).item() == 0
    with torch.no_grad():
        encoder.get_input_embeddings().weight[-1] += 1  # of a word that no caption of objects has
    assert held.moved(encoder, ids).item() == 0
    assert held.moved(encoder, whole_ids(tokenizer, [tokenizer.decode([len(tokenizer) - 1])])).item() > 0
    tokenizer.save_pretrained(tmp_path)
    prompts = PromptEncoder([(CLIPTokenizer.from_pretrained(tmp_path), encoder)])
    text = "An asphalt road in the countryside. It is night."
    assert len(shipped.tokenize("asphalt")) > 1
    assert len(prompts.words(text)) == len(text.replace(".", " .").split())
