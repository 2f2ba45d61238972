"""How many counterfactuals each further filter would leave: counts beside the filters of the gallery.

One query groups a job's counterfactuals by everything that they can be filtered by. The counts of every filter follow
from these groups in memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, RowMapping, Text, and_, case, cast, func, select, true
from sqlalchemy.orm import Session, aliased

from gateway.database.tables import Counterfactual, Job, Prediction, SourceImage
from gateway.results.filters import PREDICTED, Filters, conditions, flips_by_counterfactual, predicted_conditions
from gateway.results.recent import Recent
from shared.schemas.effects import Direction

MOST_FACETS = 64  # that a process keeps
_FAILED = "failed_"  # begins the names of columns: whether a group fails the filters of a counter


class ChangedValue(NamedTuple):
    """A value of a factor that edits change to or from."""

    factor: str
    value: str
    direction: Direction


@dataclass(frozen=True, slots=True)
class Facets:
    """Numbers of counterfactuals: `total` match all filters; each counter is by value, under all other filters.

    `verdicts` has "accepted", "rejected" and "counted"; `flips` has "true" and "false". Values are by number, the
    largest first, except `verdicts` and `flips`. A counterfactual with several changes counts for each of them.
    """

    total: int
    classes: Counter[str]
    methods: Counter[str]
    changes: Counter[ChangedValue]
    verdicts: Counter[str]
    checks: Counter[str]
    flips: Counter[str]
    models: Counter[str]


NOT_COUNTED = Facets(0, *(Counter() for _ in range(7)))  # in place of the counts of a large job


@dataclass(frozen=True, slots=True)
class _Group:
    """Counterfactuals that no filter tells apart. `flips`: what models say, under the filter of the model.

    `failed`: the counters whose own filters they do not match.
    """

    method: str
    classes: tuple[str, ...]
    changes: tuple[ChangedValue, ...]
    verdicts: tuple[str, ...]
    check: str
    flips: tuple[str, ...]
    failed: frozenset[str]
    number: int


class JobFacets:
    """The facets that were looked at last. They are counted again after each change of their job."""

    def __init__(self) -> None:
        self._facets: Recent[Facets] = Recent(MOST_FACETS)

    def find(self, session: Session, job: Job, filters: Filters) -> Facets:
        """The counts of a job under these filters."""
        chosen = _filters_alone(filters)
        return self._facets.find(_key(job, chosen), lambda: load_facets(session, job.id, chosen, job.models))

    def cached(self, job: Job, filters: Filters) -> Facets | None:
        """The same counts if they are in memory."""
        return self._facets.cached(_key(job, _filters_alone(filters)))


def _filters_alone(filters: Filters) -> Filters:
    return Filters.model_construct(**{name: getattr(filters, name) for name in Filters.model_fields})


def _key(job: Job, filters: Filters) -> tuple[str, int, str]:
    return job.id, job.events, filters.model_dump_json()


# The filters that each counter leaves out.
_OWN_FILTERS = {
    "method": ("method",),
    "change": ("factor", "value", "from_value"),
    "label": ("label",),
    "verdict": ("verdict",),
    "check": ("check",),
    "flipped": ("flipped",),
    "model": ("model",),
}
_FACETED = [field for fields in _OWN_FILTERS.values() for field in fields]


def load_facets(session: Session, job_id: str, filters: Filters, models: Sequence[str]) -> Facets:
    """The counts of a job under these filters. `models`: of the job; with one of them its counter is empty."""
    groups = _load_groups(session, job_id, filters)

    def count(without: str, values: Callable[[_Group], Iterable[Any]]) -> Counter[Any]:
        counter: Counter[Any] = Counter()
        for group in groups:
            if group.failed <= {without}:
                for value in values(group):
                    counter[value] += group.number
        return Counter(dict(counter.most_common()))

    return Facets(
        total=sum(group.number for group in groups if not group.failed),
        classes=count("label", lambda group: group.classes),
        methods=count("method", lambda group: [group.method]),
        changes=count("change", lambda group: group.changes),
        verdicts=count("verdict", lambda group: group.verdicts),
        checks=count("check", lambda group: [group.check] if group.check else []),
        flips=count("flipped", lambda group: group.flips),
        models=_by_model(session, job_id, filters) if len(models) > 1 else Counter(),
    )


def _separate_conditions(filters: Filters) -> dict[str, ColumnElement[bool]]:
    """The condition of each counter's own filters, if they are set."""
    unset = filters.model_copy(update=dict.fromkeys(Filters.model_fields))
    separate = {}
    for name, fields in _OWN_FILTERS.items():
        own = {field: getattr(filters, field) for field in fields}
        if any(value is not None for value in own.values()):
            with_model = {"model": filters.model} if name == "flipped" else {}
            separate[name] = and_(true(), *conditions(unset.model_copy(update=own | with_model)))
    return separate


def _load_groups(session: Session, job_id: str, filters: Filters) -> list[_Group]:
    # Another name, because a filter asks for the source image, too.
    c, s, flips = Counterfactual, aliased(SourceImage), flips_by_counterfactual(job_id, filters.model)
    # Grouped by names: Postgres takes an expression with parameters for another one where it is repeated.
    columns = (
        c.method, c.factor, c.from_value, c.to_value, s.ground_truth, s.mask_classes, c.accepted,
        c.counted.label("counted"), c.check, flips.c.flipped, flips.c.kept,
        case((c.factor.is_(None), cast(c.changes, Text))).label("several"),
    )  # fmt: skip
    failed = [
        case((matches, 0), else_=1).label(f"{_FAILED}{name}") for name, matches in _separate_conditions(filters).items()
    ]
    names = [*(column.key for column in columns), *(column.name for column in failed)]
    others = filters.model_copy(update=dict.fromkeys((*_FACETED, *PREDICTED)))
    predicted = predicted_conditions(filters, filters.model)
    query = (
        select(*columns, *failed, func.count().label("number"))
        .join(s, c.source_image_id == s.id)
        .outerjoin(flips, flips.c.counterfactual_id == c.id)
        .where(c.job_id == job_id, c.arm == "edit", *conditions(others), *predicted)
        .group_by(*names)
    )
    return [_group(row._mapping) for row in session.execute(query)]


def _group(row: RowMapping) -> _Group:
    """The group of a row of `_load_groups`."""
    label = row["ground_truth"]
    changes: list[Mapping[str, str | None]] = json.loads(row["several"]) if row["several"] else [dict(row)]
    counted = ("counted",) if row["counted"] else ()
    failed = (name.removeprefix(_FAILED) for name, value in row.items() if name.startswith(_FAILED) and value)
    return _Group(
        method=row["method"],
        classes=tuple(dict.fromkeys([*([] if label is None else [label]), *(row["mask_classes"] or [])])),
        changes=tuple(dict.fromkeys(value for change in changes for value in _values(change))),
        verdicts=("accepted", *counted) if row["accepted"] else ("rejected",),
        check=row["check"],
        flips=(*(("true",) if row["flipped"] else ()), *(("false",) if row["kept"] else ())),
        failed=frozenset(failed),
        number=row["number"],
    )


def _values(change: Mapping[str, str | None]) -> Iterator[ChangedValue]:
    """The values that a change goes to and comes from, those that are known."""
    values: tuple[tuple[Direction, str | None], ...] = (("to", change["to_value"]), ("from", change["from_value"]))
    for direction, value in values:
        if change["factor"] and value:
            yield ChangedValue(change["factor"], value, direction)


def _by_model(session: Session, job_id: str, filters: Filters) -> Counter[str]:
    """The number of counterfactuals with a prediction of each model; with the filter of flips, of those flips."""
    c, p = Counterfactual, aliased(Prediction)
    others = filters.model_copy(update=dict.fromkeys(("model", "flipped", *PREDICTED)))
    predicted = predicted_conditions(filters, p.model)
    flips = [] if filters.flipped is None else [p.flipped.is_(filters.flipped)]
    query = (
        select(p.model, func.count())
        .join(c, p.counterfactual_id == c.id)
        .where(p.job_id == job_id, c.arm == "edit", *conditions(others), *predicted, *flips)
        .group_by(p.model)
    )
    return Counter({row.model: row[1] for row in session.execute(query)})
