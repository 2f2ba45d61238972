"""Renders templates as pages that load nothing from other hosts and are not cached.

The state of a page as query parameters, so that a view can be shared as a link.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi.responses import HTMLResponse

from gateway.kinds import of_metric
from gateway.report.page import environment
from gateway.suites.suites import release_name
from shared.schemas.base import Contract
from shared.schemas.effects import Cell
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import ModelResults
from shared.words.stages import STAGES, stage_words

Value = str | list[str]  # of a query parameter; a list repeats it
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
        "small_overlay": lambda image, label_map: (
            f"/thumbnails/{image}" if label_map is None else f"{overlay.format(image, label_map)}?small=true"
        ),
    }
    body = _jinja.get_template(template).render(**addresses, **values)
    return HTMLResponse(body, status, {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})


def parameters_of(state: Contract) -> dict[str, Value]:
    """The state as query parameters, without the page that it is at."""
    values = state.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"cursor"})
    return {name: _text(value) for name, value in values.items()}


def address_of(path: str, state: Contract, **changes: Value | None) -> str:
    """`path` with this state and `changes` to it; None removes a parameter. Starts at the first page."""
    parameters = {name: value for name, value in {**parameters_of(state), **changes}.items() if value is not None}
    return f"{path}?{urlencode(parameters, doseq=True)}" if parameters else path


def cell_parameters(cell: Cell | None) -> dict[str, Value | None]:
    """A cell as changes to a state's parameters; None removes the cell."""
    if cell is None:
        return {"class": None, "factor": None, "value": None, "from": None}
    to = cell.direction == "to"
    values = {"value": cell.value if to else None, "from": None if to else cell.value}
    return {"class": cell.label or None, "factor": cell.factor, **values}


def gallery(job: str, **filters: Value | None) -> str:
    """The address of the job's images with these filters; None is left out."""
    chosen = {name: value for name, value in filters.items() if value is not None}
    return f"/jobs/{job}/gallery?{urlencode(chosen, doseq=True)}"


def images_of_cell(job: str, figures: ModelResults, cell: Cell, **filters: Value | None) -> str:
    """The address of the images that the effect of a cell comes from, with further `filters`."""
    change = cell_parameters(cell) | {"class": None} | class_filter(figures, cell.label)
    return gallery(job, model=figures.model, method=figures.method, verdict="counted", **change, **filters)


def class_filter(figures: ModelResults, label: str) -> dict[str, Value | None]:
    """The filter of a class of the reference: the ground truth, or without one what is predicted on the source."""
    if label == ALL_CLASSES or (figures.relation != "labelled" and not of_metric(figures.metric).one_class):
        return {"scored": label}
    return {"class" if figures.relation == "labelled" else "predicted_original": label}


def _text(value: object) -> Value:
    if isinstance(value, list):
        return [str(each) for each in value]
    return str(value).lower() if isinstance(value, bool) else str(value)
