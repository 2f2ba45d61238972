"""Orders the job that renders the edits of a job's weaknesses at several doses, and undone.

The editor is that of the job's method, with the job's parameters: `dillema` (text-to-image under control), `lance`,
`lance-r` and `shifts` (inversion and prompt-to-prompt), `instruct` (instructions). Every counted edit that makes only
the change of a weakness is eligible, even if it did not mislead the model: edits chosen by their outcome would seem to
return by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.context import Context
from gateway.database.sessions import reading
from gateway.database.tables import Counterfactual, Job, SourceImage
from gateway.follow_ups.confirmation import edits_of_cell, finished_results, manifest_image
from gateway.jobs import jobs
from gateway.jobs.submit import Submission, submit
from gateway.methods import METHODS, JobMethod
from gateway.methods.counterfactual import MethodParameters
from gateway.methods.doses import DOSES, EDITORS, DosedEdit
from gateway.results.cells import value_side
from shared.problems import Conflict, InvalidInput
from shared.profiles.diffusion import Diffusion
from shared.schemas.base import JsonObject
from shared.schemas.effects import FULL_DOSE, MOST_DOSED_EDITS, Cell, DoseRequest
from shared.schemas.jobs import JobDetail, JobSpec, ManifestImage, MethodChoice
from shared.schemas.results import JobResults
from shared.schemas.validity import VALIDITY
from shared.seeds import derive_digest

SEVERAL_CHANGES = (
    "the edits of these weaknesses make several changes at once, which have no doses of their own; submit a job with "
    "same_caption false and edits_per_counterfactual 1 in the parameters of dillema and dose its weaknesses, or test "
    "each change alone with another editor (`contrafact confirm`)"
)


def start_doses(context: Context, owner: str, job_id: str, request: DoseRequest) -> JobDetail:
    """Start the job that renders a finished job's weaknesses at other doses.

    Raises NotFound; Conflict if the job has no report, or the method no weakness with edits of a single change;
    InvalidInput for a method without a dose, for a job without labels, and what `submit` raises.
    """
    with reading(context.sessions) as session:
        job = jobs.find(session, owner, job_id)
        results = finished_results(session, job)
        method = _method(job, results, request.method)
        edits, images = _edits(session, job, results, method, request.images)
        parameters = _parameters(method, request, edits, context.profile.diffusion)
        spec = JobSpec(
            task_description=job.task_description,
            methods=[MethodChoice(name=DOSES, parameters=parameters)],
            models=[name for name in job.models if name not in job.stored_spec.reference_models],
            classes=job.classes,
            seed=job.seed,
            purpose="doses",
            parent=job.id,
            outside_domain=True,  # these images were accepted before
            protected_characteristics=job.stored_spec.protected_characteristics,
        )
        if any(image.mask for image in images):
            spec = spec.model_copy(update={"object_masks": True})
    key = f"doses-{job_id}-{derive_digest(spec.model_dump_json(exclude_unset=True)).hex()[:32]}"
    return submit(context, owner, Submission(spec, uploaded=images, idempotency_key=key))


def _method(job: Job, results: JobResults, name: str | None) -> JobMethod:
    """The method with weaknesses that the request names, or the only one. Raises Conflict or InvalidInput."""
    weak = {figures.method for figures in results.results if _weaknesses(results, figures.method)}
    names = sorted(weak if name is None else weak & {name})
    if not names:
        raise Conflict(f"{name or 'this job'} has no weakness; doses are rendered for weaknesses")
    if len(names) > 1:
        raise InvalidInput(f"several methods have weaknesses: {', '.join(names)}; name one of them as `method`")
    method = next(candidate for candidate in job.methods if candidate.name == names[0])
    if _editor(method.spec.parameters) is None:
        more = "; its five severities are its doses, and the report has their curve" if method.spec.severities else ""
        dosed = ", ".join(name for name, spec in METHODS.items() if _editor(spec.parameters))
        raise InvalidInput(f"the edits of {names[0]} have no dose{more}; doses are for {dosed}")
    return method


def _weaknesses(results: JobResults, method: str) -> list[Cell]:
    """The cells with a weakness of any model, each once."""
    figures = [row for row in results.results if row.method == method]
    cells = (effect.cell for row in figures for effect in row.findings if effect.standing == "weakness")
    return list(dict.fromkeys(cells))


def _edits(
    session: Session, job: Job, results: JobResults, method: JobMethod, most: int
) -> tuple[list[DosedEdit], list[ManifestImage]]:
    """The edits to make again, with the values of their weaknesses, and the images of their sources, each once."""
    values: dict[str, dict[str, str]] = {}
    rows: dict[str, Counterfactual] = {}
    for cell in _weaknesses(results, method.name):
        single = [edit for edit in edits_of_cell(session, job, cell, method.name) if len(edit.changes) == 1]
        for row in _sample(single, job.seed, most):
            rows[row.id] = row
            values.setdefault(row.id, {})[value_side(cell)] = cell.value
    if not rows:
        raise Conflict(SEVERAL_CHANGES)
    names = {row.source_image_id for row in rows.values()}
    sources = session.scalars(select(SourceImage).where(SourceImage.job_id == job.id).order_by(SourceImage.position))
    by_digest = {source.digest or "": source for source in sources if source.id in names}
    digests = {source.id: digest for digest, source in by_digest.items()}
    chosen = [row for row in rows.values() if row.source_image_id in digests]  # equal images count once
    if len(chosen) > MOST_DOSED_EDITS:
        raise InvalidInput(f"the weaknesses have {len(chosen)} edits, more than {MOST_DOSED_EDITS}; lower `images`")
    edits = [_dosed_edit(row, digests[row.source_image_id], method, values[row.id]) for row in chosen]
    return edits, [_image(source, method) for source in by_digest.values()]


def _image(source: SourceImage, method: JobMethod) -> ManifestImage:
    """A source image of the job, with the mask of its object if the user sent one for an editor of backgrounds."""
    image = manifest_image(source)
    return image.model_copy(update={"mask": source.object_digest}) if method.parameters.objects() else image


def _sample(edits: Sequence[Counterfactual], seed: int, most: int) -> list[Counterfactual]:
    """The first edit of each source image; of more than `most` source images, a random sample."""
    first: dict[str, Counterfactual] = {}
    for row in edits:
        first.setdefault(row.source_image_id, row)
    rows = list(first.values())
    if len(rows) <= most:
        return rows
    order = sorted(rows, key=lambda row: derive_digest("dose", str(seed), row.source_image_id))
    return order[:most]


def _dosed_edit(row: Counterfactual, digest: str, method: JobMethod, values: dict[str, str]) -> DosedEdit:
    (change,) = row.changes
    dosed = DosedEdit(
        source=digest,
        factor=change["factor"],
        from_phrase=change["from_phrase"],
        to_phrase=change["to_phrase"],
        from_value=values.get("from_value", ""),
        to_value=values.get("to_value", ""),
        caption=row.caption,
        new_caption=row.new_caption,
        seed=row.seed,
        self_fraction=_fraction(row, method),
    )
    if "instruction" in row.lineage:
        return dosed.model_copy(update={"instruction": str(row.lineage["instruction"])})
    region = method.parameters.region_of(dosed.edit(FULL_DOSE))
    return dosed if region is None else dosed.model_copy(update={"region": region})


def _fraction(row: Counterfactual, method: JobMethod) -> float:
    """The self-attention fraction of an edit; a sweep kept the best one, which its lineage records."""
    if (fraction := method.parameters.fraction()) is not None:
        return fraction
    recorded = row.lineage.get("self_fraction")
    return float(recorded) if isinstance(recorded, int | float) else 0.0


def _parameters(
    method: JobMethod, request: DoseRequest, edits: Sequence[DosedEdit], diffusion: Diffusion
) -> JsonObject:
    """The parameters of the method `doses`, which `submit` validates.

    Defaults that neither the other job nor the request has stay out: a version with more of them orders the same job.
    """
    parameters = method.parameters
    name = _editor(type(parameters))
    assert name is not None, "`_method` refuses methods without an editor"
    # A dose is no edit that the model of validity was fitted on, and a check of how much of the edit shows would refuse
    # weak doses. So doses have the thresholds of arms, which a calibrated job has besides `validity`.
    limits_of_arms = method.thresholds_for_arms.items()
    thresholds: JsonObject = {check: {**limits} for check, limits in limits_of_arms if check != VALIDITY}
    kept = set(EDITORS[name].model_fields) - {"arm_thresholds"}
    chosen = parameters.model_dump(mode="json", include=kept, exclude_unset=True)
    editor: JsonObject = {**chosen, "thresholds": thresholds, "validity": None, "signals": []}
    return {
        "method": method.name,
        "parameter": parameters.dosed(request.parameter, diffusion),
        "doses": [*request.doses],
        "edits": [edit.model_dump(mode="json", exclude_unset=True) for edit in edits],
        name: editor,
        "checks": [*method.spec.checks],
    }


def _editor(parameters: type[MethodParameters]) -> str | None:
    """The editor of a method's edits, by its name in the parameters of `doses`."""
    return next((name for name, editor in EDITORS.items() if issubclass(parameters, editor)), None)
