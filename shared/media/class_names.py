"""Read lists of class names, and find the class that a label means when it is no class's name as it stands.

A list is a text file with a name on each line, perhaps after its index, or JSON: a list of names, name → index, or
index → name (`id2label` of the Hub).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

from pydantic import JsonValue, TypeAdapter, ValidationError

from shared.media.manifests import decode_text
from shared.problems import Malformed
from shared.schemas.models import names_in_order

_NUMBERED = re.compile(r"(\d+)\s*[:,;\t ]\s*(\S.*)|(\S.*?)\s*[,;\t]\s*(\d+)")  # "0 car", "0: car", "car,0"
_PAIR = re.compile(r"(n\d{8})\s+(\S.*)|(\S.*?)\s*[=,;\t]\s*(\S.*)")
_LANDMARKS = {1: "goldfish", 207: "golden retriever", 954: "banana"}  # of ImageNet's 1,000 classes, in their order
_NUMBER = re.compile(r"0|[1-9]\d*")


def read_class_names(data: bytes, name: str) -> JsonValue:
    """The names in a file of classes: a list in their order, or name → index (or indices).

    Raises Malformed, and ValueError for indices that are skipped.
    """
    text = decode_text(data, f"{name!r}")
    if text.lstrip().startswith(("{", "[")):
        try:
            value: JsonValue = json.loads(text)
        except ValueError as error:
            raise Malformed(f"{name!r} is not JSON: {error}") from error
        return names_in_order(value)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _without_indices(lines) or [*lines]


def read_label_map(data: bytes, name: str) -> dict[str, str]:
    """A label map in a file: a JSON object, or `label = class`, `label,class` or `n01440764 tench` on each line.

    Raises Malformed, and ValueError for a line that is no pair.
    """
    text = decode_text(data, f"{name!r}")
    if text.lstrip().startswith("{"):
        try:
            return TypeAdapter(dict[str, str]).validate_json(text)
        except ValidationError as error:
            raise ValueError(f"{name!r}: a label map in JSON has a class for each label, both texts") from error
    pairs = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _PAIR.fullmatch(line)
        if match is None:
            raise ValueError(f"{name!r}: {line[:80]!r} is not `label = class`")
        pairs[match[1] or match[3]] = match[2] or match[4]
    return pairs


def _without_indices(lines: Sequence[str]) -> list[JsonValue] | None:
    """The names of lines that each have the index of their name, 0, 1, 2 … in order; None for other lines."""
    names: list[JsonValue] = []
    for position, line in enumerate(lines):
        match = _NUMBERED.fullmatch(line)
        index, name = (None, "") if match is None else (match[1] or match[4], match[2] or match[3])
        if index is None or int(index) != position:
            return None
        names.append(name)
    return names


def normal_form(name: str) -> str:
    """A name as names are compared: in NFC, because macOS writes files and folders in NFD."""
    return unicodedata.normalize("NFC", name)


def names_of_labels(labels: Collection[str], lists: Sequence[Sequence[str]]) -> tuple[dict[str, str], str]:
    """The class that each label means, and words on how it was found ("" if labels are names of classes).

    A label may be a class's name in another normal form. Else all labels must be ids of ImageNet's classes and the
    lists those 1,000 in their order, or indices of the classes, 0 among them. A label that means different classes in
    different lists, or none, is left as it is.
    """
    by_form = {normal_form(name): name for names in reversed(lists) for name in names}
    found = {label: by_form.get(normal_form(label), label) for label in labels}
    known = set(by_form.values())
    if not lists or not labels or any(name in known for name in found.values()):
        return found, ""
    if all(label in imagenet_positions() for label in labels) and all(map(_is_imagenet, lists)):
        positions = {label: imagenet_positions()[label] for label in labels}
        how = "; ImageNet's ids stand for the classes in ImageNet's order"
    elif "0" in labels and all(map(_NUMBER.fullmatch, labels)):
        positions = {label: int(label) for label in labels}
        how = "; numbers stand for the classes in their order, from 0 on"
    else:
        return found, ""
    if any(len({_at(names, at) for names in lists}) > 1 for at in positions.values()):
        return found, ""
    by_position = {label: _at(lists[0], at) for label, at in positions.items()}
    return {label: name if name is not None else label for label, name in by_position.items()}, how


def _at(names: Sequence[str], position: int) -> str | None:
    return names[position] if position < len(names) else None


@cache
def imagenet_positions() -> Mapping[str, int]:
    """The index of each id of ImageNet's 1,000 classes, such as n01440764."""
    ids: list[str] = json.loads(Path(__file__).with_name("imagenet_ids.json").read_bytes())
    return {name: position for position, name in enumerate(ids)}


def _is_imagenet(names: Sequence[str]) -> bool:
    """Whether these are ImageNet's 1,000 classes in their order: by some of their names, or without names at all."""
    if len(names) != len(imagenet_positions()):
        return False
    unnamed = all(names[at].lower().strip("abcdefghijklmnopqrstuvwxyz_ -") == str(at) for at in _LANDMARKS)
    return unnamed or all(word in names[at].lower().replace("_", " ") for at, word in _LANDMARKS.items())
