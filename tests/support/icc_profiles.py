"""Colour profiles (ICC 2.4) by hand: for RGB by its primaries, for grey by a curve, for CMYK by a table of inks."""

from __future__ import annotations

import itertools
import struct

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

# Red, green and blue in XYZ, adapted to D50 (the white of profiles).
SRGB = ((0.43607, 0.22249, 0.01392), (0.38515, 0.71687, 0.09708), (0.14307, 0.06061, 0.71410))
DISPLAY_P3 = ((0.51512, 0.24120, -0.00105), (0.29198, 0.69225, 0.04189), (0.15710, 0.06657, 0.78407))
D50 = (0.9642, 1.0, 0.8249)
CYAN, MAGENTA, YELLOW = (0, 158, 224), (226, 0, 122), (255, 237, 0)  # inks of a press in sRGB
Levels = NDArray[np.float64]


def decoded(levels: Levels) -> Levels:
    """sRGB's curve: linear light of levels 0 … 1."""
    return np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)


def encoded(light: Levels) -> Levels:
    """The inverse of `decoded`, for light beyond 0 … 1 its nearest level."""
    light = light.clip(0, 1)
    return np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)


def rgb_profile(primaries: tuple[tuple[float, ...], ...], description: str = "by hand") -> bytes:
    """A profile for RGB with these primaries and sRGB's curve."""
    red, green, blue = map(_xyz, primaries)
    curve = _curve(decoded(np.linspace(0, 1, 1024)))
    tags = {b"rXYZ": red, b"gXYZ": green, b"bXYZ": blue, b"rTRC": curve, b"gTRC": curve, b"bTRC": curve}
    return _profile(b"mntr", b"RGB ", b"XYZ ", tags, description)


def grey_profile(gamma: float) -> bytes:
    """A profile for grey whose light is level to the power of `gamma`."""
    return _profile(b"mntr", b"GRAY", b"XYZ ", {b"kTRC": _curve(np.linspace(0, 1, 1024) ** gamma)}, "grey by hand")


def cmyk_profile() -> bytes:
    """A profile for CMYK: a table of two grid points an ink, in which inks filter white one after another."""
    inks = np.array([CYAN, MAGENTA, YELLOW, (0, 0, 0)]) / 255
    nodes = [np.prod(np.where(np.array(node)[:, None], inks, 1.0), 0) for node in itertools.product((0, 1), repeat=4)]
    colours = Image.fromarray(np.round(np.array(nodes)[None] * 255).astype(np.uint8))
    srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    values = ImageCms.applyTransform(colours, ImageCms.buildTransform(srgb, lab, "RGB", "LAB"))
    assert values is not None
    table = (np.asarray(values).astype(np.int8) + np.array((0, 128, 128))).astype(np.uint8)  # Pillow has a, b signed
    table[..., 0] = np.asarray(values)[..., 0]
    straight = bytes(range(256))
    matrix = struct.pack(">9i", *(65536 * (row == column) for row in range(3) for column in range(3)))
    lut = b"mft1" + bytes(4) + bytes((4, 3, 2, 0)) + matrix + straight * 4 + table.tobytes() + straight * 3
    return _profile(b"prtr", b"CMYK", b"Lab ", {b"A2B0": lut}, "CMYK by hand")


def _profile(kind: bytes, space: bytes, connection: bytes, tags: dict[bytes, bytes], description: str) -> bytes:
    text = description.encode() + b"\0"
    names = struct.pack(">I", len(text)) + text + bytes(4 + 4 + 2 + 1 + 67)
    contents = tags | {b"wtpt": _xyz(D50), b"cprt": b"text" + bytes(4) + b"none\0", b"desc": b"desc" + bytes(4) + names}
    table, body = struct.pack(">I", len(contents)), b""
    start = 128 + 4 + 12 * len(contents)
    for name, content in contents.items():
        table += struct.pack(">4sII", name, start + len(body), len(content))
        body += content + bytes(-len(content) % 4)
    size = 128 + len(table) + len(body)
    head = struct.pack(">I4sI4s4s4s", size, bytes(4), 0x02400000, kind, space, connection)
    head += struct.pack(">6H", 2026, 1, 1, 0, 0, 0) + b"acsp" + bytes(28)
    head += struct.pack(">3i", *(round(value * 65536) for value in D50))
    return head.ljust(128, b"\0") + table + body


def _xyz(values: tuple[float, ...]) -> bytes:
    return b"XYZ " + bytes(4) + struct.pack(">3i", *(round(value * 65536) for value in values))


def _curve(values: Levels) -> bytes:
    steps = np.round(values * 65535).astype(">u2")
    return b"curv" + bytes(4) + struct.pack(">I", len(steps)) + steps.tobytes()
