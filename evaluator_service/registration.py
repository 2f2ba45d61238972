"""Registration: by which zoom and shift an editor moved a picture, estimated from the directions of its edges.

The source is zoomed by each step of a grid. Its field of edge directions (doubled angles, so that dark on bright equals
bright on dark; lengths evened out locally, so that night and fog change little) is then correlated with that of the
image at every shift, without the margins into which a move brings what the source does not show. A picture counts as
moved only if it then fits clearly better than where it was. Turns and bends are not looked for.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from shared.media.images import Pixels
from shared.media.moves import shown
from shared.schemas.evaluation import Move

MOST = 0.10  # zoom, and shift in shares of a side, that are looked for
GAIN = 0.03  # by which the correlation of a moved picture exceeds that of the unmoved one
CHANCE = 15.0  # correlation by chance is below this, divided by the root of the number of correlated pixels
LEAST_MOVE = 0.005  # of a border of the picture, in shares of its side; generators shift by fractions of a pixel
_FINE, _COARSE = 0.0025, 4  # steps of the zoom; the first pass tries every fourth
_SIDE = 256  # larger pictures are reduced to it
_LEAST_SIDE = 16  # without the margins; smaller pictures are not judged
_BLUR, _LOCAL = 1.0, 17  # pixels: deviation of the blur before edges are taken, side over which lengths are evened out
_FAINT = 0.5  # grey levels² a pixel, to which edges are noise

Grey = NDArray[np.float32]  # height × width
Field = NDArray[np.float32]  # height × width × 2


class Fit(NamedTuple):
    """The zoom and shift (pixels of the image) of the highest `correlation`; what it is `unmoved`, and by `chance`."""

    zoom: float
    right: float
    down: float
    correlation: float
    unmoved: float
    chance: float


def find_move(source: Pixels, image: Pixels) -> Move | None:
    """The move of an image against its source (height × width × 3 of equal size); None if it is where it was."""
    fit = best_fit(source, image)
    if fit.correlation < max(fit.chance, fit.unmoved + GAIN):
        return None
    height, width = source.shape[:2]
    of_zoom = abs(fit.zoom - 1) / 2
    if max(of_zoom + abs(fit.right) / width, of_zoom + abs(fit.down) / height) < LEAST_MOVE:
        return None
    move = Move(zoom=fit.zoom, right=fit.right, down=fit.down, shown=0)
    return move.model_copy(update={"shown": shown(move, width, height)})


def best_fit(source: Pixels, image: Pixels) -> Fit:
    """Where the image fits its source best, moved or not. Raises ValueError if the sizes differ."""
    if source.shape != image.shape:
        raise ValueError("source and image must have the same size; send the image as it came from the editor")
    before, after = _reduced(source), _directions(_reduced(image))
    margins = tuple(max(2, round(MOST * side)) for side in before.shape)
    inner = [side - 2 * margin for side, margin in zip(before.shape, margins, strict=True)]
    if min(inner) < _LEAST_SIDE:
        return Fit(1.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    maps: dict[int, Grey] = {}

    def correlations(steps: int) -> Grey:
        if steps not in maps:
            maps[steps] = _correlations(before, after, 1 + steps * _FINE, margins)
        return maps[steps]

    def highest(steps: int) -> float:
        return float(correlations(steps).max())

    most = round(MOST / _FINE)
    best = max(range(-most, most + 1, _COARSE), key=highest)
    for step in (_COARSE // 2, _COARSE // 4):
        best = max((best - step, best, best + step), key=highest)
    scores = correlations(best)
    _, correlation, _, (x, y) = cv2.minMaxLoc(scores)
    zoom = best + _vertex(*(highest(best + step) for step in (-1, 0, 1)))
    scale = max(source.shape[:2]) / max(before.shape)
    return Fit(
        1 + zoom * _FINE,
        scale * (_peak(scores[y], x) - margins[1]),
        scale * (_peak(scores[:, x], y) - margins[0]),
        correlation,
        float(correlations(0)[margins]),
        CHANCE / (inner[0] * inner[1]) ** 0.5,
    )


def _reduced(image: Pixels) -> Grey:
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
    factor = min(1.0, _SIDE / max(grey.shape))
    if factor < 1:
        grey = cv2.resize(grey, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
    return np.asarray(grey, np.float32)


def _directions(grey: Grey) -> Field:
    smooth = cv2.GaussianBlur(grey, (0, 0), _BLUR)
    x, y = (np.asarray(cv2.Scharr(smooth, cv2.CV_32F, *order)) / 32 for order in ((1, 0), (0, 1)))
    power = x * x + y * y
    length = power + cv2.boxFilter(power, -1, (_LOCAL, _LOCAL)) + _FAINT
    return np.asarray(np.dstack([(x * x - y * y) / length, 2 * x * y / length]), np.float32)


def _correlations(before: Grey, after: Field, zoom: float, margins: tuple[int, ...]) -> Grey:
    """The correlation, −1 to 1, at every shift up to the margins (down × right)."""
    (height, width), (down, right) = before.shape, margins
    matrix = np.array([[zoom, 0, (1 - zoom) * (width - 1) / 2], [0, zoom, (1 - zoom) * (height - 1) / 2]])
    zoomed = cv2.warpAffine(before, matrix, (width, height), borderMode=cv2.BORDER_REFLECT)
    inner = _directions(np.asarray(zoomed, np.float32))[down : height - down, right : width - right]
    found = cv2.matchTemplate(after, np.ascontiguousarray(inner), cv2.TM_CCOEFF_NORMED)
    return np.asarray(found, np.float32)


def _peak(line: Grey, place: int) -> float:
    """The place of a peak between pixels."""
    return place + (_vertex(*line[place - 1 : place + 2].tolist()) if 0 < place < len(line) - 1 else 0.0)


def _vertex(left: float, middle: float, right: float) -> float:
    """The place of the highest point of a parabola through three values at −1, 0 and 1, at most half a step away."""
    bend = left - 2 * middle + right
    return min(0.5, max(-0.5, (left - right) / (2 * bend))) if bend < 0 else 0.0
