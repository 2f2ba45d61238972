"""Filters of counterfactuals as SQL conditions: what API, gallery, map and exports choose images by.

Conditions on confusion counts as `shared.media.label_maps.pack_counts` stores them: row, column, pixels, row, ...

SQLite and Postgres unfold JSON arrays by functions of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from sqlalchemy import (
    Boolean,
    ColumnElement,
    Integer,
    ScalarSelect,
    String,
    Subquery,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy import Text as Text_
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import InstrumentedAttribute, aliased
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from gateway.analysis.detection import MEDIUM, SMALL
from gateway.database.tables import Counterfactual, Job, Prediction, SourceImage, has_class, has_text
from gateway.results.pairing import is_arm_of
from shared.schemas.base import Contract
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.metrics import ObjectSize

_SIDES = ((0, 2), (1, 3))  # of a box: left and right, top and bottom
_ERRORS = (("objects", "outcome"), ("extras", "why"))  # of what a detector makes of an image
MOST_CHANGES = 5  # of one edit, as the parameters of the methods have it
Text = Annotated[str, Field(max_length=200)]
Verdict = Literal["accepted", "rejected", "counted", "any"]
PredictedArm = Literal["counterfactual", "original", "null"]
ObjectError = Literal["missed", "mislocated", "misclassified", "hallucination", "duplicate"]
_NOT_FOUND: tuple[ObjectError, ...] = ("missed", "mislocated", "misclassified")
_AREAS: Mapping[ObjectSize | None, tuple[float, float]] = {  # square pixels
    None: (-1.0, 1e30),
    "small": (-1.0, float(SMALL)),
    "medium": (float(SMALL), float(MEDIUM)),
    "large": (float(MEDIUM), 1e30),
}
Model = str | InstrumentedAttribute[str] | None  # a name, the model of an outer query, or any


class Filters(Contract):
    """Filters of counterfactuals; all of them must match. `factor`, `value` and `from` match one change of an edit."""

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
    arm_check: Annotated[Text | None, Field(description="the check that its null or sham arm failed")] = None
    rendered: Annotated[bool | None, Field(description="whether it has an image")] = None
    unchecked: Annotated[
        Literal["shapes", "recaption"] | None, Field(description="rendered, but this check could not be made")
    ] = None
    flipped: Annotated[bool | None, Field(description="the prediction changed (of `model`, or of any model)")] = None
    model: Annotated[Text | None, Field(description="a model under test with a prediction on it")] = None
    predicted: Annotated[Text | None, Field(description="the class predicted on it (by `model`, or by any model)")] = (
        None
    )
    predicted_original: Annotated[Text | None, Field(description="the class predicted on the source image")] = None
    predicted_null: Annotated[
        Text | None, Field(description="the class predicted on its null arm; without one, on the source image")
    ] = None
    scored: Annotated[
        Text | None,
        Field(description=f"a class in the reference of a segmenter's prediction on it; `{ALL_CLASSES}`: any class"),
    ] = None
    on: Annotated[
        PredictedArm | None,
        Field(description="the image whose prediction the next filters are about; default: the counterfactual"),
    ] = None
    confidence_from: Annotated[float | None, Field(ge=0, le=1, description="the least top probability")] = None
    confidence_below: Annotated[float | None, Field(ge=0, le=1, description="the top probability is lower")] = None
    other_than: Annotated[
        list[Text] | None, Field(min_length=1, max_length=100, description="the predicted class is none of these")
    ] = None
    pixels: Annotated[
        list[Text] | None,
        Field(
            min_length=1,
            max_length=2,
            description="a class of the reference and the class that a segmenter takes some of its pixels for; without "
            "the second, a class that the job does not have",
        ),
    ] = None
    error: Annotated[
        ObjectError | None, Field(description="a detector makes this error: of an object, or a box beside the objects")
    ] = None
    size: Annotated[
        ObjectSize | None,
        Field(description="that object or box is of COCO's size; without `error`, an object that is not found is"),
    ] = None


PREDICTED = (  # their conditions depend on the model
    "predicted", "predicted_original", "predicted_null", "scored", "on", "confidence_from", "confidence_below",
    "other_than", "pixels", "error", "size",
)  # fmt: skip


def conditions(filters: Filters) -> list[ColumnElement[bool]]:
    """The filters as SQL conditions on a counterfactual's row."""
    columns = {Counterfactual.method: filters.method, Counterfactual.check: filters.check}
    matches: list[ColumnElement[bool]] = [column == value for column, value in columns.items() if value is not None]
    matches += _change_conditions(filters) + _verdict_conditions(filters)
    if filters.label is not None:
        source = select(SourceImage.id).where(SourceImage.id == Counterfactual.source_image_id)
        matches.append(source.where(has_class(filters.label)).exists())
    if filters.flipped is not None or filters.model is not None:
        predictions = select(Prediction.id).where(Prediction.counterfactual_id == Counterfactual.id)
        if filters.model is not None:
            predictions = predictions.where(Prediction.model == filters.model)
        if filters.flipped is not None:
            predictions = predictions.where(Prediction.flipped.is_(filters.flipped))
        matches.append(predictions.exists())
    return matches + predicted_conditions(filters, filters.model)


def _change_conditions(filters: Filters) -> list[ColumnElement[bool]]:
    """Whether one change of an edit has the factor and the values; the columns repeat single changes only."""
    c = Counterfactual
    wanted = {"factor": filters.factor, "to_value": filters.value, "from_value": filters.from_value}
    chosen = {name: value for name, value in wanted.items() if value is not None}
    if not chosen:
        return []
    single = and_(*(getattr(c, name) == value for name, value in chosen.items()))
    several = or_(
        *(
            and_(*(c.changes[(place, name)].as_string() == value for name, value in chosen.items()))
            for place in range(MOST_CHANGES)
        )
    )
    return [or_(single, and_(c.factor.is_(None), several))]


def _verdict_conditions(filters: Filters) -> list[ColumnElement[bool]]:
    c = Counterfactual
    matches: list[ColumnElement[bool]] = []
    if filters.verdict == "counted":
        matches.append(c.counted.is_(True))
    elif filters.verdict not in (None, "any"):
        matches.append(c.accepted.is_(filters.verdict == "accepted"))
    if filters.arm_check is not None:
        matches.append(c.lost_to == filters.arm_check)
    if filters.rendered is not None:
        matches.append(c.image_digest.is_not(None) if filters.rendered else c.image_digest.is_(None))
    if filters.unchecked is not None:
        matches += [c.image_digest.is_not(None), c.scores[filters.unchecked].as_float().is_(None)]
    return matches


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


def predicted_conditions(filters: Filters, model: Model) -> list[ColumnElement[bool]]:
    """The filters by what `model` (None: any) predicts: on the counterfactual, its source image, its null arm."""
    p = Prediction
    predicted: Mapping[PredictedArm, str | None] = {
        "counterfactual": filters.predicted,
        "original": filters.predicted_original,
        "null": filters.predicted_null,
    }
    of_model = [] if model is None else [p.model == model]
    matches: list[ColumnElement[bool]] = []
    for arm, place in _places().items():
        wanted: list[ColumnElement[bool]] = [] if predicted[arm] is None else [p.predicted == predicted[arm]]
        if arm == "counterfactual" and filters.scored is not None:
            wanted.append(_is_scored(filters.scored))
        if arm == (filters.on or "counterfactual"):
            wanted += _prediction_conditions(filters)
        if wanted:
            matches.append(select(p.id).where(place, *wanted, *of_model).correlate_except(p, Job).exists())
    return matches


def _places() -> Mapping[PredictedArm, ColumnElement[bool]]:
    """Whether a prediction is that for an image of a counterfactual's triple."""
    p, arm = Prediction, aliased(Counterfactual)
    of_source = and_(p.counterfactual_id.is_(None), p.source_image_id == Counterfactual.source_image_id)
    null_arm = select(arm.id).where(arm.arm == "null", is_arm_of(arm, Counterfactual)).correlate(Counterfactual)
    return {
        "counterfactual": p.counterfactual_id == Counterfactual.id,
        "original": of_source,
        "null": or_(p.counterfactual_id.in_(null_arm), and_(Counterfactual.null_ordinal.is_(None), of_source)),
    }


def _prediction_conditions(filters: Filters) -> list[ColumnElement[bool]]:
    p = Prediction
    matches: list[ColumnElement[bool]] = []
    if filters.confidence_from is not None:
        matches.append(p.probability >= filters.confidence_from)
    if filters.confidence_below is not None:
        matches.append(p.probability < filters.confidence_below)
    if filters.other_than is not None:
        matches.append(p.predicted.not_in(filters.other_than))
    if filters.pixels is not None:
        classes = select(Job.classes).where(Job.id == p.job_id).correlate(p).scalar_subquery()
        row, column = (place_of(classes, name) for name in (*filters.pixels, None)[:2])
        matches.append(has_pixels(p.detail["confusion"], row, column))
    if filters.error is not None or filters.size is not None:
        errors = _NOT_FOUND if filters.error is None else (filters.error,)
        low, high = _AREAS[filters.size]
        matches.append(or_(*(_HasError(p.detail, *map(literal, (name, low, high) * 2)) for name in errors)))
    return matches


def _is_scored(label: str) -> ColumnElement[bool]:
    return has_text(cast(Prediction.scores, Text_), label, ": ")


class _PlaceOf(FunctionElement[int]):
    """The place of a string in a JSON array of strings, from 0; null if it is not there."""

    name = "place_of"
    type = Integer()
    inherit_cache = True


class _HasPixels(FunctionElement[bool]):
    """Whether packed confusion counts have pixels in a row and column."""

    name = "has_pixels"
    type = Boolean()
    inherit_cache = True


def place_of(classes: ScalarSelect[Any], name: str | None) -> ColumnElement[int]:
    """The row or column of a class in confusion counts; None: the column of classes that the job does not have.

    `classes`: the JSON array of the job's classes.
    """
    if name is None:
        return _LengthOf(classes)
    return _PlaceOf(classes, bindparam(None, name, String()))


def has_pixels(counts: ColumnElement[Any], row: ColumnElement[int], column: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether packed confusion counts have pixels of the class in `row` that the model takes for that in `column`."""
    return _HasPixels(counts, row, column)


class _LengthOf(FunctionElement[int]):
    """The length of a JSON array."""

    name = "length_of"
    type = Integer()
    inherit_cache = True


class _HasError(FunctionElement[bool]):
    """Whether a detector's prediction has an object with an outcome, or a box beside them for a reason, of some area.

    The details of the prediction, then twice: the outcome, the least area, and the area that is too large.
    """

    name = "has_error"
    type = Boolean()
    inherit_cache = True


def _parts(element: FunctionElement[Any], compiler: SQLCompiler, **options: Any) -> list[str]:
    return [compiler.process(clause, **options) for clause in element.clauses]


@compiles(_PlaceOf, "sqlite")
def _place_on_sqlite(element: _PlaceOf, compiler: SQLCompiler, **options: Any) -> str:
    classes, name = _parts(element, compiler, **options)
    return f"(SELECT key FROM json_each({classes}) WHERE value = {name})"


@compiles(_PlaceOf, "postgresql")
def _place_on_postgres(element: _PlaceOf, compiler: SQLCompiler, **options: Any) -> str:
    classes, name = _parts(element, compiler, **options)
    unfolded = f"jsonb_array_elements_text({classes}) WITH ORDINALITY AS named(name, place)"
    return f"(SELECT named.place - 1 FROM {unfolded} WHERE named.name = {name})"


@compiles(_LengthOf, "sqlite")
def _length_on_sqlite(element: _LengthOf, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_array_length({_parts(element, compiler, **options)[0]})"


@compiles(_LengthOf, "postgresql")
def _length_on_postgres(element: _LengthOf, compiler: SQLCompiler, **options: Any) -> str:
    return f"jsonb_array_length({_parts(element, compiler, **options)[0]})"


@compiles(_HasPixels, "sqlite")
def _has_pixels_on_sqlite(element: _HasPixels, compiler: SQLCompiler, **options: Any) -> str:
    counts, row, column = _parts(element, compiler, **options)
    following = f"json_extract({counts}, '$[' || (numbers.key + 1) || ']')"
    return (
        f"EXISTS (SELECT 1 FROM json_each({counts}) AS numbers "
        f"WHERE numbers.key % 3 = 0 AND numbers.value = {row} AND {following} = {column})"
    )


@compiles(_HasPixels, "postgresql")
def _has_pixels_on_postgres(element: _HasPixels, compiler: SQLCompiler, **options: Any) -> str:
    counts, row, column = _parts(element, compiler, **options)
    known = f"CASE jsonb_typeof({counts}) WHEN 'array' THEN {counts} END"  # else null: no rows
    unfolded = f"jsonb_array_elements_text({known}) WITH ORDINALITY AS numbers(number, place)"
    following = f"({counts} ->> CAST(numbers.place AS integer))"  # places count from 1, members of an array from 0
    return (
        f"EXISTS (SELECT 1 FROM {unfolded} WHERE mod(numbers.place - 1, 3) = 0 "
        f"AND CAST(numbers.number AS integer) = {row} AND CAST({following} AS integer) = {column})"
    )


@compiles(_HasError, "sqlite")
def _has_error_on_sqlite(element: _HasError, compiler: SQLCompiler, **options: Any) -> str:
    detail, *limits = _parts(element, compiler, **options)
    sides = [
        f"json_extract(it.value, '$.box[{end}]') - json_extract(it.value, '$.box[{start}]')" for start, end in _SIDES
    ]
    area = f"coalesce(json_extract(it.value, '$.area'), ({sides[0]}) * ({sides[1]}))"
    return _any_of(
        [
            f"SELECT 1 FROM json_each({detail}, '$.detected.{part}') AS it "
            f"WHERE json_extract(it.value, '$.{key}') = {name} AND {area} >= {low} AND {area} < {high}"
            for (part, key), (name, low, high) in zip(_ERRORS, (limits[:3], limits[3:]), strict=True)
        ]
    )


@compiles(_HasError, "postgresql")
def _has_error_on_postgres(element: _HasError, compiler: SQLCompiler, **options: Any) -> str:
    detail, *limits = _parts(element, compiler, **options)
    corner = "CAST(it.value -> 'box' ->> {} AS double precision)"
    sides = [f"{corner.format(end)} - {corner.format(start)}" for start, end in _SIDES]
    area = f"coalesce(CAST(it.value ->> 'area' AS double precision), ({sides[0]}) * ({sides[1]}))"
    parts = []
    for (part, key), (name, low, high) in zip(_ERRORS, (limits[:3], limits[3:]), strict=True):
        known = f"{detail} -> 'detected' -> '{part}'"
        unfolded = f"jsonb_array_elements(CASE jsonb_typeof({known}) WHEN 'array' THEN {known} END) AS it(value)"
        parts.append(
            f"SELECT 1 FROM {unfolded} WHERE it.value ->> '{key}' = {name} AND {area} >= {low} AND {area} < {high}"
        )
    return _any_of(parts)


def _any_of(queries: list[str]) -> str:
    return f"({' OR '.join(f'EXISTS ({query})' for query in queries)})"
