"""How many counterfactuals each further filter would leave: counts beside the filters of the gallery.

One query groups a job's counterfactuals by everything that they can be filtered by. The counts of every filter follow
from these groups in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import RowMapping, Subquery, case, func, select
from sqlalchemy.orm import Session, aliased

from gateway.database.tables import Counterfactual, Job, Prediction, SourceImage
from gateway.results.counterfactuals import Filters, conditions, predicted_conditions
from gateway.results.recent import Recent
from shared.schemas.effects import Direction

MOST_FACETS = 64  # that a process keeps


class ChangedValue(NamedTuple):
    """A value of a factor that edits change to or from."""

    factor: str
    value: str
    direction: Direction


@dataclass(frozen=True, slots=True)
class Facets:
    """Numbers of counterfactuals: `total` match all filters; each counter is by value, under all other filters.

    `verdicts` has "accepted", "rejected" and "counted"; `flips` has "true" and "false". Values are by number, the
    largest first, except `verdicts` and `flips`. A counterfactual with several changes has no value.
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
    """Counterfactuals that no filter tells apart. `flips`: what models say, under the filter of the model."""

    method: str
    classes: tuple[str, ...]
    changes: tuple[ChangedValue, ...]
    verdicts: tuple[str, ...]
    check: str
    flips: tuple[str, ...]
    predicted: bool
    number: int


class JobFacets:
    """The facets that were looked at last. They are counted again after each change of their job."""

    def __init__(self) -> None:
        self._facets: Recent[Facets] = Recent(MOST_FACETS)

    def find(self, session: Session, job: Job, filters: Filters) -> Facets:
        """The counts of a job under these filters."""
        chosen = _filters_alone(filters)
        return self._facets.find(_key(job, chosen), lambda: load_facets(session, job.id, chosen, job.models))

    def kept(self, job: Job, filters: Filters) -> Facets | None:
        """The same counts if they are in memory."""
        return self._facets.kept(_key(job, _filters_alone(filters)))


def _filters_alone(filters: Filters) -> Filters:
    return Filters.model_construct(**{name: getattr(filters, name) for name in Filters.model_fields})


def _key(job: Job, filters: Filters) -> tuple[str, int, str]:
    return job.id, job.events, filters.model_dump_json()


_Test = Callable[[_Group], bool]
_FACETED = ("method", "factor", "value", "from_value", "label", "verdict", "check", "flipped", "model")
_PREDICTED = ("predicted", "predicted_original", "predicted_null")  # their conditions depend on the model


def load_facets(session: Session, job_id: str, filters: Filters, models: Sequence[str]) -> Facets:
    """The counts of a job under these filters. `models`: of the job; with one of them its counter is empty."""
    groups = _load_groups(session, job_id, filters)
    tests = _tests(filters)

    def count(without: str, values: Callable[[_Group], Iterable[Any]]) -> Counter[Any]:
        counter: Counter[Any] = Counter()
        for group in groups:
            if all(test(group) for name, test in tests.items() if name != without):
                for value in values(group):
                    counter[value] += group.number
        return Counter(dict(counter.most_common()))

    return Facets(
        total=sum(group.number for group in groups if all(test(group) for test in tests.values())),
        classes=count("label", lambda group: group.classes),
        methods=count("method", lambda group: [group.method]),
        changes=count("change", lambda group: group.changes),
        verdicts=count("verdict", lambda group: group.verdicts),
        checks=count("check", lambda group: [group.check] if group.check else []),
        flips=count("flipped", lambda group: group.flips),
        models=_by_model(session, job_id, filters) if len(models) > 1 else Counter(),
    )


def _tests(filters: Filters) -> dict[str, _Test]:
    """Whether a group matches each filter that is set."""
    changed = (filters.factor, filters.value, filters.from_value)
    flipped = None if filters.flipped is None else str(filters.flipped).lower()
    tests: dict[str, tuple[object, _Test]] = {
        "method": (filters.method, lambda group: group.method == filters.method),
        "change": (any(changed) or None, lambda group: _is_changed(group, filters)),
        "label": (filters.label, lambda group: filters.label in group.classes),
        "verdict": (None if filters.verdict == "any" else filters.verdict, lambda g: filters.verdict in g.verdicts),
        "check": (filters.check, lambda group: group.check == filters.check),
        "flipped": (flipped, lambda group: flipped in group.flips),
        "model": (filters.model, lambda group: group.predicted),
    }
    return {name: test for name, (value, test) in tests.items() if value is not None}


def _is_changed(group: _Group, filters: Filters) -> bool:
    """Whether the single change of a group matches factor and values."""
    to = {change.value for change in group.changes if change.direction == "to"}
    before = {change.value for change in group.changes if change.direction == "from"}
    return (
        (filters.factor is None or any(change.factor == filters.factor for change in group.changes))
        and (filters.value is None or filters.value in to)
        and (filters.from_value is None or filters.from_value in before)
    )


def _load_groups(session: Session, job_id: str, filters: Filters) -> list[_Group]:
    c, s, flips = Counterfactual, SourceImage, _flips(job_id, filters.model)
    # Grouped by names: Postgres takes an expression with parameters for another one where it is repeated.
    columns = (
        c.method, c.factor, c.from_value, c.to_value, s.ground_truth, s.mask_classes, c.accepted,
        c.lost_to.label("lost_to"), c.check, flips.c.flipped, flips.c.kept,
    )  # fmt: skip
    names = [column.key for column in columns]
    others = filters.model_copy(update=dict.fromkeys((*_FACETED, *_PREDICTED)))
    predicted = predicted_conditions(filters, filters.model)
    query = (
        select(*columns, func.count().label("number"))
        .join(s, c.source_image_id == s.id)
        .outerjoin(flips, flips.c.counterfactual_id == c.id)
        .where(c.job_id == job_id, c.arm == "edit", *conditions(others), *predicted)
        .group_by(*names)
    )
    return [_group(row._mapping) for row in session.execute(query)]


def _flips(job_id: str, model: str | None) -> Subquery:
    """By counterfactual: whether some model (or `model`) changed its prediction, and whether some kept it; 0 or 1."""
    p = Prediction
    of_model = [] if model is None else [p.model == model]
    flipped = func.max(case((p.flipped.is_(True), 1), else_=0)).label("flipped")
    kept = func.max(case((p.flipped.is_(False), 1), else_=0)).label("kept")
    rows = select(p.counterfactual_id, flipped, kept).where(
        p.job_id == job_id, p.counterfactual_id.is_not(None), *of_model
    )
    return rows.group_by(p.counterfactual_id).subquery()


def _group(row: RowMapping) -> _Group:
    """The group of a row of `_load_groups`."""
    values: tuple[tuple[Direction, str | None], ...] = (("to", row["to_value"]), ("from", row["from_value"]))
    factor, label = row["factor"], row["ground_truth"]
    counted = ("counted",) if row["accepted"] and not row["lost_to"] else ()
    return _Group(
        method=row["method"],
        classes=tuple(dict.fromkeys([*([] if label is None else [label]), *(row["mask_classes"] or [])])),
        changes=tuple(ChangedValue(factor, value, way) for way, value in values if factor and value),
        verdicts=("accepted", *counted) if row["accepted"] else ("rejected",),
        check=row["check"],
        flips=(*(("true",) if row["flipped"] else ()), *(("false",) if row["kept"] else ())),
        predicted=row["flipped"] is not None,
        number=row["number"],
    )


def _by_model(session: Session, job_id: str, filters: Filters) -> Counter[str]:
    """The number of counterfactuals with a prediction of each model; with the filter of flips, of those flips."""
    c, p = Counterfactual, aliased(Prediction)
    others = filters.model_copy(update=dict.fromkeys(("model", "flipped", *_PREDICTED)))
    predicted = predicted_conditions(filters, p.model)
    flips = [] if filters.flipped is None else [p.flipped.is_(filters.flipped)]
    query = (
        select(p.model, func.count())
        .join(c, p.counterfactual_id == c.id)
        .where(p.job_id == job_id, c.arm == "edit", *conditions(others), *predicted, *flips)
        .group_by(p.model)
    )
    return Counter({row.model: row[1] for row in session.execute(query)})
