"""Effects over a finished scene: the style of the image, then rain or snow drawn in that style."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from tinyworld.drawing.canvas import Draws, Floats, Image

REACH = {"photo": 0, "painting": 5, "sketch": 4}  # pixels (of 128) from which a filter below gathers
_PAPER = np.array([244, 240, 230], np.float32)
_LIFT = (255 * (np.arange(256) / 255) ** 0.56).astype(np.uint8)  # pencils do not get as dark as night
_PENCIL = np.array([58, 56, 62], np.float32)


def wave(picture: Image, strokes: Draws) -> Image:
    """Shift rows and columns in waves, as a painter's hand would; used on masks as well as on pictures."""
    side = picture.shape[0]
    t = np.arange(side, dtype=np.float32)
    turn = 2 * np.pi / side
    a, b, c, d = (float(s) * 2 * np.pi for s in strokes[:4])
    reach = side * 0.0125
    dx = reach * (np.sin(turn * 3 * t + a) + 0.45 * np.sin(turn * 8 * t + b))
    dy = reach * (np.sin(turn * 3 * t + c) + 0.45 * np.sin(turn * 7 * t + d))
    map_x = (t[None, :] + dx[:, None]).astype(np.float32)
    map_y = (t[:, None] + dy[None, :]).astype(np.float32)
    return np.asarray(cv2.remap(picture, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE), np.uint8)


@lru_cache(maxsize=4)
def _bristles(side: int) -> Floats:
    """Streaks of a broad brush, twice the image's size, around 0."""
    noise = np.random.default_rng(7).standard_normal((2 * side, 2 * side)).astype(np.float32)
    streaks = cv2.GaussianBlur(noise, (0, 0), sigmaX=side * 0.05, sigmaY=side * 0.008)
    return np.asarray(streaks / streaks.std(), np.float32)


def paint(picture: Image, strokes: Draws) -> Image:
    """Bold colours in wavy, brushed patches."""
    return brushed(wave(picture, strokes), strokes)


def brushed(picture: Image, strokes: Draws) -> Image:
    """Bold colours in brushed patches, everything where it was."""
    height, width = picture.shape[:2]
    side = max(height, width)
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (3, 3))
    patches = cv2.morphologyEx(cv2.medianBlur(picture, 3), cv2.MORPH_CLOSE, kernel).astype(np.float32)
    grey = patches.mean(axis=2, keepdims=True)
    oy, ox = (int(s * side) for s in strokes[4:6])
    brush = _bristles(side)[oy : oy + height, ox : ox + width, None]
    bold = 128 + (grey + (patches - grey) * 1.5 - 128) * 1.06 + 8 * brush
    return np.asarray(np.clip(bold, 0, 255), np.uint8)


def pencil(picture: Image, strokes: Draws) -> Image:
    """Pencil lines on paper over a faint wash of the colours; the hatching begins where the strokes say."""
    height, width = picture.shape[:2]
    square = np.ones((2, 2), np.uint8)
    steps = cv2.morphologyEx(picture, cv2.MORPH_GRADIENT, square).max(axis=2).astype(np.float32)
    line = np.clip((cv2.GaussianBlur(steps, (3, 3), 0.5) - 12) / 60, 0, 1)[..., None]
    t = np.arange(max(height, width), dtype=np.float32)
    slant = t[None, :width] + t[:height, None]
    hatching = 0.5 + 0.5 * np.sin(slant * (2 * np.pi / 6) + 6.28 * float(strokes[6]))
    pale = _LIFT[picture].astype(np.float32)
    dark = 1 - pale.mean(axis=2, keepdims=True) / 255
    wash = pale * 0.66 + _PAPER * 0.34 - 30 * dark * hatching[..., None]
    return np.asarray(np.clip(wash + (_PENCIL - wash) * 0.9 * line, 0, 255), np.uint8)


def precipitation(picture: Image, weather: str, style: str, night: bool, drops: Draws) -> Image:
    """Rain or snow in front of everything, in the image's style; its density scales with the image's width."""
    height, width = picture.shape[:2]
    side = height * 2
    mask = np.zeros((side, 2 * width), np.uint8)
    falling = np.concatenate([drops + np.array((shift, 0, 0)) for shift in range(-(-width // height))])
    if weather == "rain":
        _streaks(mask, falling, side)
        ink, strength = ((88, 92, 104), 0.75) if style == "sketch" else ((206, 220, 236), 0.42 if night else 0.55)
    else:
        for x, y, size in falling:
            cv2.circle(mask, (int(x * side), int(y * side)), round((0.0085 + 0.007 * size) * side), (255,), -1)
        ink, strength = (255, 255, 255), 0.92
    over = cv2.resize(mask, (width, height), interpolation=cv2.INTER_AREA).astype(np.float32)[..., None] / 255
    base = picture.astype(np.float32)
    if weather == "snow" and style == "sketch":
        rim = cv2.dilate(over, np.ones((3, 3), np.uint8))[..., None]
        base += (_PENCIL - base) * 0.5 * rim
    return np.asarray(np.clip(base + (np.array(ink, np.float32) - base) * (strength * over), 0, 255), np.uint8)


def _streaks(mask: Image, drops: Draws, side: int) -> None:
    for x, y, size in drops:
        length = (0.06 + 0.05 * size) * side
        start = (int(x * side), int(y * side))
        cv2.line(mask, start, (int(start[0] - length * 0.35), int(start[1] + length)), (255,), 2, cv2.LINE_AA)
