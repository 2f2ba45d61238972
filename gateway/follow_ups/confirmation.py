"""Orders the job that tests the findings of another one again: its sources, changes and models, another editor.

`shifts` (inversion and prompt-to-prompt) tests the findings of methods that render new images, with the phrases of each
cell. `dillema` (text-to-image under control) tests those of methods that invert the source. It takes no phrases, so the
design is balanced: every image gets the values of the cells, and the language model writes the phrases. Both make one
change at a time, also where an edit of the first job made several.

Its images are those of the cells. A cell may rest on a few images, and the checks refuse some of the other editor's
edits, too, so other images of a small cell's class are added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from gateway.analysis.findings import strength
from gateway.context import Context
from gateway.database.columns import StoredChange
from gateway.database.sessions import reading
from gateway.database.tables import Counterfactual, Job, Report, SourceImage
from gateway.jobs import jobs
from gateway.jobs.submit import Submission, submit
from gateway.kinds import KINDS
from gateway.methods import confirming
from gateway.results.cells import value_side
from gateway.results.confirmation import why_not_tested
from gateway.results.filters import Filters, conditions
from shared.problems import Conflict, InvalidInput
from shared.schemas.base import JsonObject
from shared.schemas.effects import Cell, CellEffect
from shared.schemas.jobs import JobSpec, ManifestImage, MethodChoice
from shared.schemas.results import JobResults
from shared.schemas.reviews import ConfirmationJob, ConfirmationRequest, ConfirmingMethod, NotTested
from shared.seeds import derive_digest

LEAST_IMAGES = 30  # of a class, if the job has them: checks have refused half of the edits, and a test takes 12


@dataclass(frozen=True, slots=True)
class _Findings:
    """The cells to test again, and the source images to test them on, by position; and the findings left out."""

    cells: list[Cell]
    sources: list[SourceImage]
    not_tested: list[NotTested]


def confirm(context: Context, owner: str, job_id: str, request: ConfirmationRequest) -> ConfirmationJob:
    """Start the job that tests the findings of a finished job again; it names the findings that are not tested.

    Raises NotFound; Conflict if the job has no report or no finding that the method can test; InvalidInput for a job
    without labels, and what `submit` raises.
    """
    with reading(context.sessions) as session:
        job = jobs.find(session, owner, job_id)
        results = finished_results(session, job)
        findings = _findings(session, job, results, request.confirm_with)
        choice = MethodChoice(
            name=request.confirm_with, parameters=_parameters(session, job, findings.cells, request.confirm_with)
        )
        spec = JobSpec(
            task_description=job.task_description,
            methods=[choice],
            models=[name for name in job.models if name not in job.stored_spec.reference_models],
            classes=job.classes,
            design=confirming(request.confirm_with).design,
            seed=job.seed,
            purpose="confirmation",
            parent=job.id,
            outside_domain=True,  # these images were accepted before
            protected_characteristics=job.stored_spec.protected_characteristics,
        )
        images = [manifest_image(source) for source in findings.sources]
    # Findings that a new report changes have other images or phrases, so they are tested by another job.
    parts = [spec.model_dump_json(exclude_unset=True), *(image.model_dump_json() for image in images)]
    key = f"confirm-{job_id}-{derive_digest(*parts).hex()[:32]}"
    detail = submit(context, owner, Submission(spec, uploaded=images, idempotency_key=key))
    return ConfirmationJob.model_validate({**dict(detail), "not_tested": findings.not_tested})


def finished_results(session: Session, job: Job) -> JobResults:
    """The results of a finished job of classifiers with ground truth. Raises Conflict before it has a report."""
    report = session.get(Report, job.id)
    if report is None or job.state != "done":
        raise Conflict("the job has no report yet; ask again when it is done")
    if not KINDS[job.kind].one_class or any(figures.relation != "labelled" for figures in report.results.results):
        raise InvalidInput("only findings of classifiers on images with ground truth can be rendered again")
    return report.results


def _findings(session: Session, job: Job, results: JobResults, method: ConfirmingMethod) -> _Findings:
    """The findings of methods with an unrelated editor, of changes *to* a value.

    Weaknesses come before improvements, and the strongest of any model first.
    """
    cells, names, not_tested = dict[Cell, None](), set[str](), list[NotTested]()
    findings = [(figures, effect) for figures in results.results for effect in figures.findings]
    for figures, effect in sorted(findings, key=lambda pair: strength(pair[1])):
        cell = effect.cell
        edits = edits_of_cell(session, job, cell, figures.method)
        if reason := _why_not(figures.method, effect, method, edits, cells):
            not_tested.append(NotTested(model=figures.model, method=figures.method, cell=cell, reason=reason))
            continue
        cells[cell] = None
        names |= {edit.source_image_id for edit in edits}
    if not cells:
        raise Conflict(
            f"{method!r} can test no finding of this job again: it needs one of a method with an unrelated editor"
            + "".join(f"; {reason}" for reason in dict.fromkeys(row.reason for row in not_tested))
        )
    of_job = select(SourceImage).where(SourceImage.job_id == job.id, SourceImage.digest.is_not(None))
    sources = session.scalars(of_job.order_by(SourceImage.position)).all()
    names |= _more_of_classes(sources, {cell.label for cell in cells}, names)
    return _Findings(list(cells), [source for source in sources if source.id in names], not_tested)


def _more_of_classes(sources: Sequence[SourceImage], classes: Collection[str], names: Collection[str]) -> set[str]:
    """Other images of classes that have fewer than `LEAST_IMAGES` among `names`, in the order of their digests."""
    more = set[str]()
    for label in classes:
        of_class = [source for source in sources if source.ground_truth == label]
        others = sorted((source for source in of_class if source.id not in names), key=lambda row: row.digest or "")
        missing = max(0, LEAST_IMAGES - (len(of_class) - len(others)))
        more |= {source.id for source in others[:missing]}
    return more


def _why_not(
    method: str,
    effect: CellEffect,
    confirm_with: ConfirmingMethod,
    edits: Sequence[Counterfactual],
    cells: Collection[Cell],
) -> str:
    """Why a finding of `method` is not tested again; "" if it is. `cells`: those to be tested already."""
    if reason := why_not_tested(method, effect.cell, confirm_with):
        return reason
    values = {(cell.factor, cell.value) for cell in cells} | {(effect.cell.factor, effect.cell.value)}
    if len(values) > (most := confirming(confirm_with).most):
        return f"a job renders at most {most} changes by `{confirm_with}`, and the strongest findings come first"
    return "" if edits else "there is nothing to render it with: no edit that counts makes this change"


def edits_of_cell(session: Session, job: Job, cell: Cell, method: str | None = None) -> list[Counterfactual]:
    """The counted edits that make a cell's change, alone or with others."""
    row, filters = Counterfactual, {"method": method, "class": cell.label, "verdict": "counted"}
    alone = and_(row.factor == cell.factor, getattr(row, value_side(cell)) == cell.value)
    several = row.factor.is_(None)  # the columns repeat single changes only
    edits = select(row).where(row.job_id == job.id, row.arm == "edit", or_(alone, several))
    rows = session.scalars(edits.where(*conditions(Filters.model_validate(filters))).order_by(row.id))
    return [edit for edit in rows if _changes_of_cell(edit, cell)]


def _changes_of_cell(edit: Counterfactual, cell: Cell) -> list[StoredChange]:
    side = value_side(cell)
    return [change for change in edit.changes if (change["factor"], change[side]) == (cell.factor, cell.value)]


def _parameters(session: Session, job: Job, cells: Iterable[Cell], method: ConfirmingMethod) -> JsonObject:
    by_value: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        by_value.setdefault((cell.factor, cell.value), []).append(cell)
    phrases = {change: partial(_phrases, session, job, of_value) for change, of_value in by_value.items()}
    return confirming(method).parameters(phrases)


def _phrases(session: Session, job: Job, cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """The old and the new phrase of each counted edit that makes the change of the cells."""
    return [
        (change["from_phrase"], change["to_phrase"])
        for cell in cells
        for edit in edits_of_cell(session, job, cell)
        for change in _changes_of_cell(edit, cell)
    ]


def manifest_image(source: SourceImage) -> ManifestImage:
    """A source image of a job as the image of another job."""
    assert source.digest is not None, "an image with edits has pixels"
    return ManifestImage(
        digest=source.digest, label=source.ground_truth, group=source.group_name, name=source.file_name
    )
