"""The report as one self-contained HTML page. It embeds styles, script and pictures and needs no network."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from PIL import Image

from gateway.report.overlays import paint_png
from gateway.report.pictures import PictureSelection
from gateway.report.words import FILTERS, GLOBALS
from shared.schemas.result_rows import CounterfactualView
from shared.schemas.results import JobResults

TEMPLATES = Path(__file__).parent / "templates"
ASSETS = Path(__file__).parent / "assets"
LONGEST_SIDE = 256  # of an embedded picture, in pixels


def environment(*more_templates: Path) -> Environment:
    """Jinja with the report's templates and filters, and with further template directories for the web pages."""
    jinja = Environment(
        loader=FileSystemLoader([*more_templates, TEMPLATES]),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters.update(FILTERS)
    jinja.globals.update(GLOBALS)
    return jinja


def report_page(
    results: JobResults,
    selection: PictureSelection,
    views: Mapping[str, CounterfactualView],
    load: Callable[[str], bytes],
    colours: Sequence[tuple[int, int, int]] = (),
) -> str:
    """The page. `views` maps ids of counterfactuals; `load` returns the PNG bytes of an image's digest.

    `colours`: one per class of a segmentation job, in the order of its classes.
    """
    embedded: dict[str, str] = {}

    def picture(digest: str) -> str:
        if digest not in embedded:
            embedded[digest] = data_uri(load(digest))
        return embedded[digest]

    def overlay(image: str, label_map: str) -> str:
        name = f"{image}/{label_map}"
        if name not in embedded:
            embedded[name] = data_uri(paint_png(load(image), load(label_map), colours))
        return embedded[name]

    style = (ASSETS / "contrafact.css").read_text(encoding="utf-8")
    script = (ASSETS / "pairs.js").read_text(encoding="utf-8")
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment().get_template("report.html")
    return page.render(
        results=results,
        selection=selection,
        views=views,
        picture=picture,
        overlay=overlay,
        cell_link=None,
        pair_link=None,
        style=style,
        script=script,
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'",
    )


def data_uri(png: bytes) -> str:
    """A PNG of any size as a WebP in a data URI, with at most 256 pixels on the longest side."""
    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        small = image.convert("RGB")
    small.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=88, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
