"""The report as one self-contained HTML page. It embeds styles, script, pictures and its data, and needs no network."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from gateway import kinds
from gateway.report.advice import next_steps, not_tested, tested_sentence
from gateway.report.thumbnails import EmbeddedPictures
from gateway.report.words import FILTERS, GLOBALS
from shared.schemas.reports import JobReport

TEMPLATES = Path(__file__).parent / "templates"
OF_KINDS = Path(kinds.__file__).parent / "templates"
ASSETS = Path(__file__).parent / "assets"
HERO_SIDE = 512  # pixels, of the pictures of verdicts
DATA_BEGIN, DATA_END = '<script type="application/gzip;base64" id="data">', "</script>"


@cache
def environment(*more_templates: Path) -> Environment:
    """Jinja with the report's templates and filters, and with further template directories for the web pages."""
    jinja = Environment(
        loader=FileSystemLoader([*more_templates, TEMPLATES, OF_KINDS]),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters.update(FILTERS)
    jinja.globals.update(GLOBALS)
    return jinja


def report_page(
    report: JobReport,
    load: Callable[[str], bytes],
    colours: Sequence[tuple[int, int, int]] = (),
    packets: Mapping[str, bytes] | None = None,
    test_set: Sequence[str] = (),
    date: datetime | None = None,
) -> str:
    """The page. `load` returns the PNG bytes of an image's digest.

    `colours`: one per class of a segmentation job, in the order of its classes. `packets`: the XMP of generated images
    by digest (`gateway.results.provenance`). `test_set`: lines on what was used, what was left out and why, and where
    labels come from. `date`: when the job was submitted.
    """
    pictures = EmbeddedPictures(load, colours, packets or {})
    style = (ASSETS / "contrafact.css").read_text(encoding="utf-8")
    script = (ASSETS / "pairs.js").read_text(encoding="utf-8")
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment().get_template("report.html")
    return page.render(
        results=report.results,
        selection=report.pictures,
        views={view.id: view for view in report.counterfactuals},
        tested=tested_sentence(report.results),
        test_set=test_set,
        date=date,
        next_steps=next_steps(report.results),
        untested=not_tested(report.results),
        data=f"{DATA_BEGIN}{_packed(report)}{DATA_END}",
        thumbnail=pictures.picture,
        large=partial(pictures.picture, side=HERO_SIDE),
        small_overlay=pictures.overlay,
        cell_link=None,
        pair_link=None,
        style=style,
        script=script,
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'",
    )


def _packed(report: JobReport) -> str:
    """The report's data as compressed JSON in base64: of 1,000 classes it is 12 MB otherwise."""
    return base64.b64encode(gzip.compress(report.model_dump_json(by_alias=True).encode(), 6, mtime=0)).decode()


def report_data(page: str) -> bytes | None:
    """The JSON of a stored page, a `JobReport` of the version that wrote it; None if that version embedded none."""
    _, begin, data = page.rpartition(DATA_BEGIN)
    return gzip.decompress(base64.b64decode(data.partition(DATA_END)[0])) if begin else None
