"""Manifests of two files, `1.png` and `2.png`, that cannot be meant, and the refusal that each gets."""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Manifest:
    """A manifest that is answered with `status`, in a sentence that contains `words`."""

    name: str
    data: bytes
    status: int
    words: str


def _csv(*rows: str) -> bytes:
    return "\n".join(("file,label", *rows)).encode()


def _lines(*rows: object) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode()


GOOD = '{"file": "2.png"}'

MANIFESTS = [
    Manifest("empty", b"", 422, "it must be 'file,label'"),
    Manifest("a byte order mark", codecs.BOM_UTF8, 422, "it must be 'file,label'"),
    Manifest("header only", b"file,label", 422, "no rows"),
    Manifest("half a character of UTF-16", codecs.BOM_UTF16_LE + b"f", 400, "UTF-8"),
    Manifest("Latin-1", "file,label\n1.png,Krämer".encode("latin-1"), 400, "UTF-8"),
    Manifest("a picture", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), 400, "UTF-8"),
    Manifest("NUL", _csv("1.png,car\0", "2.png,bus"), 422, "U+0000"),
    Manifest("NUL in JSON", b'{"file": "1.png\\u0000"}', 422, "U+0000"),
    Manifest("a file that was not sent", _csv("1.png,car", "2.png,bus", "3.png,car"), 422, "not sent: '3.png'"),
    Manifest("a path outside", _csv("1.png,car", "2.png,bus", "../../etc/passwd,car"), 422, "not sent: '../../etc"),
    Manifest("a file without a row", _csv("1.png,car"), 422, "no row for '2.png'"),
    Manifest("a file twice", _csv("1.png,car", "1.png,bus"), 422, "names '1.png' again"),
    Manifest("another header", b"picture,class\n1.png,car", 422, "it must be 'file,label'"),
    Manifest("a header twice", b"file,file\n1.png,car", 422, "it must be 'file,label'"),
    Manifest("one column too many", _csv("1.png,car,red", "2.png,bus"), 422, "line 2 of the manifest has 3 columns"),
    Manifest("an open quote", _csv('1.png,"car', "2.png,bus"), 400, "not CSV"),
    Manifest("a cell of 200 kB", _csv("1.png," + "x" * 200_000, "2.png,bus"), 400, "not CSV"),
    Manifest("a label of 201 characters", _csv("1.png," + "x" * 201, "2.png,bus"), 422, "line 2 of the manifest"),
    Manifest("a label on two lines", _csv('1.png,"car\nClass: bus"', "2.png,bus"), 422, "control character U+000A"),
    Manifest("a label turned around", _csv("1.png,car\u202e", "2.png,bus"), 422, "control character U+202E"),
    Manifest("a formula", _csv("1.png,=HYPERLINK(0)", "2.png,bus"), 422, "does not know the labels '=HYPERLINK(0)'"),
    Manifest("a command", _csv("1.png,@SUM(1)|cmd", "2.png,bus"), 422, "does not know the labels '@SUM(1)|cmd'"),
    Manifest("an unknown label", _csv("1.png,spaceship", "2.png,bus"), 422, "does not know the labels 'spaceship'"),
    Manifest("a list of JSON", b'[{"file": "1.png"}]', 422, "it must be 'file,label'"),
    Manifest("JSON of another shape", _lines({"file": "1.png", "class": "car"}), 422, "unknown field class"),
    Manifest("JSON with a number", _lines({"file": 1}), 422, "line 1 of the manifest: file"),
    Manifest("JSON with an object", _lines({"file": "1.png", "label": {"$ne": None}}), 422, "label"),
    Manifest("JSON with NaN", b'{"file": NaN}', 422, "line 1 of the manifest"),
    Manifest("JSON cut off", b'{"file": "1.png"}\n{"file"', 422, "line 2 of the manifest"),
    Manifest("JSON of half a character", b'{"file": "\\ud800"}', 422, "line 1 of the manifest"),
    Manifest("JSON 100,000 deep", b'{"file": ' + b"[" * 100_000, 422, "line 1 of the manifest"),
    Manifest("JSON with a huge number", b'{"file": ' + b"9" * 100_000 + b"}", 422, "line 1 of the manifest"),
    Manifest("50,000 files that were not sent", _csv(*(f"{i}.png,car" for i in range(50_000))), 422, "more; send them"),
    Manifest("33 MB", _csv("1.png,car") + b"\n" * 33 * 1024**2, 413, "larger than 33,554,432 bytes"),
]
