"""The drawing of the gateway's places says what the imports say, without overlaps; counts are right at their bounds."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

from docs import counts, places
from docs.generate import whole_pages

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


def test_a_function_is_long_from_36_lines_on_and_tests_and_migrations_are_not_counted(tmp_path: Path) -> None:
    code = "".join(f"def lines_{lines}():\n" + "    pass\n" * (lines - 1) for lines in (35, 36))
    for folder in ("package", "package/migrations", "package/tests", "tests"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(code, encoding="utf-8")
    files = list(counts.python_files(tmp_path))
    assert [path.relative_to(tmp_path).as_posix() for path in files] == ["package/__init__.py"]
    assert counts.long_functions(files) == [("lines_36", 36)]


def test_a_public_class_name_in_two_modules_is_repeated(tmp_path: Path) -> None:
    for module in ("first", "second"):
        text = f"class Shared:\n    class Inner: ...\nclass _Private: ...\nclass Only{module.title()}: ...\n"
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
    assert counts.repeated_classes(tmp_path) == ["Shared"]


def test_words_of_hand_written_pages_leave_out_generated_pages_and_measurements(tmp_path: Path) -> None:
    for folder in ("how-to", "reference", "measurements"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "page.md").write_text("# Title\n\nthree more words\n", encoding="utf-8")
    assert counts.hand_written(["reference/page.md"], tmp_path) == 5
    assert all((counts.ROOT / "docs" / name).is_file() for name in whole_pages())
