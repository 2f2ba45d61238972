"""The places of the gateway (its packages and root modules), drawn in their layers: an SVG, and the same as a table.

Imports are read from the code, layers from `.importlinter`. An arrow is an import; an import that a longer way of
arrows implies has no arrow, and stands in the table only. A long arrow bends around the places between its ends: each
layer that it crosses keeps a free point for it.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import grimp

ROOT = Path(__file__).parents[1]
CONTRACT = "importlinter:contract:gateway"
ROW, BOX, LETTER, PADDING, GAP, POINT = 62, 30, 7.6, 22, 16, 8  # pixels
SWEEPS, TO_THE_MIDDLE = 24, 0.85
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b1f24;text-anchor:middle}"
    "rect.place{fill:#fff;stroke:#3f5873;stroke-width:1.2}rect.page{fill:#f6f8fa}"
    "path{fill:none;stroke:#7a8ea5;stroke-width:1.1}"
)

Places = list[list[str]]  # names of each layer, the highest first
Imports = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Point:
    """A place, or a free point of an arrow (`arrow`), in one layer."""

    layer: int
    name: str
    arrow: tuple[str, str] | None = None

    @property
    def width(self) -> float:
        """In pixels."""
        return POINT if self.arrow else LETTER * len(self.name) + PADDING


def layers() -> Places:
    """The layers that `make lint` enforces."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter", encoding="utf-8")
    lines = contracts[CONTRACT]["layers"].strip().splitlines()
    return [[name.strip() for name in line.split("|")] for line in lines]


def imports() -> Imports:
    """What each place imports, other than itself."""
    graph = grimp.build_graph("gateway", cache_dir=None)
    places = [f"gateway.{name}" for layer in layers() for name in layer]
    return {
        importer.removeprefix("gateway."): [
            imported.removeprefix("gateway.")
            for imported in places
            if imported != importer
            and graph.direct_import_exists(importer=importer, imported=imported, as_packages=True)
        ]
        for importer in places
    }


def arrows(imported: Imports) -> list[tuple[str, str]]:
    """The imports that no longer way of imports implies."""

    def reached(place: str) -> set[str]:
        return {place}.union(*map(reached, imported[place]))

    return [
        (place, other)
        for place, others in imported.items()
        for other in others
        if not any(other in reached(between) for between in others if between != other)
    ]


def places_svg() -> str:
    """The drawing."""
    imported, rows = imports(), layers()
    drawn = arrows(imported)
    chains = _chains(rows, drawn)
    at = _positions(rows, chains)
    left = min(x - point.width / 2 for point, x in at.items()) - GAP
    width = max(x + point.width / 2 for point, x in at.items()) + GAP - left
    height = ROW * len(rows) + GAP
    title = f"{len(imported)} places of the gateway, {sum(map(len, imported.values()))} imports between them"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
        f"<title>{title}</title><style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M1 1 7 4 1 7"/></marker></defs>',
        f'<rect class="page" width="{width:.0f}" height="{height}" rx="8"/>',
    ]
    parts += [_curve([(at[point] - left, _top(point.layer)) for point in chain]) for chain in chains]
    parts += [_box(point, x - left) for point, x in at.items() if not point.arrow]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _top(layer: int) -> float:
    return GAP + layer * ROW


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """An arrow from the lower edge of its first place, through its free points, to the upper edge of its last."""
    ends = [(points[0][0], points[0][1] + BOX), *((x, y + BOX / 2) for x, y in points[1:-1]), points[-1]]
    path = f"M{ends[0][0]:.0f} {ends[0][1]:.0f}"
    for (x, y), (to_x, to_y) in pairwise(ends):
        middle = (y + to_y) / 2
        path += f" C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}"
    return f'<path d="{path}" marker-end="url(#tip)"/>'


def _box(point: Point, x: float) -> str:
    y = _top(point.layer)
    rectangle = f'<rect class="place" x="{x - point.width / 2:.0f}" y="{y}" width="{point.width:.0f}" height="{BOX}"'
    return f'{rectangle} rx="5"/><text x="{x:.0f}" y="{y + BOX / 2 + 4.5}">{escape(point.name)}</text>'


def _chains(rows: Places, drawn: Sequence[tuple[str, str]]) -> list[list[Point]]:
    """Each arrow as a place, free points in the layers between, and a place."""
    layer_of = {name: layer for layer, names in enumerate(rows) for name in names}
    chains = []
    for start, end in drawn:
        between = [Point(layer, "", (start, end)) for layer in range(layer_of[start] + 1, layer_of[end])]
        chains.append([Point(layer_of[start], start), *between, Point(layer_of[end], end)])
    return chains


def _positions(rows: Places, chains: Sequence[Sequence[Point]]) -> dict[Point, float]:
    """The middle of each point: near the mean of its neighbours, without overlaps in a layer."""
    points = [[Point(layer, name) for name in names] for layer, names in enumerate(rows)]
    neighbours: dict[Point, list[Point]] = {point: [] for row in points for point in row}
    for chain in chains:
        for point in chain[1:-1]:
            points[point.layer].append(point)
            neighbours[point] = []
        for upper, lower in pairwise(chain):
            neighbours[upper].append(lower)
            neighbours[lower].append(upper)
    at = {point: 0.0 for row in points for point in row}
    for row in points:
        at |= _apart(row, {point: 100.0 * place for place, point in enumerate(row)})
    for sweep in range(SWEEPS):
        for row in points if sweep % 2 else reversed(points):
            targets = {point: [at[other] for other in neighbours[point]] or [at[point]] for point in row}
            at |= _apart(row, {point: TO_THE_MIDDLE * fmean(positions) for point, positions in targets.items()})
    return at


def _apart(row: Sequence[Point], targets: Mapping[Point, float]) -> dict[Point, float]:
    """The target positions of a layer in their order, moved apart until none overlap, to both sides equally."""
    order = sorted(row, key=lambda point: targets[point])
    left, right = dict(targets), dict(targets)
    for point, following in pairwise(order):
        left[following] = max(left[following], left[point] + (point.width + following.width) / 2 + GAP)
    for point, before in pairwise(reversed(order)):
        right[before] = min(right[before], right[point] - (point.width + before.width) / 2 - GAP)
    return {point: (left[point] + right[point]) / 2 for point in order}


def places_table() -> str:
    """The same as a table: each place with what it is for, and its imports."""
    imported = imports()
    users = {name: sum(name in others for others in imported.values()) for name in imported}
    count = sum(map(len, imported.values()))
    head = [
        f"{len(imported)} places in {len(layers())} layers, {count} imports between them, {len(arrows(imported))} of "
        "which are arrows.\n",
        "| layer | place | what it is for | imports | imported by |",
        "|---|---|---|---|---|",
    ]
    lines = []
    for number, names in enumerate(layers(), start=1):
        for name in names:
            about = (import_module(f"gateway.{name}").__doc__ or "").strip().splitlines()[0]
            others = ", ".join(f"`{other}`" for other in imported[name]) or "–"
            lines.append(f"| {number} | `{name}` | {about} | {others} | {users[name]} |")
    return "\n".join([*head, *lines]) + "\n"
