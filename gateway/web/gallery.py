"""The gallery of a job's images: filters with counts, four ways to compare a pair, all of it in the address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from gateway.api.dependencies import Cursor, Gateway, JobId, Owner
from gateway.database.sessions import reading
from gateway.database.tables import Job, Report
from gateway.jobs import jobs
from gateway.results.browsing import browse
from gateway.results.counterfactuals import Listing
from gateway.results.facets import NOT_COUNTED, Facets, JobFacets
from gateway.results.image_map import Of
from gateway.web.rendering import Value, address_of, parameters_of, render
from shared.schemas.effects import Direction
from shared.schemas.results import CounterfactualView

IMAGES_PER_PAGE = 24
MOST_VALUES = 16  # of a filter, before "more"
COUNTED_AT_ONCE = 2_000  # counterfactuals of a job; pages of larger jobs come first, and their counts afterwards

Show = Literal["pairs", "slider", "blink", "difference"]
SHOWS: dict[Show, str] = {
    "pairs": "side by side",
    "slider": "slider",
    "blink": "blink",
    "difference": "difference",
}
_NAMES = {
    "arm_check": "its null or sham arm fails",
    "confidence_below": "confidence below",
    "confidence_from": "confidence of at least",
    "predicted_null": "predicted on the null arm",
    "predicted_original": "predicted on the source",
    "scored": "in the reference",
    "unchecked": "not checked",
}
_PHRASES = {
    ("on", "counterfactual"): "on the counterfactual",
    ("on", "null"): "on the null arm",
    ("on", "original"): "on the source",
    ("rendered", "false"): "not rendered",
    ("rendered", "true"): "rendered",
}
_NO_FILTERS = ("show", "masks", "against", "of")

Arm = Literal["source", "null", "sham", "counterfactual"]

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


class GalleryState(Listing):
    """The state of gallery, map and image page: filters, order, and what is shown.

    `direction`: whether edits change to or from `value`. `show`: the way to compare. `masks`: painted over the images.
    `against`: what an image's page compares the counterfactual with. `of`: what the map places. `counts`: count the
    images of each filter, however large the job is; no address keeps it.
    """

    direction: Direction | None = None
    show: Show | None = None
    masks: bool | None = None
    against: Literal["null", "sham"] | None = None
    of: Of | None = None
    counts: bool | None = None
    cursor: Cursor = None

    def listing(self) -> Listing:
        """Only the filters and the order, with the value on the side that `direction` names."""
        fields = {name: getattr(self, name) for name in Listing.model_fields}
        if self.direction == "from" and self.value is not None:
            fields |= {"value": None, "from_value": self.value}
        return Listing.model_construct(**fields)

    def current(self) -> dict[str, Value]:
        """The state as query parameters; the value of `from` in the form of `value` and `direction`."""
        parameters = parameters_of(self)
        parameters.pop("counts", None)
        if "from" in parameters and "value" not in parameters:
            parameters |= {"value": parameters.pop("from"), "direction": "from"}
        if "value" in parameters:
            parameters.setdefault("direction", "to")
        return parameters

    def address(self, path: str, **changes: Value | None) -> str:
        """`path` with this state and `changes` to it; None removes a parameter. Starts at the first page."""
        return address_of(path, type(self).model_validate(self.current()), **changes)

    @property
    def filters(self) -> dict[str, Value]:
        """The parameters that choose images."""
        return {name: value for name, value in self.current().items() if name not in _NO_FILTERS}


@dataclass(frozen=True, slots=True)
class Choice:
    """A value of a filter: its words, how many images it leaves, its address, and whether it is chosen now.

    `names` of the parameters that it sets.
    """

    words: str
    number: int | None
    address: str
    active: bool
    names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FilterRow:
    """A filter with its choices; those after `MOST_VALUES` are folded."""

    name: str
    choices: list[Choice]
    more: list[Choice]


def _counts(request: Request) -> JobFacets:
    facets: JobFacets = request.app.state.facets
    return facets


JobCounts = Annotated[JobFacets, Depends(_counts)]


@router.get("/jobs/{job}/gallery")
def show_gallery(
    job: JobId, gateway: Gateway, owner: Owner, counts: JobCounts, state: Annotated[GalleryState, Query()]
) -> HTMLResponse:
    """A page of counterfactuals that match the filters, and how many each further filter would leave.

    Of a large job the page leaves out the counts, which take seconds; its script loads them with `counts=true`.
    """
    path, listing = f"/jobs/{job}/gallery", state.listing()
    with reading(gateway.sessions) as session:
        row = jobs.find(session, owner, job)
        page = browse(session, job, listing, state.cursor, IMAGES_PER_PAGE)
        facets = facets_of(session, counts, row, state)
        rows = filter_rows(facets, state, path, has_review_order=session.get(Report, job) is not None)
    return render(
        "gallery.html",
        job_id=job,
        job=row,
        state=state,
        path=path,
        page=page,
        total=None if facets is NOT_COUNTED else facets.total,
        counted=state.address(path, cursor=state.cursor, counts="true"),
        filter_rows=rows,
        show=state.show or "pairs",
        shows=_shows(state, path),
        has_masks=has_masks(page.views),
        previous=None if page.previous is None else state.address(path, cursor=page.previous or None),
        following=state.address(path, cursor=page.next) if page.next else None,
        pair_link=pair_link(state, job),
        picture_of=picture_address(job, state, small=True),
        difference=difference_address(job),
        models=[state.model] if state.model else row.models,
    )


def facets_of(session: Session, counts: JobFacets, job: Job, state: GalleryState) -> Facets:
    """The counts beside the filters; of a large job NOT_COUNTED, unless in memory or asked for by the state."""
    proposed = sum(number for name, number in job.counts.items() if name.endswith("/proposed"))
    if state.counts or proposed <= COUNTED_AT_ONCE:
        return counts.find(session, job, state.listing())
    return counts.cached(job, state.listing()) or NOT_COUNTED


def pair_link(state: GalleryState, job: str) -> Callable[[CounterfactualView], str]:
    """The address of a counterfactual's page under these filters."""
    return lambda view: state.address(f"/jobs/{job}/pairs/{view.id}")


def difference_address(job: str) -> Callable[[str, str], str]:
    """The address of the difference of two images."""
    return lambda image, other: f"/jobs/{job}/differences/{image}/{other}"


def picture_address(job: str, state: GalleryState, *, small: bool) -> Callable[[CounterfactualView, Arm], str]:
    """The address of an image of a counterfactual; with `masks`, the label map of its arm is painted over it."""

    def address(view: CounterfactualView, arm: Arm) -> str:
        image = {"source": view.source.image, "null": view.null_image, "sham": view.sham_image}.get(arm, view.image)
        label_map = _label_map(view, arm, state.model) if state.masks else None
        if label_map is not None:
            return f"/jobs/{job}/overlays/{image}/{label_map}" + ("?small=true" if small else "")
        return f"/{'thumbnails' if small else 'images'}/{image}"

    return address


def has_masks(views: Iterable[CounterfactualView]) -> bool:
    """Whether there is a label map to paint over some source image."""
    return any(_label_map(view, "source", None) is not None for view in views)


def _label_map(view: CounterfactualView, arm: Arm, model: str | None) -> str | None:
    """The mask of a source image; of generated images what the model (or the first) segmented, else that mask."""
    segmented = [opinion for opinion in view.predictions if model in (None, opinion.model)]
    opinion = segmented[0] if segmented else None
    if opinion is not None and not (arm == "source" and view.source.mask):
        predictions = {"source": opinion.original, "null": opinion.null_arm, "sham": opinion.sham_arm}
        prediction = predictions.get(arm, opinion.counterfactual)
        if prediction is not None and prediction.map is not None:
            return prediction.map
    return view.source.mask


def filter_rows(facets: Facets, state: GalleryState, path: str, *, has_review_order: bool) -> list[FilterRow]:
    """The filters that have something to choose, in the order of the page; of NOT_COUNTED those that are chosen."""
    chosen = state.filters

    def choice(words: str, number: int | None, **values: Value) -> Choice:
        active = all(chosen.get(name) == value for name, value in values.items())
        changes: dict[str, Value | None] = dict.fromkeys(values) if active else dict(values)
        return Choice(words, number, state.address(path, **changes), active, frozenset(values))

    def row(name: str, choices: Sequence[Choice]) -> FilterRow:
        shown = [entry for number, entry in enumerate(choices) if number < MOST_VALUES or entry.active]
        return FilterRow(name, shown, [choice for choice in choices if choice not in shown])

    verdicts = {"accepted": "accepted", "counted": "counted", "rejected": "rejected"}
    flips = {"true": "flipped", "false": "unchanged"}
    changes: dict[str, list[Choice]] = {}
    for change, number in facets.changes.items():
        values = {"factor": change.factor, "value": change.value, "direction": change.direction}
        changes.setdefault(f"{change.factor} {change.direction}", []).append(choice(change.value, number, **values))
    rows = [
        row("class", [choice(name, number, **{"class": name}) for name, number in facets.classes.items()]),
        *(row(name, choices) for name, choices in sorted(changes.items(), key=lambda entry: entry[0], reverse=True)),
        row("prediction", [choice(words, facets.flips[name], flipped=name) for name, words in flips.items()]),
        row("model", [choice(name, number, model=name) for name, number in facets.models.items()]),
        row("verdict", [choice(words, facets.verdicts[name], verdict=name) for name, words in verdicts.items()]),
        row("check", [choice(name, number, check=name) for name, number in facets.checks.items()]),
        row("method", [choice(name, number, method=name) for name, number in facets.methods.items()]),
        row("order", [choice("to review first", None, order="review")] if has_review_order else []),
    ]
    rows = [entry for entry in rows if len(entry.choices) > (entry.name == "method")]
    rows = [entry for entry in rows if facets is not NOT_COUNTED or entry.name == "order"]
    shown = {
        name for entry in rows for choice in (*entry.choices, *entry.more) if choice.active for name in choice.names
    }
    others = [(name, value) for name, value in chosen.items() if name not in shown]
    others = [(name, value) for name, value in others if name != "direction"]
    rows.append(row("also", [choice(_words(name, value), None, **{name: value}) for name, value in others]))
    return [entry for entry in rows if entry.choices]


def _words(name: str, value: Value) -> str:
    """The words of a filter without choices of its own."""
    if isinstance(value, list):
        if name == "pixels":
            return f"pixels of {value[0]} taken for {value[1] if len(value) > 1 else 'a class that the job lacks'}"
        return f"predicted as none of {len(value)} classes"
    return _PHRASES.get((name, value)) or f"{_NAMES.get(name, name)}: {value}"


def _shows(state: GalleryState, path: str) -> list[Choice]:
    """The ways to compare a pair. They keep the page that is shown."""
    chosen = state.show or "pairs"
    return [
        Choice(words, None, state.address(path, show=name, cursor=state.cursor), name == chosen)
        for name, words in SHOWS.items()
    ]
