"""Renders templates as pages that load nothing from other hosts and are not cached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse

from gateway.report.page import environment
from gateway.suites.wording import release_name
from shared.stages import STAGES, stage_words

FOLDER = Path(__file__).parent
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)

_jinja = environment(FOLDER / "templates")
_jinja.globals["STAGES"] = STAGES
_jinja.filters |= {"stage_words": stage_words, "release": release_name}


def render(template: str, status: int = 200, job_id: str = "", **values: Any) -> HTMLResponse:
    """The page of a template with these values. Overlays on the page belong to the job `job_id`."""
    overlay = f"/jobs/{job_id}/overlays/{{}}/{{}}"
    addresses = {
        "picture": "/images/{}".format,
        "thumbnail": "/thumbnails/{}".format,
        "overlay": overlay.format,
        "small_overlay": f"{overlay}?small=true".format,
    }
    body = _jinja.get_template(template).render(**addresses, **values)
    return HTMLResponse(body, status, {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})
