"""The two sides of a comparison: which job, model and method each is, and refusals of what cannot be compared.

Differences of effects as sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from gateway.analysis.effects import Scores
from gateway.database.tables import OF_SUITES, Job
from gateway.jobs import jobs
from gateway.results.job_rows import JobRows, load_rows
from gateway.results.rounds import rounds_of
from gateway.results.stream import relation_of
from shared.problems import Conflict, InvalidInput
from shared.schemas.comparisons import CellDifference, ComparisonChoice, Pairing
from shared.words.verdicts import is_suspected
from shared.words.wording import change_in_words, class_in_words, points


class Side(NamedTuple):
    """A model under a method in a finished job."""

    job: Job
    model: str
    method: str


class Sides(NamedTuple):
    """Both sides of a comparison."""

    this: Side
    other: Side

    @property
    def pairing(self) -> Pairing:
        """By counterfactual where both sides have the same ones: in one job, or in runs of one suite."""
        this, other = self.this.job, self.other.job
        same_images = this.id == other.id or (this.suite_id is not None and this.suite_id == other.suite_id)
        return "edit" if same_images and self.this.method == self.other.method else "source image"


def choose_sides(session: Session, owner: str, job_id: str, choice: ComparisonChoice) -> Sides:
    """The sides that a choice names.

    Raises NotFound for a job, InvalidInput for a model or method that a job lacks and for sides that cannot be
    compared, and Conflict while a job is running.
    """
    job = jobs.find(session, owner, job_id)
    this = _side(job, choice.model, choice.method, None)
    other_job = job if choice.other_job is None else jobs.find(session, owner, choice.other_job)
    other = _side(other_job, choice.other_model, choice.other_method, this)
    sides = Sides(this, other)
    _refuse_incomparable(session, sides)
    return sides


def _side(job: Job, model: str | None, method: str | None, default: Side | None) -> Side:
    methods = [row.name for row in job.methods]
    return Side(
        job,
        _name("model", job, model, job.models, default.model if default else None),
        _name("method", job, method, methods, default.method if default else None),
    )


def _name(kind: str, job: Job, name: str | None, names: Sequence[str], default: str | None) -> str:
    """The model or method of a side: the named one, else the default if the job has it, else the job's only one."""
    if name is None:
        name = default if default in names else names[0] if len(names) == 1 else None
    if name is None:
        listed = f"it has {', '.join(names)}" if names else "it has none, so nothing can be compared"
        raise InvalidInput(f"choose a {kind} of job {job.id}; {listed}")
    if name not in names:
        raise InvalidInput(f"job {job.id} has no {kind} {name!r}; it has {', '.join(names) or 'none'}")
    return name


def _refuse_incomparable(session: Session, sides: Sides) -> None:
    """Raise Conflict or InvalidInput, with what to change, if two sides have no effects that can be compared."""
    this, other = sides
    if this == other:
        raise InvalidInput("both sides are the same; name another model, method or job for one of them")
    for job in dict.fromkeys((this.job, other.job)):
        if job.state == "running":
            raise Conflict(f"job {job.id} is running; compare it when it is done, or cancel it first")
        if rounds_of(session, job.id):
            raise InvalidInput(
                f"job {job.id} is adaptive: its results decided which images were rendered, which the intervals of a "
                "comparison do not allow for; compare jobs with another design"
            )
    if this.job.kind != other.job.kind:
        raise InvalidInput(
            f"job {this.job.id} is for {this.job.kind} and job {other.job.id} for {other.job.kind}, whose effects "
            "are not on one scale; compare jobs of one kind"
        )
    unlabelled = [side.job.id for side in sides if relation_of(session, side.job.id) == "metamorphic"]
    if len(unlabelled) == 1:
        raise InvalidInput(
            f"job {unlabelled[0]} has no ground truth, the other job has; compare jobs that both have ground truth, or "
            "both have none"
        )


def comparable_jobs(session: Session, owner: str, job: Job, limit: int) -> Sequence[Job]:
    """The newest other jobs with which a job may be compared: finished ones of its kind; of a suite run, other runs."""
    of_suite = and_(Job.purpose == "run", Job.parent_id == job.parent_id)
    same_suite = of_suite if job.purpose == "run" else Job.purpose.not_in(OF_SUITES)
    finished = Job.state != "running", Job.deleted_at.is_(None), Job.id.not_in([job.id, job.suite_id or job.id])
    query = select(Job).where(Job.owner_id == owner, Job.kind == job.kind, same_suite, *finished)
    return session.scalars(query.order_by(Job.created_at.desc(), Job.id).limit(limit)).all()


def load_sides(session: Session, sides: Sides) -> tuple[JobRows, JobRows]:
    """All rows of both jobs; of one job, once."""
    this = load_rows(session, sides.this.job.id)
    return this, this if sides.this.job.id == sides.other.job.id else load_rows(session, sides.other.job.id)


def scores_of_side(rows: JobRows, side: Side) -> Scores:
    """The scores of a side's model on the accepted counterfactuals of its method."""
    return rows.models[side.model, side.method].scores


def difference_sentence(row: CellDifference) -> str:
    """A difference: "`bus` at night: −62 points against −3, difference −59, …"."""
    cell = row.cell
    images = "all counterfactuals" if cell is None else f"{class_in_words(cell, '`')} {change_in_words(cell)}"
    sentence = f"{images}: {points(row.effect)} points against {points(row.other_effect)}"
    sentence += f", difference {points(row.difference)}"
    interval = row.selected_interval or row.interval
    if interval is not None:
        adjusted = " (adjusted for selection)" if row.selected_interval else ""
        sentence += f", 95 % interval {points(interval.low)} to {points(interval.high)}{adjusted}"
    return f"{sentence}, {row.sources} source images"


def open_differences_sentence(cells: Sequence[CellDifference]) -> str:
    """How many cells may well differ without a test that says so, and the one of the most images; "" if there are none.

    It takes the place of "No difference found".
    """
    suspected = [
        row
        for row in cells
        if row.judgement in ("no difference found", "too few images")
        and is_suspected(row.difference, row.interval, row.groups or row.sources)
    ]
    if not suspected:
        return ""
    untested = sum(row.judgement == "too few images" for row in suspected)
    counts = [(len(suspected) - untested, "not significant"), (untested, "with too few images to test")]
    listed = ", ".join(f"{count} {words}" for count, words in counts if count)
    first = max(suspected, key=lambda row: abs(row.difference) * row.sources)
    differ = "1 cell differs" if len(suspected) == 1 else f"{len(suspected)} cells differ"
    return f"Not settled: {differ} by more than 5 points ({listed}). {difference_sentence(first)}"
