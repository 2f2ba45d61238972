"""The page of a job: progress, findings with their images, then charts whose cells and bars link to their images.

Its state is in the address. A threshold of confidence changes the figures of one model and method without a call of a
model, because predictions are stored with their probabilities.

Links from the cells of confusion matrices to their images, and how many images the gallery shows there.

The effects of one model and method as a heat map: a row for each value, a column for each class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from pydantic import Field
from sqlalchemy.orm import Session

from gateway.api.dependencies import Gateway, JobId, Owner
from gateway.database.sessions import reading
from gateway.database.tables import Job, Report
from gateway.feedback.notes import finding_id, load_notes, with_notes
from gateway.jobs import jobs
from gateway.jobs.pace import pace_of
from gateway.kinds import of_metric
from gateway.report.advice import open_effects, steps_for
from gateway.results.counterfactuals import first_views
from gateway.results.filters import Filters
from gateway.results.job_rows import load_rows
from gateway.results.measure import at_threshold
from gateway.results.rounds import rounds_of
from gateway.web.rendering import Value, address_of, class_filter, gallery, images_of_cell, render
from shared.problems import InvalidInput
from shared.schemas.base import Contract
from shared.schemas.effects import Cell, CellEffect, Direction
from shared.schemas.metrics import ClassConfusion, ConfusionPairs, SegmentationMetrics
from shared.schemas.results import CounterfactualView, JobResults, ModelResults
from shared.words.verdicts import by_severity, verdict_of

STEPS = (0.05, 0.1, 0.2, 0.4, 0.7)  # effects from which on a cell has the next shade; 5 points are the tested limit
MOST_ROWS = 30  # of methods side by side
MOST_CLASSES = 60  # of a heat map: those with the largest tested effects
Matrix = Literal["originals", "nulls", "counterfactuals", "difference"]
Arm = Literal["originals", "nulls", "counterfactuals"]
MatrixLink = Callable[[Matrix, int, int, float], "ImagesLink | None"]
_ON: dict[Arm, str] = {"originals": "original", "nulls": "null", "counterfactuals": "counterfactual"}
_PREDICTED: dict[Arm, str] = {
    "originals": "predicted_original", "nulls": "predicted_null", "counterfactuals": "predicted",
}  # fmt: skip
PICTURES_PER_FINDING = 3
CHOSEN_FROM = 24  # images of a finding, of which those that lost most are shown
FINDINGS_WITH_PICTURES = 12
Name = Annotated[str | None, Field(max_length=200)]

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


class ResultsView(Contract):
    """Which figures the page shows. `threshold`: predictions with a lower top probability count as none."""

    model: Name = None
    method: Name = None
    threshold: Annotated[float, Field(ge=0, le=1)] = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding with some of the images whose prediction changed, and what would settle it."""

    id: str
    figures: ModelResults
    effect: CellEffect
    images: list[CounterfactualView]
    steps: list[str]


@router.get("/jobs/{job}/view")
def show_job(job: JobId, gateway: Gateway, owner: Owner, view: Annotated[ResultsView, Query()]) -> HTMLResponse:
    """Progress while the job runs, then findings, then one model and method: heat map, forest plot, confusion, methods.

    Raises InvalidInput for a model or method that the job lacks.
    """
    with reading(gateway.sessions) as session:
        row, detail = jobs.find(session, owner, job), jobs.show(session, owner, job)
        pace, test_set = pace_of(session, detail), jobs.describe_test_set(session, job)
        report = session.get(Report, job)
        results = with_notes(report.results, load_notes(session, job)) if report is not None else None
        figures = None if results is None else _chosen(results, view)
        findings, more_findings = ([], []) if results is None else _findings(session, job, results)
        shown = figures if figures is None else _at(session, row, figures, view.threshold)
    return render(
        "job.html",
        job_id=job,
        job=detail,
        pace=pace,
        test_set=test_set,
        results=results,
        findings=findings,
        more_findings=more_findings,
        view=view,
        figures=shown,
        thresholded=shown is not figures,
        address=partial(address_of, f"/jobs/{job}/view", view),
        maps=[] if shown is None else heat_maps(shown),
        methods=None if results is None or figures is None else side_by_side(_of_model(results, figures.model)),
        open_effects=[] if figures is None else open_effects(figures),
        shade=shade,
        cell_link=lambda of, cell: images_of_cell(job, of, cell),
        funnel_link=lambda method, **filters: gallery(job, method=method, **filters),
        matrix_link=None if shown is None else matrix_link(job, shown, view.threshold),
        error_link=None if shown is None else error_link(job, shown),
        links_are_counted=True,
        pair_link=_pair_link(job),
    )


def _chosen(results: JobResults, view: ResultsView) -> ModelResults | None:
    """The figures of the named model and method; by default of the most severe verdict."""
    figures = results.results
    for name, chosen in (("model", view.model), ("method", view.method)):
        names = dict.fromkeys(getattr(row, name) for row in figures)
        if chosen is not None and chosen not in names:
            raise InvalidInput(f"the job has no {name} {chosen!r}; it has {', '.join(names) or 'none'}")
    fitting = [row for row in figures if view.model in (None, row.model) and view.method in (None, row.method)]
    return next(iter(by_severity(results, fitting)), None)


def _at(session: Session, job: Job, figures: ModelResults, threshold: float) -> ModelResults:
    """The figures at a threshold of confidence; of kinds without confidence as they are."""
    if threshold <= 0 or of_metric(figures.metric).at_confidence is None:
        return figures
    return at_threshold(figures, load_rows(session, job.id), rounds_of(session, job.id), threshold)


def _findings(session: Session, job: str, results: JobResults) -> tuple[list[Finding], list[Finding]]:
    """The cells that verdicts show, and the other findings."""
    shown = [(row, effect) for row in results.results for effect in verdict_of(results, row).shown]
    already = {id(effect) for _, effect in shown}
    more = [(row, effect) for row in results.results for effect in row.findings if id(effect) not in already]
    findings = [
        Finding(
            finding_id(figures.model, figures.method, effect.cell),
            figures,
            effect,
            _images(session, job, figures, effect.cell) if number < FINDINGS_WITH_PICTURES else [],
            steps_for(job, figures, effect),
        )
        for number, (figures, effect) in enumerate([*shown, *more])
    ]
    return findings[: len(shown)], findings[len(shown) :]


def _images(session: Session, job: str, figures: ModelResults, cell: Cell) -> list[CounterfactualView]:
    """Counted images of a cell whose prediction changed, those that lost most first."""
    to = cell.direction == "to"
    filters = {
        "model": figures.model,
        "method": figures.method,
        "factor": cell.factor,
        "value": cell.value if to else None,
        "from": None if to else cell.value,
        "verdict": "counted",
        "flipped": True,
        **class_filter(figures, cell.label),
    }
    views = first_views(session, job, Filters.model_validate(filters), CHOSEN_FROM)
    return sorted(views, key=partial(_gain, figures.model))[:PICTURES_PER_FINDING]


def _gain(model: str, view: CounterfactualView) -> float:
    """The change of the probability of the ground truth; 0 where there is none."""
    opinion = next(opinion for opinion in view.predictions if opinion.model == model)
    if opinion.original is None or opinion.counterfactual is None:
        return 0.0
    return (opinion.counterfactual.ground_truth_probability or 0.0) - (opinion.original.ground_truth_probability or 0.0)


def _of_model(results: JobResults, model: str) -> Sequence[ModelResults]:
    return [row for row in results.results if row.model == model]


def _pair_link(job: str) -> Callable[[CounterfactualView], str]:
    return lambda view: f"/jobs/{job}/pairs/{view.id}"


@dataclass(frozen=True, slots=True)
class ImagesLink:
    """The address of images in the gallery. `number` of counterfactuals there; None in older results."""

    address: str
    number: int | None

    @property
    def words(self) -> str:
        """How many images the link leads to."""
        return "" if self.number is None else f"{self.number:,} counterfactual{'' if self.number == 1 else 's'}"


def matrix_link(job: str, figures: ModelResults, threshold: float) -> MatrixLink | None:
    """The images behind a cell of the confusion matrices, by matrix, row, column and value; None without matrices."""
    if figures.confusion is not None:
        return partial(_class_link, job, figures, figures.confusion, threshold)
    if figures.segmentation is not None:
        return partial(_pixels_link, job, figures, figures.segmentation)
    return None


def error_link(job: str, figures: ModelResults) -> Callable[[Arm, str, str | None], str]:
    """The address of the images on which a detector makes an error, by arm, error and size of the object."""

    def link(arm: Arm, error: str, size: str | None) -> str:
        filters: dict[str, Value | None] = {"on": _ON[arm], "error": error, "size": size}
        return gallery(job, model=figures.model, method=figures.method, verdict="counted", **filters)

    return link


def _class_link(
    job: str,
    figures: ModelResults,
    confusion: ClassConfusion,
    threshold: float,
    matrix: Matrix,
    row: int,
    column: int,
    value: float,
) -> ImagesLink:
    arm = _arm(matrix, value)
    names = confusion.columns[: -2 if threshold > 0 else -1]  # the last ones are "other" and "none"
    filters: dict[str, Value | None] = {"on": _ON[arm], **class_filter(figures, confusion.classes[row])}
    if column > len(names):
        filters["confidence_below"] = str(threshold)
    else:
        filters["confidence_from"] = str(threshold) if threshold > 0 else None
        filters |= {_PREDICTED[arm]: names[column]} if column < len(names) else {"other_than": names}
    if filters.get("other_than") is None and threshold <= 0:
        filters["on"] = None  # it is of no effect
    address = gallery(job, model=figures.model, method=figures.method, verdict="counted", **filters)
    return ImagesLink(address, _number(confusion.pairs, arm, row, column))


def _pixels_link(
    job: str,
    figures: ModelResults,
    metrics: SegmentationMetrics,
    matrix: Matrix,
    row: int,
    column: int,
    value: float,
) -> ImagesLink:
    arm = _arm(matrix, value)
    classes = metrics.classes
    pixels = [classes[row], *classes[column : column + 1]]  # the last column is of classes that the job does not have
    address = gallery(job, model=figures.model, method=figures.method, verdict="counted", on=_ON[arm], pixels=pixels)
    return ImagesLink(address, _number(metrics.pairs, arm, row, column))


def _arm(matrix: Matrix, value: float) -> Arm:
    """The arm behind a cell; behind a difference the one that is more often there."""
    if matrix != "difference":
        return matrix
    return "counterfactuals" if value > 0 else "nulls"


def _number(pairs: ConfusionPairs | None, arm: Arm, row: int, column: int) -> int | None:
    if pairs is None:
        return None
    by_arm = {"originals": pairs.originals, "nulls": pairs.nulls, "counterfactuals": pairs.counterfactuals}
    return by_arm[arm][row][column]


@dataclass(frozen=True, slots=True)
class HeatRow:
    """The effects of one value, one for each class; None where no pair counts."""

    factor: str
    value: str
    effects: list[CellEffect | None]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The cells of one direction. `more`: classes that are left out, because their effects are smaller."""

    direction: Direction
    classes: list[str]
    rows: list[HeatRow]
    more: int


def heat_maps(figures: ModelResults) -> list[HeatMap]:
    """The map of the changes to values, and that of the changes from values, without those that have no cells."""
    maps = (_heat_map(figures.cells, direction) for direction in ("to", "from"))
    return [drawn for drawn in maps if drawn.rows]


def _heat_map(effects: Sequence[CellEffect], direction: Direction) -> HeatMap:
    drawn = [effect for effect in effects if effect.cell.direction == direction]
    largest: dict[str, float] = {}
    for effect in drawn:
        size = abs(effect.delta_accuracy) if effect.interval else -1 / effect.sources
        largest[effect.cell.label] = max(size, largest.get(effect.cell.label, size))
    classes = sorted(sorted(largest, key=lambda name: (-largest[name], name))[:MOST_CLASSES])
    by_place = {(effect.cell.factor, effect.cell.value, effect.cell.label): effect for effect in drawn}
    values = sorted({(effect.cell.factor, effect.cell.value) for effect in drawn})
    rows = [
        HeatRow(factor, value, [by_place.get((factor, value, name)) for name in classes]) for factor, value in values
    ]
    return HeatMap(direction, classes, rows, len(largest) - len(classes))


def shade(effect: CellEffect) -> str:
    """The style class of an effect: "lower-1" (worse by 5 points) to "lower-5" (by 70), "higher-1" to "higher-5"."""
    step = sum(abs(effect.delta_accuracy) >= least for least in STEPS)
    return "level" if not step else f"{'lower' if effect.delta_accuracy < 0 else 'higher'}-{step}"


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The effects of one model in the cells that several methods have; None where a method lacks the cell."""

    methods: list[ModelResults]
    rows: list[list[CellEffect | None]]


def side_by_side(results: Iterable[ModelResults]) -> SideBySide:
    """One model's `results` of several methods, at most 30 cells: those with a test first, then by lowest effect."""
    methods = list(results)
    by_method = [{_name(effect): effect for effect in figures.cells} for figures in methods]
    shared = {name for effects in by_method for name in effects if sum(name in others for others in by_method) > 1}
    rows = [[effects.get(name) for effects in by_method] for name in shared]
    return SideBySide(methods, sorted(rows, key=_lowest)[:MOST_ROWS])


def _name(effect: CellEffect) -> tuple[str, ...]:
    cell = effect.cell
    return cell.label, cell.factor, cell.value, cell.direction


def _lowest(row: Sequence[CellEffect | None]) -> tuple[bool, float, tuple[str, ...]]:
    effects = [effect for effect in row if effect is not None]
    untested = all(effect.interval is None for effect in effects)
    return untested, min(effect.delta_accuracy for effect in effects), _name(effects[0])
