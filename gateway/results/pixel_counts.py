"""Conditions on confusion counts as `shared.label_maps.pack_counts` stores them: row, column, pixels, row, ...

SQLite and Postgres unfold JSON arrays by functions of their own.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, ColumnElement, Integer, ScalarSelect, String, bindparam
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


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
    unfolded = f"jsonb_array_elements_text({counts}) WITH ORDINALITY AS numbers(number, place)"
    following = f"({counts} ->> CAST(numbers.place AS integer))"  # places count from 1, members of an array from 0
    return (
        f"EXISTS (SELECT 1 FROM {unfolded} WHERE mod(numbers.place - 1, 3) = 0 "
        f"AND CAST(numbers.number AS integer) = {row} AND CAST({following} AS integer) = {column})"
    )
