"""The check `recaption` with the shipped captioner behind its service: it rejects other classes, not other times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from caption_service.app import create_app
from gateway.methods.counterfactual import MethodImage
from gateway.methods.recaption import recaption_images
from gateway.model_services.clients import ModelServices
from shared.service_settings import ServiceSettings
from tests.support.listening import listen_as
from tinyworld.judges.records import RECORDS, Record
from tinyworld.judges.trials import TASK, payload
from tinyworld.measure.recaption import recaption_records, table
from tinyworld.objects.render import render
from tinyworld.objects.world import Scene, sample_scene


@pytest.fixture(scope="module")
def services() -> Iterator[ModelServices]:
    with listen_as("caption_service", create_app(ServiceSettings(profile="tiny", device="cpu", threads=1))) as services:
        yield services


def scene(label: str, time: str = "day", index: int = 3) -> Scene:
    return sample_scene("calibration", index).changed(
        label=label, time=time, style="photo", weather="clear", size="large", companion="none"
    )


def picture(scene: Scene) -> np.ndarray:
    return np.ascontiguousarray(render(scene).image)


def named_shares(services: ModelServices, truth: str, source: Scene, *images: Scene) -> list[float | None]:
    source_image = MethodImage("source", payload(picture(source)), truth)
    recaptions = recaption_images(services, source_image, TASK, [payload(picture(image)) for image in images])
    return [None if recaption is None else recaption.named for recaption in recaptions]


@pytest.mark.parametrize("label", ["bus", "boat", "bird"])
def test_the_class_is_named_by_night_too_and_another_class_is_not_it(services: ModelServices, label: str) -> None:
    other = "car" if label != "bird" else "house"
    shown = (scene(label, "night"), scene(label, "day"), scene(other), scene(other, "night"))
    assert named_shares(services, label, scene(label), *shown) == [1.0, 1.0, 0.0, 0.0]


def test_sources_that_show_another_class_than_their_label_are_not_checked(services: ModelServices) -> None:
    assert named_shares(services, "bus", scene("boat"), scene("boat", "night"), scene("bus")) == [None, None]


def test_what_it_adds_is_measured_on_judged_pictures(services: ModelServices, tmp_path: Path) -> None:
    sources, images = [scene("bus"), scene("boat"), scene("bird")], [scene("bus", "night"), scene("car"), scene("car")]
    (tmp_path / "images").mkdir()
    lines = []
    for place, (source, image) in enumerate(zip(sources, images, strict=True)):
        class_kept = source.label == image.label
        for name, shown in ((f"{place}-source", source), (f"{place}", image)):
            Image.fromarray(picture(shown)).save(tmp_path / "images" / f"{name}.png")
        lines.append(
            Record(
                id=f"{place}", arm="edit", source=f"images/{place}-source.png", image=f"images/{place}.png",
                label=source.label, field="time", factor="weather", from_value="day", to_value="night", caption="",
                new_caption="", withheld=False, accepted=place < 2, check="" if place < 2 else "label", scores={},
                kept=class_kept, shown=True, others=(), predicted={}, weights="",
            ).model_dump_json()
        )  # fmt: skip
    (tmp_path / RECORDS).write_text("\n".join(lines))
    report = list(table(*recaption_records(services, tmp_path)))
    assert "100.0% (1 of 1; 21% to 100%)" in report[1], "of those that lost their class"
    assert "0.0% (0 of 1; 0% to 79%)" in report[2], "of those that kept it"
    assert any("100.0% (3 of 3; 44% to 100%)" in line for line in report), "another class's source in the image's place"
    assert report[-1].startswith("images/1.png (boat, lost): ")
    with pytest.raises(ValueError, match="no images"):
        recaption_records(services, tmp_path / "images")
