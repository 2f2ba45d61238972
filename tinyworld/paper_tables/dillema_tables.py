"""DILLEMA's results in kind: validity and errors, which tests find faults, and what retraining wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shared.schemas.results import MeanOverlap, Rate
from tinyworld.measure.repair_records import MeasuredRepairs, MeasuredRoadRepairs, RepairMeasurement, road_table, table
from tinyworld.paper_tables.arms import ARMS
from tinyworld.paper_tables.printing import NOTHING, at, grid, number, rate
from tinyworld.paper_tables.rows import ArmRow, Faults, ModelFigures

Rows = Sequence[ArmRow]
NAMING_NO_VALUES = ("lance-r", "reconstruction", "corruptions")  # methods that do not change a factor to a value
LEAST = 5  # counterfactuals of a value, for a line of its own


def dillema_table(rows: Rows) -> str:
    """DILLEMA's table I in kind: validity, error rates before and after, and images of which all or none fail."""
    body = []
    for row in (row for row in rows if row.method == "dillema"):
        for one in row.models:
            shares = one.metrics.all_or_none
            body.append(
                [
                    ARMS[row.arm].title,
                    one.model,
                    rate(row.all_factors.kept),
                    rate(row.all_factors.kept_flipped),
                    _error(one),
                    rate(one.metrics.error_rate_null),
                    rate(one.metrics.error_rate),
                    NOTHING if shares is None else f"{rate(shares.all_fail)}, k = {shares.k}",
                    NOTHING if shares is None else rate(shares.none_fail),
                ]
            )
    if not body:
        return ""
    heads = ["", "model", "label kept", "… of flipped", "error, originals", "null arms", "counterfactuals", "all fail"]
    return (
        "### Validity and errors (DILLEMA, table I)\n\n"
        "The paper (ImageNet): labels kept 99.7 %, 82.7 % of misclassified ones; errors 5.26 → 53.29 % (ResNet18), "
        "2.55 → 45.47 (50), 1.47 → 42.33 (152); all of an image's counterfactuals fail for 33.29 %, none for "
        "24.85 %.\n\n" + grid([*heads, "none fails"], body)
    )


def faults_by_class(rows: Rows) -> str:
    """Its second question in kind: errors of each model on each class, on the originals and under every method."""
    body = _matrix(rows, "class")
    if not body:
        return ""
    return (
        "### Which tests find faults, by class (DILLEMA, second question)\n\n"
        "Errors of all accepted images; first the classes that fail most.\n\n" + grid(_heads(rows, "class"), body)
    )


def faults_by_value(rows: Rows) -> str:
    """The same by the value that was changed to: the conditions under which a model fails."""
    some = [row for row in rows if row.method not in NAMING_NO_VALUES]
    body = _matrix(some, "value")
    if not body:
        return ""
    return (
        "### Which tests find faults, by condition (DILLEMA, second question)\n\n"
        f"Errors by the value that was changed to, of values with {LEAST} accepted images of a method or more. Null "
        "arms: the same source images and seeds, nothing changed.\n\n" + grid(_heads(some, "value"), body)
    )


def _heads(rows: Rows, of: str) -> list[str]:
    return [of, "model", "originals", "null arms", *(ARMS[row.arm].title for row in rows), "mostly called"]


def _matrix(rows: Rows, of: str) -> list[list[str]]:
    """A line per model and name, the most errors of all arms together first; a column per arm."""
    lines: dict[tuple[str, str], dict[str, Faults]] = {}
    for row in rows:
        for one in row.faults:
            if one.of == of:
                lines.setdefault((one.model, one.name), {})[row.arm] = one
    shown = {
        key: found for key, found in lines.items() if max(one.counterfactuals.n for one in found.values()) >= LEAST
    }
    return [
        [
            name,
            model,
            rate(_most(found, lambda one: one.originals)),
            rate(_most(found, lambda one: one.nulls)),
            *(rate(found[row.arm].counterfactuals) if row.arm in found else NOTHING for row in rows),
            _called(list(found.values())),
        ]
        for (model, name), found in sorted(shown.items(), key=lambda item: (item[0][0], -_share(item[1]), item[0][1]))
    ]


def _most(found: dict[str, Faults], asked: Callable[[Faults], Rate]) -> Rate:
    """That of the arm with the most images: an arm only has those whose counterfactuals were accepted."""
    return max(map(asked, found.values()), key=lambda one: one.n)


def _share(found: dict[str, Faults]) -> float:
    rates = [one.counterfactuals for one in found.values()]
    return sum(one.count for one in rates) / max(1, sum(one.n for one in rates))


def _called(found: Sequence[Faults]) -> str:
    """What wrongly named images are called most, over all arms: "truck (12 of 15)"."""
    called: dict[str, int] = {}
    for one in found:
        for name, count in one.called.items():
            called[name] = called.get(name, 0) + count
    if not called:
        return NOTHING
    name = max(called, key=lambda one: called[one])
    return f"{name} ({called[name]} of {sum(called.values())})"


def repairs(measured: Sequence[MeasuredRepairs]) -> str:
    """Its third question in kind: accuracy before and after retraining, beside controls of as many steps."""
    if not measured:
        return ""
    parts = [
        "### What retraining wins (DILLEMA, third question)\n\n"
        "Right on renders of the planted class: as it is, with the planted value truly there, then with it after equal "
        "steps of each arm ([repair](repair.md)). The paper: +52.27 points on generated images."
    ]
    for one in measured:
        parts += [table(one), _before_and_after(one)]
    return "\n\n".join(part for part in parts if part)


def road_repairs(measured: Sequence[MeasuredRoadRepairs]) -> str:
    """The same of segmenters on driving scenes, in IoU and in pedestrians that are found."""
    if not measured:
        return ""
    parts = [
        "### What retraining wins on driving scenes (DILLEMA, third question)\n\n"
        "IoU of the planted class per scene, on renders that hold it: as they are, with the planted value truly there, "
        "then with it after equal steps of each arm; of all pixels below, and pedestrians of which most pixels are "
        "named ([repair](repair.md)). The paper: mIoU 85.32 → 88.76 and 72.45 → 80.32, pedestrians found 38 → 62 %."
    ]
    for one in measured:
        parts += [road_table(one), _before_and_after(one)]
    return "\n\n".join(part for part in parts if part)


def _before_and_after(measured: RepairMeasurement) -> str:
    body = [
        [
            model.model,
            found.set,
            str(found.sources),
            *(_level(arm.accuracy) for arm in found.arms),
        ]
        for model in measured.models
        for found in model.sets
    ]
    if not body:
        return ""
    arms = [arm.arm for arm in measured.models[0].sets[0].arms]
    said = "Held-out source images and their own counterfactuals, before and after:"
    return f"{said}\n\n{grid(['model', 'judged on', 'source images', *arms], body)}"


def _level(accuracy: Rate | MeanOverlap) -> str:
    if isinstance(accuracy, Rate):
        return rate(accuracy)
    return f"{number(accuracy.value, 3)} ({accuracy.low:.2f}–{accuracy.high:.2f})"


def _error(one: ModelFigures) -> str:
    found = at(one, 1)
    if found is None or found.originals.value is None:
        return NOTHING
    n, right = found.originals.n, found.originals.count
    return f"{100 * (1 - found.originals.value):.0f} % ({n - right}/{n})"
