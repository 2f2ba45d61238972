"""Pages of counterfactuals, filtered, in the order of (source position, method, ordinal) or of the review list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from sqlalchemy import ColumnElement, Select, Subquery, and_, case, cast, func, or_, select, tuple_
from sqlalchemy import Text as Text_
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from gateway.database.pagination import SortKey, decode_cursor, encode_cursor, page_of
from gateway.database.tables import Counterfactual, Prediction, Report, SourceImage
from gateway.jobs import jobs
from gateway.results.finding_notes import load_notes, with_notes
from gateway.results.pairing import is_arm_of
from gateway.results.views import counterfactual_views
from shared.problems import NotFound
from shared.schemas.base import Contract
from shared.schemas.result_rows import CounterfactualDetail, CounterfactualView, ResultsPage
from shared.schemas.results import JobResults

Text = Annotated[str, Field(max_length=200)]
Verdict = Literal["accepted", "rejected", "counted", "any"]
ORDER: SortKey = {Counterfactual.position: int, Counterfactual.method: str, Counterfactual.ordinal: int}


class Filters(Contract):
    """Filters of counterfactuals; all of them must match. `value` and `from` match edits with a single change."""

    method: Text | None = None
    factor: Text | None = None
    value: Annotated[Text | None, Field(description="the value that the edit changed to")] = None
    from_value: Annotated[Text | None, Field(alias="from", description="the value that the edit changed")] = None
    label: Annotated[
        Text | None,
        Field(alias="class", description="ground truth of the source image, or a class in its mask"),
    ] = None
    verdict: Annotated[
        Verdict | None, Field(description="counted: accepted, and the arm that it is measured against too")
    ] = None
    check: Annotated[Text | None, Field(description="the check that rejected it")] = None
    flipped: Annotated[bool | None, Field(description="the prediction changed (of `model`, or of any model)")] = None
    model: Annotated[Text | None, Field(description="a model under test with a prediction on it")] = None
    predicted: Annotated[Text | None, Field(description="the class predicted on it (by `model`, or by any model)")] = (
        None
    )
    predicted_original: Annotated[Text | None, Field(description="the class predicted on the source image")] = None
    predicted_null: Annotated[
        Text | None, Field(description="the class predicted on its null arm; without one, on the source image")
    ] = None


class Listing(Filters):
    """Filters and order of a list of counterfactuals."""

    order: Annotated[
        Literal["review"] | None,
        Field(description="review: in the order of `metrics.review`; default: by source image"),
    ] = None


def results_page(
    session: Session, owner: str, job_id: str, listing: Listing, cursor: str | None, limit: int
) -> ResultsPage:
    """The job's metrics and a page of its counterfactuals. Null arms are part of their counterfactual's view."""
    job = jobs.find(session, owner, job_id)
    report = session.get(Report, job_id)
    metrics = with_notes(report.results, load_notes(session, job_id)) if report else None
    if listing.order == "review":
        rows, next_cursor = _review_page(session, job_id, listing, metrics, cursor, limit)
    else:
        rows, next_cursor = page_of(session, matching(job_id, listing), ORDER, cursor, limit)
    return ResultsPage(
        job=job_id,
        state=job.state,
        metrics=metrics,
        counterfactuals=counterfactual_views(session, rows),
        failures=jobs.failures(session, job_id),
        next=next_cursor,
    )


def first_views(session: Session, job_id: str, filters: Filters, limit: int) -> list[CounterfactualView]:
    """The first counterfactuals that match the filters, in the order of their source images."""
    query = matching(job_id, filters).order_by(*ORDER).limit(limit)
    return counterfactual_views(session, session.scalars(query).all())


def _review_page(
    session: Session, job_id: str, filters: Filters, metrics: JobResults | None, cursor: str | None, limit: int
) -> tuple[Sequence[Counterfactual], str | None]:
    """A page of the review list. Its cursor is a position in the list, which changes only with the report."""
    rows = review_list(session, job_id, filters, metrics)
    start = 0 if cursor is None else max(0, int(decode_cursor(cursor, (int,))[0]))
    return rows[start : start + limit], encode_cursor((start + limit,)) if len(rows) > start + limit else None


def review_list(
    session: Session, job_id: str, filters: Filters, metrics: JobResults | None
) -> Sequence[Counterfactual]:
    """The part of the review list that matches the filters, in its order. Empty if the job has no report."""
    positions = {name: position for position, name in enumerate(metrics.review if metrics else ())}
    rows = session.scalars(matching(job_id, filters).where(Counterfactual.id.in_(positions))).all()
    return sorted(rows, key=lambda row: positions[row.id])


def detail(session: Session, owner: str, job_id: str, counterfactual_id: str) -> CounterfactualDetail:
    """One counterfactual with its lineage. Raises NotFound."""
    row = find(session, owner, job_id, counterfactual_id)
    (view,) = counterfactual_views(session, [row])
    return CounterfactualDetail(**view.model_dump(), lineage=row.lineage)


def neighbours(
    session: Session, owner: str, job_id: str, listing: Listing, counterfactual_id: str
) -> tuple[str | None, str | None]:
    """Ids of the previous and the next counterfactual that match the filters. Raises NotFound."""
    row = find(session, owner, job_id, counterfactual_id)
    if listing.order == "review":
        report = session.get(Report, job_id)
        metrics = report.results if report else None
        ids = [None, *(member.id for member in review_list(session, job_id, listing, metrics)), None]
        index = ids.index(row.id) if row.id in ids else 0
        return (ids[index - 1], ids[index + 1]) if index else (None, None)
    key = (row.position, row.method, row.ordinal)
    query = matching(job_id, listing).with_only_columns(Counterfactual.id).limit(1)
    backwards = [column.desc() for column in ORDER]
    before = session.scalar(query.where(tuple_(*ORDER) < key).order_by(*backwards))
    return before, session.scalar(query.where(tuple_(*ORDER) > key).order_by(*ORDER))


def find(session: Session, owner: str, job_id: str, counterfactual_id: str) -> Counterfactual:
    """An edit of the owner's job. Raises NotFound."""
    jobs.find(session, owner, job_id)
    row = session.get(Counterfactual, counterfactual_id)
    if row is None or row.job_id != job_id or row.arm != "edit":
        raise NotFound(f"job {job_id} has no counterfactual {counterfactual_id!r}")
    return row


def matching(job_id: str, filters: Filters) -> Select[Counterfactual]:
    """The edits of a job that match the filters."""
    edits = select(Counterfactual).where(Counterfactual.job_id == job_id, Counterfactual.arm == "edit")
    return edits.where(*conditions(filters))


def has_class(label: str) -> ColumnElement[bool]:
    """Whether a source image's ground truth names the class, as its label or in its mask."""
    classes = cast(SourceImage.mask_classes, Text_)
    texts = {json.dumps(label), json.dumps(label, ensure_ascii=False)}  # SQLite and Postgres store JSON differently
    return or_(SourceImage.ground_truth == label, *(classes.contains(text, autoescape=True) for text in sorted(texts)))


def conditions(filters: Filters) -> list[ColumnElement[bool]]:
    """The filters as SQL conditions on a counterfactual's row."""
    columns = {
        Counterfactual.method: filters.method,
        Counterfactual.factor: filters.factor,
        Counterfactual.to_value: filters.value,
        Counterfactual.from_value: filters.from_value,
        Counterfactual.check: filters.check,
    }
    conditions = [column == value for column, value in columns.items() if value is not None]
    if filters.verdict == "counted":
        conditions.append(Counterfactual.counted.is_(True))
    elif filters.verdict not in (None, "any"):
        conditions.append(Counterfactual.accepted.is_(filters.verdict == "accepted"))
    if filters.label is not None:
        source = select(SourceImage.id).where(SourceImage.id == Counterfactual.source_image_id)
        conditions.append(source.where(has_class(filters.label)).exists())
    if filters.flipped is not None or filters.model is not None:
        predictions = select(Prediction.id).where(Prediction.counterfactual_id == Counterfactual.id)
        if filters.model is not None:
            predictions = predictions.where(Prediction.model == filters.model)
        if filters.flipped is not None:
            predictions = predictions.where(Prediction.flipped.is_(filters.flipped))
        conditions.append(predictions.exists())
    return conditions + predicted_conditions(filters, filters.model)


def flips_by_counterfactual(job_id: str, model: str | None) -> Subquery:
    """By `counterfactual_id`: whether some model (or `model`) `flipped` its prediction, and whether one `kept` it."""
    p = Prediction
    of_model = [] if model is None else [p.model == model]
    flipped = func.max(case((p.flipped.is_(True), 1), else_=0)).label("flipped")
    kept = func.max(case((p.flipped.is_(False), 1), else_=0)).label("kept")
    rows = select(p.counterfactual_id, flipped, kept).where(
        p.job_id == job_id, p.counterfactual_id.is_not(None), *of_model
    )
    return rows.group_by(p.counterfactual_id).subquery()


def predicted_conditions(filters: Filters, model: str | InstrumentedAttribute[str] | None) -> list[ColumnElement[bool]]:
    """The filters by the class that `model` (None: any) predicts: on the counterfactual, its source, its null arm."""
    arm = aliased(Counterfactual)
    of_source = and_(
        Prediction.counterfactual_id.is_(None), Prediction.source_image_id == Counterfactual.source_image_id
    )
    null_arm = select(arm.id).where(arm.arm == "null", is_arm_of(arm, Counterfactual))
    of_null = or_(
        Prediction.counterfactual_id.in_(null_arm.correlate(Counterfactual)),
        and_(Counterfactual.null_ordinal.is_(None), of_source),
    )
    places = (
        (filters.predicted, Prediction.counterfactual_id == Counterfactual.id),
        (filters.predicted_original, of_source),
        (filters.predicted_null, of_null),
    )
    of_model = [] if model is None else [Prediction.model == model]
    return [
        select(Prediction.id)
        .where(place, Prediction.predicted == name, *of_model)
        .correlate_except(Prediction)
        .exists()
        for name, place in places
        if name is not None
    ]
