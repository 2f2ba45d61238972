"""Protection on driving scenes: edits and things, trained readers, and judgements per thing."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoImageProcessor, AutoModelForImageClassification
from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil

from research.judges.oracles import roads as road_oracles
from research.judges.oracles.roads import LOGITS, ORACLES, READ, judge, readings
from research.judges.protection.domain import FIRST, ProtectedEdit, ProtectedThing, overlaps
from research.judges.protection.gallery import Gallery, parameters
from research.judges.protection.roads import (
    FIELDS,
    ROADS,
    edit_of,
    instances,
    near,
    read_roads,
    recognise,
    road_edits,
)
from research.judges.segmentation import HEIGHTS
from research.networks.oracles import new_oracle
from research.networks.segmenters import new_road_segmenter
from research.pictures.augmentation import as_pixel_values
from research.roads import pictures
from research.train import loop
from research.train.oracle import roads as train_oracle
from research.train.segmenter import roads as train_segmenter
from shared.profiles.diffusion import Diffusion
from shared.profiles.profile import Profile, load_profile
from shared.profiles.weights import Weights
from tinyworld.roads.captions import read
from tinyworld.roads.render import render
from tinyworld.roads.world import CLASSES, PALETTE, sample_scene

ROAD, PEDESTRIAN = CLASSES.index("road"), CLASSES.index("pedestrian")


@pytest.fixture(scope="module")
def edits() -> list[ProtectedEdit]:
    return list(road_edits(len(FIELDS)))


def test_an_edit_changes_one_look_in_words_and_leaves_every_shape(edits: list[ProtectedEdit]) -> None:
    assert [edit.field for edit in edits] == [*FIELDS]
    for number, edit in enumerate(edits):
        before = sample_scene("final-test", FIRST + number)
        after = before.changed(**{edit.field: edit.to_value})
        assert before != after
        assert np.array_equal(edit.truth, render(after).image)
        shapes = [(thing.label, thing.mask.tobytes()) for thing in edit.instances]
        assert shapes == [(thing.label, thing.mask.tobytes()) for thing in instances(render(after))]
        assert edit.facts[edit.field] == edit.to_value
        assert "road" in {thing.label for thing in edit.instances} <= set(CLASSES)
    again = next(road_edits(1))
    assert again.edit == edits[0].edit
    assert np.array_equal(again.source, edits[0].source)


@pytest.mark.parametrize("field", FIELDS)
def test_captions_say_the_edit_and_nothing_else(field: str) -> None:
    for number in range(150):
        scene = sample_scene("final-test", FIRST + number)
        edit, after = edit_of(scene, field)
        before = read(edit.caption)
        assert before[field] == getattr(scene, field)
        assert read(edit.new_caption) == before | {field: getattr(after, field)}
        assert edit.changes[0].to_phrase in edit.new_caption


def test_things_are_found_in_the_truth_itself_and_people_painted_over_are_not() -> None:
    scenes = [sample_scene("final-test", FIRST + n).changed(pedestrian="standing") for n in range(6)]
    for rendering in map(render, scenes):
        things = instances(rendering)
        # A speck of another vehicle may touch one, so not always all of 1.
        assert min(overlaps(rendering.classes, CLASSES, things, near)) > 0.97
        assert recognise(things, [rendering.classes, rendering.classes]) == (True,) * len(things)
        blind = np.where(rendering.classes == PEDESTRIAN, ROAD, rendering.classes).astype(np.uint8)
        unpainted = tuple(thing.label != "pedestrian" for thing in things)
        assert not all(unpainted)
        assert recognise(things, [blind, blind]) == unpainted
        assert recognise(things, [rendering.classes, blind]) == unpainted, "both must see it"


def test_people_side_by_side_are_judged_each_by_itself() -> None:
    left, right = (ProtectedThing("pedestrian", np.zeros((128, 128), np.bool_)) for _ in range(2))
    left.mask[60:100, 40:52] = True
    right.mask[60:100, 52:64] = True
    both = left.mask | right.mask
    assert near(both, left, [right]) == 1.0
    assert near(right.mask, left, [right]) == 0.0, "who stays does not stand for who is gone"
    crowd = both.copy()
    crowd[60:100, :40] = True
    assert near(crowd, left, [right]) == pytest.approx(12 / 15), "only 3 pixels of it are within the window"
    aside = np.roll(left.mask, 30, axis=0)
    assert near(aside, left, []) < 0.5


def test_sizes_are_heights_of_people_and_vehicles() -> None:
    for least, below in HEIGHTS:
        mask = np.zeros((128, 128), np.bool_)
        mask[10 : 10 + least, 20:28] = True
        assert ROADS.size(ProtectedThing("pedestrian", mask)) == f"pedestrians, {least}-{below - 1} px"
        assert ROADS.size(ProtectedThing("vehicle", mask)).startswith("vehicles, ")
        assert ROADS.size(ProtectedThing("road", mask)) == ""


@pytest.mark.parametrize("name", ORACLES)
def test_training_a_reader_resumes_and_writes_the_hub_layout(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(pictures, "CACHE", tmp_path / "cache")
    oracle = ORACLES[name]
    monkeypatch.setitem(train_segmenter.PLANS, oracle, replace(train_segmenter.PLANS[oracle], round_trips=2))
    steps, seconds = [], 0.2
    for _ in range(2):
        folder = train_oracle.train_oracle(name, tmp_path / "model", seconds=seconds, count=6, judged=2)
        record = json.loads((folder / "training.json").read_text())
        steps.append(record["spent_steps"])
        seconds = record["spent_seconds"] + 0.5  # time spent before a stop counts against the budget
    assert 0 < steps[0] < steps[1]
    assert set(record["results"]["accuracy, spoilt"]) == set(READ)
    model = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.float32)
    image = render(sample_scene("final-test", 0)).image
    processed = AutoImageProcessor.from_pretrained(folder)([image], return_tensors="pt").pixel_values
    values_read = readings(model, [image])[0].tolist()
    assert all(0 <= place < len(values) for place, values in zip(values_read, READ.values(), strict=True))
    with torch.no_grad():
        ours = model(pixel_values=as_pixel_values(image[None])).logits
        assert torch.allclose(model(pixel_values=processed).logits, ours, atol=1e-4)


def saved_reader(name: str, folder: Path, **readings: str) -> None:
    """A reader that reads the same in every picture."""
    model = new_oracle("resnet" if name == "reader-a" else "regnet", LOGITS)
    for parameter in model.classifier[1].parameters():
        parameter.data.zero_()
    bias, labels = model.classifier[1].bias.data, model.config.label2id
    for factor, value in readings.items():
        bias[labels[f"{factor}={value}"]] = 1.0
    model.save_pretrained(folder / name)


def saved_segmenter(folder: Path, name: str, label: str) -> Path:
    """A segmenter that sees one class everywhere."""
    model = new_road_segmenter("segformer")
    head = model.decode_head.classifier
    head.weight.data.zero_()
    head.bias.data.zero_()
    head.bias.data[CLASSES.index(label)] = 1.0
    model.save_pretrained(folder / name)
    SegformerImageProcessorPil(
        size={"height": 128, "width": 128}, image_mean=[0.5] * 3, image_std=[0.5] * 3, do_reduce_labels=False
    ).save_pretrained(folder / name)
    return folder / name


def test_the_edit_is_shown_where_both_readers_read_it(
    edits: list[ProtectedEdit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(road_oracles, "ROAD_MODELS", tmp_path)
    edit = edits[0]
    assert edit.field == "time"
    missing = partial(pytest.raises, SystemExit)
    with missing(match=r"segmenter .*oracle-a"):
        read_roads([edit], [edit.truth])
    for name in ("oracle-a", "oracle-b"):
        saved_segmenter(tmp_path, name, "road")
    saved_reader("reader-a", tmp_path, time=edit.to_value, weather="fog")
    with missing(match=r"oracle .*reader-b"):
        ROADS.load_judges()
    saved_reader("reader-b", tmp_path, time=edit.to_value, weather="snow")
    (reading,) = judge([edit.truth])
    assert reading["time"] == edit.to_value
    assert reading["weather"] is None
    other = replace(edit, field="weather", to_value="fog")
    first, second = read_roads([edit, other], [edit.truth, edit.truth])
    assert first.shown
    assert not second.shown, "one of them reads snow"
    labels = [thing.label for thing in edit.instances]
    assert not any(still for still, label in zip(first.recognised, labels, strict=True) if label != "road")


def roads_profile(folder: Path) -> Profile:
    """The shipped generator with two ControlNets (one of them out of its place) and a segmenter of the roads."""
    profile = load_profile("tiny")
    segmenter = Weights(path=saved_segmenter(folder, "segmenter", "road"), licence="none", gigabytes=0.01)
    canny = profile.diffusion.controlnets["canny"]
    diffusion = Diffusion(
        base=profile.diffusion.base,
        controlnets={"canny": canny, "segmentation": canny},
        segmenter=segmenter,
        palette=dict(zip(CLASSES, PALETTE, strict=True)),
    )
    return profile.model_copy(update={"diffusion": diffusion, "methods": {"dillema": {"steps": 2, "guidance": 2.5}}})


def test_roads_are_drawn_under_several_controls(edits: list[ProtectedEdit], tmp_path: Path) -> None:
    edit = edits[0]
    with pytest.raises(SystemExit, match="vehicle, pedestrian, traffic light"):
        Gallery(load_profile("tiny"), ROADS)
    profile = roads_profile(tmp_path)
    alone = Gallery(profile, ROADS)
    gallery = Gallery(profile, ROADS, ["canny", "segmentation:0.5"])
    assert [(control.kind, control.scale) for control in gallery.controls] == [("canny", 1.0), ("segmentation", 0.5)]
    pictures = list(gallery.draw(edit, ["none", "relit:1"]))
    ((_, edges_only, _),) = alone.draw(edit, ["none"])
    assert not np.array_equal(pictures[0][1], edges_only)


def test_controls_are_chosen_by_kind_and_weight_among_the_profiles() -> None:
    profile = load_profile("paper")
    chosen = parameters(profile, ["canny:0.8", "segmentation"])
    assert [(strength.kind, strength.scale) for strength in chosen.strengths] == [("canny", 0.8), ("segmentation", 1.0)]
    assert chosen.steps == parameters(profile, []).steps
    assert [strength.kind for strength in parameters(load_profile("tiny"), []).strengths] == ["canny"]
    with pytest.raises(SystemExit, match="segmentation"):
        parameters(load_profile("tiny"), ["segmentation"])
    for wrong, why in (("canny:9", "2"), ("canny:much", "number"), ("edges", "canny")):
        with pytest.raises(SystemExit, match=f"--controls: .*{why}"):
            parameters(profile, [wrong])
