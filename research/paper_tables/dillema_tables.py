"""DILLEMA's tables on tinyworld: validity and errors, fault detection, and retraining."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from research.measure.repair.printing import object_table, road_table
from research.measure.repair.records import MeasuredObjectRepairs, MeasuredRoadRepairs, RepairMeasurement
from research.paper_tables.arms import ARMS
from research.paper_tables.printing import NOTHING, at, grid, number, rate
from research.paper_tables.rows import ArmRow, Faults, ModelFigures
from shared.schemas.effects import MeanOverlap, Rate

Rows = Sequence[ArmRow]
NAMING_NO_VALUES = ("lance-r", "reconstruction", "corruptions")  # methods that do not change a factor to a value
LEAST = 5  # the least counterfactuals of a value with a separate line


def dillema_table(rows: Rows) -> str:
    """Like DILLEMA's table I: validity, errors before and after, images whose counterfactuals all or none fail."""
    body = []
    for row in (row for row in rows if row.method == "dillema"):
        for model in row.models:
            shares = model.metrics.all_or_none
            body.append(
                [
                    ARMS[row.arm].title,
                    model.model,
                    rate(row.all_factors.kept),
                    rate(row.all_factors.kept_flipped),
                    _error(model),
                    rate(model.metrics.error_rate_null),
                    rate(model.metrics.error_rate),
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
    """DILLEMA's second question: errors of each model on each class, on the originals and under every method."""
    body = _matrix(rows, "class")
    if not body:
        return ""
    return (
        "### Which tests find faults, by class (DILLEMA, second question)\n\n"
        "Errors of all accepted images; first the classes that fail most.\n\n" + grid(_heads(rows, "class"), body)
    )


def faults_by_value(rows: Rows) -> str:
    """The same by the new value of the change: the conditions under which a model fails."""
    named = [row for row in rows if row.method not in NAMING_NO_VALUES]
    body = _matrix(named, "value")
    if not body:
        return ""
    return (
        "### Which tests find faults, by condition (DILLEMA, second question)\n\n"
        f"Errors by the value that was changed to, of values with {LEAST} accepted images of a method or more. Null "
        "arms: the same source images and seeds, nothing changed.\n\n" + grid(_heads(named, "value"), body)
    )


def _heads(rows: Rows, of: str) -> list[str]:
    return [of, "model", "originals", "null arms", *(ARMS[row.arm].title for row in rows), "mostly called"]


def _matrix(rows: Rows, of: str) -> list[list[str]]:
    """A line per model and name, the most errors of all arms together first; a column per arm."""
    lines: dict[tuple[str, str], dict[str, Faults]] = {}
    for row in rows:
        for faults in row.faults:
            if faults.of == of:
                lines.setdefault((faults.model, faults.name), {})[row.arm] = faults
    enough_images = {
        key: by_arm
        for key, by_arm in lines.items()
        if max(faults.counterfactuals.n for faults in by_arm.values()) >= LEAST
    }
    return [
        [
            name,
            model,
            rate(_most(by_arm, lambda faults: faults.originals)),
            rate(_most(by_arm, lambda faults: faults.nulls)),
            *(rate(by_arm[row.arm].counterfactuals) if row.arm in by_arm else NOTHING for row in rows),
            _display_name(list(by_arm.values())),
        ]
        for (model, name), by_arm in sorted(
            enough_images.items(), key=lambda item: (item[0][0], -_share(item[1]), item[0][1])
        )
    ]


def _most(by_arm: dict[str, Faults], rate_of: Callable[[Faults], Rate]) -> Rate:
    """The rate of the arm with the most images. An arm only has images with accepted counterfactuals."""
    return max(map(rate_of, by_arm.values()), key=lambda candidate: candidate.n)


def _share(by_arm: dict[str, Faults]) -> float:
    rates = [share.counterfactuals for share in by_arm.values()]
    return sum(share.count for share in rates) / max(1, sum(share.n for share in rates))


def _display_name(all_faults: Sequence[Faults]) -> str:
    """The most frequent wrong prediction over all arms: "truck (12 of 15)"."""
    called: dict[str, int] = {}
    for faults in all_faults:
        for name, count in faults.called.items():
            called[name] = called.get(name, 0) + count
    if not called:
        return NOTHING
    name = max(called, key=lambda name: called[name])
    return f"{name} ({called[name]} of {sum(called.values())})"


def object_repairs(measured: Sequence[MeasuredObjectRepairs]) -> str:
    """DILLEMA's third question: accuracy before and after retraining, with controls of equally many steps."""
    if not measured:
        return ""
    parts = [
        "### What retraining wins (DILLEMA, third question)\n\n"
        "Right on renders of the planted class: as it is, with the planted value truly there, then with it after equal "
        "steps of each arm ([repair](repair.md)). The paper: +52.27 % on generated images."
    ]
    for measurement in measured:
        parts += [object_table(measurement), _before_and_after(measurement)]
    return "\n\n".join(part for part in parts if part)


def road_repairs(measured: Sequence[MeasuredRoadRepairs]) -> str:
    """The same for segmenters on driving scenes, in IoU and in detected pedestrians."""
    if not measured:
        return ""
    parts = [
        "### What retraining wins on driving scenes (DILLEMA, third question)\n\n"
        "IoU of the planted class per scene, on renders that hold it: as they are, with the planted value truly there, "
        "then with it after equal steps of each arm; below, over all pixels, and pedestrians with most of their pixels "
        "named ([repair](repair.md)). The paper: mIoU 85.32 → 88.76 and 72.45 → 80.32, pedestrians found 38 → 62 %."
    ]
    for measurement in measured:
        parts += [road_table(measurement), _before_and_after(measurement)]
    return "\n\n".join(part for part in parts if part)


def _before_and_after(measured: RepairMeasurement) -> str:
    body = [
        [
            model.model,
            set_figures.set,
            str(set_figures.sources),
            *(_level(arm.accuracy) for arm in set_figures.arms),
        ]
        for model in measured.models
        for set_figures in model.sets
    ]
    if not body:
        return ""
    arms = [arm.arm for arm in measured.models[0].sets[0].arms]
    title = "Held-out source images and their own counterfactuals, before and after:"
    return f"{title}\n\n{grid(['model', 'judged on', 'source images', *arms], body)}"


def _level(accuracy: Rate | MeanOverlap) -> str:
    if isinstance(accuracy, Rate):
        return rate(accuracy)
    return f"{number(accuracy.value, 3)} ({accuracy.low:.2f}–{accuracy.high:.2f})"


def _error(figures: ModelFigures) -> str:
    accuracy = at(figures, 1)
    if accuracy is None or accuracy.originals.value is None:
        return NOTHING
    n, right = accuracy.originals.n, accuracy.originals.count
    return f"{100 * (1 - accuracy.originals.value):.0f} % ({n - right}/{n})"
