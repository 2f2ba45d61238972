"""Rate limits in a row, on the database's clock: they hold across any number of gateways (docs/decisions/access.md).

A column in seconds since 1970 says until when an allowance is used up. Each use moves it ahead by its share of the
period, from now at the earliest. A use that would move it more than a period ahead of now is refused.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Float, SQLColumnExpression, case
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

MINUTE, HOUR = 60.0, 3600.0  # periods, in seconds


def moved_ahead(until: SQLColumnExpression[float], seconds: SQLColumnExpression[Any] | float) -> ColumnElement[float]:
    """The new value of the column after a use of `seconds`, its share of the period."""
    return case((until > epoch_now(), until), else_=epoch_now()) + seconds


def is_within(until: ColumnElement[float], period: float) -> ColumnElement[bool]:
    """Whether the new value is at most a period ahead of now."""
    return until <= epoch_now() + period


def seconds_to_wait(until: ColumnElement[float], period: float) -> ColumnElement[float]:
    """How long until the use would be within the limit; negative if it is now."""
    return until - epoch_now() - period


class epoch_now(GenericFunction[float]):
    """SQL: seconds since 1970 on the database's clock."""

    type = Float()
    inherit_cache = True


@compiles(epoch_now, "postgresql")
def _epoch_postgresql(element: epoch_now, compiler: SQLCompiler, **kwargs: Any) -> str:
    return "CAST(extract(epoch FROM statement_timestamp()) AS double precision)"


@compiles(epoch_now, "sqlite")
def _epoch_sqlite(element: epoch_now, compiler: SQLCompiler, **kwargs: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"
