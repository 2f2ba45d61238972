"""The drawing of the gateway's places: arrows say what the imports say, and nothing lies over another thing."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

from docs import places

SVG = "{http://www.w3.org/2000/svg}"


def reached(place: str, steps: dict[str, list[str]]) -> set[str]:
    return {place}.union(*(reached(other, steps) for other in steps.get(place, [])))


def test_arrows_lead_to_all_that_imports_lead_to_and_none_can_be_spared() -> None:
    imported, arrows = places.imports(), places.arrows(places.imports())
    steps = {place: [end for start, end in arrows if start == place] for place in imported}
    assert all(set(others) <= reached(place, steps) for place, others in imported.items())
    for start, end in arrows:
        assert end in imported[start]
        without = steps | {start: [other for other in steps[start] if other != end]}
        assert end not in reached(start, without), f"{start} reaches {end} by other arrows"


def test_every_place_is_drawn_once_in_its_layer_without_overlaps() -> None:
    drawing = ET.fromstring(places.places_svg())
    boxes = [box for box in drawing.iter(f"{SVG}rect") if box.get("class") == "place"]
    names = [text.text for text in drawing.iter(f"{SVG}text")]
    assert sorted(map(str, names)) == sorted(name for layer in places.layers() for name in layer)
    by_layer: dict[float, list[tuple[float, float]]] = {}
    for box in boxes:
        left, width = float(box.attrib["x"]), float(box.attrib["width"])
        by_layer.setdefault(float(box.attrib["y"]), []).append((left, left + width))
    assert len(by_layer) == len(places.layers())
    for spans in by_layer.values():
        assert all(right < left for (_, right), (left, _) in pairwise(sorted(spans)))


def test_the_table_has_each_place_with_its_imports() -> None:
    lines = [line for line in places.places_table().splitlines() if line.startswith("| ") and "`" in line]
    assert len(lines) == len(places.imports())
    (results,) = (line for line in lines if line.split("|")[2].strip() == "`results`")
    assert "`jobs`" in results.split("|")[4]
    assert "`web`" not in results.split("|")[4], "imports point downwards"
