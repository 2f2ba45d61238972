"""The tables as Markdown: all arms side by side, then tables like the papers'."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from research.measure.repair.records import committed_objects, committed_roads
from research.paper_tables.arms import ARMS
from research.paper_tables.dillema_tables import (
    dillema_table,
    faults_by_class,
    faults_by_value,
    object_repairs,
    road_repairs,
)
from research.paper_tables.printing import NOTHING, at, grid, number, of_model, rate
from research.paper_tables.rows import ArmRow, MeanDifference, ModelFigures

Rows = Sequence[ArmRow]
LANCE = ("lance-direct", "lance-null-text")
BAR = 5  # points that one block of a bar stands for


def tables(rows: Rows) -> str:
    """All tables of the available rows."""
    ordered = sorted(rows, key=lambda row: list(ARMS).index(row.arm))
    lance = [accuracies(ordered), quality(ordered), captions(ordered), sensitivity(ordered)]
    dillema = [dillema_table(ordered), faults_by_class(ordered), faults_by_value(ordered)]
    dillema += [object_repairs(committed_objects()), road_repairs(committed_roads())]
    return (
        "\n\n".join(part for part in (side_by_side(ordered), *lance, *dillema, corruption_points(ordered)) if part)
        + "\n"
    )


def side_by_side(rows: Rows) -> str:
    """One table: a row per figure, a column per arm."""
    models = sorted({figures.model for row in rows for figures in row.models})
    lines: list[tuple[str, Callable[[ArmRow], str]]] = [
        ("yield", lambda row: rate(row.all_factors.accepted)),
        ("label kept", lambda row: rate(row.all_factors.kept)),
        ("label kept, of flipped", lambda row: rate(row.all_factors.kept_flipped)),
        ("edit shown", lambda row: rate(row.all_factors.shown)),
        ("all others unchanged", lambda row: rate(row.all_factors.unchanged)),
        ("each other unchanged", lambda row: rate(row.all_factors.each_unchanged)),
    ]
    for model in models:
        lines += [(f"{name}, {model}", _cell_of(model, cell)) for name, cell in MODEL_LINES]
    lines += [
        ("KID × 1000", _distance),
        ("perplexity before → after", _perplexity),
        ("network evaluations per accepted", lambda row: number(row.cost.evaluations_per_accepted)),
        ("seconds per accepted", lambda row: number(_seconds(row), 1)),
    ]
    sources = {row.sources for row in rows}
    title = f"### All methods on the same {' or '.join(map(str, sorted(sources)))} source images"
    body = [[name, *(cell(row) for row in rows)] for name, cell in lines]
    return title + "\n\n" + grid(["", *(ARMS[row.arm].title for row in rows)], body)


def accuracies(rows: Rows) -> str:
    """Like LANCE's table 2: accuracy of each model under test on each test set, and the set's distance from reality."""
    models = sorted({figures.model for row in rows for figures in row.models})
    if not rows or not models:
        return ""
    fullest = max(rows, key=lambda row: row.all_factors.kept.sources or 0)  # only sources with an accepted image count
    body = [["originals", *(of_model(fullest, m, _originals) for m in models), NOTHING]]
    body += [
        [
            ARMS[row.arm].title,
            *(
                of_model(
                    row, m, lambda figures: f"{_accuracy(figures, 1)}; {_accuracy(figures, 5)}; {_change(figures)}"
                )
                for m in models
            ),
            _distance(row),
        ]
        for row in rows
        if not row.arm.startswith("dillema")
    ]
    return (
        "### Accuracy by test set (LANCE, table 2)\n\n"
        "acc@1; acc@5; mean |Δp| of accepted images. The paper, ResNet-50: 79.86 → 79.86 (reconstructed) → 78.81 "
        "(LANCE-R) → 74.01 (LANCE), FID 13.6, 51.6, 55.4.\n\n" + grid(["test set", *models, "KID × 1000"], body)
    )


def quality(rows: Rows) -> str:
    """LANCE's table 4 on tinyworld: the questions of its human study, answered by the oracles."""
    body = [
        [
            ARMS[row.arm].title,
            rate(row.all_factors.kept),
            rate(row.all_factors.shown),
            rate(row.all_factors.each_unchanged),
            _distance(row),
        ]
        for row in rows
        if row.arm not in ("corruptions",)
    ]
    return (
        "### Quality of accepted images (LANCE, table 4)\n\n"
        "By two oracles that must agree; the paper asked people: label kept 95 %, edit success 3.7, fidelity 4.5, "
        "realism 4.2 of 5.\n\n"
        + grid(["", "label kept", "edit success", "fidelity (each other factor)", "KID × 1000"], body)
    )


def captions(rows: Rows) -> str:
    """Like LANCE's table 3: edits of captions by factor, and the text checks, judged by the grammar."""
    compared = [row for row in rows if row.arm in ("lance-direct", "dillema-keep", "lance-r")]
    body = [
        [ARMS[row.arm].title, figures.factor, rate(figures.as_asked), rate(figures.accepted)]
        for row in compared
        for figures in row.factors
    ]
    checks = [
        [ARMS[row.arm].title, rate(row.text_checks.precision), rate(row.text_checks.recall)]
        for row in compared
        if row.text_checks is not None
    ]
    if not body:
        return ""
    table = (
        "### Edits of captions (LANCE, table 3)\n\n"
        "As asked: the new caption differs from the old in one field of the scene, of the factor asked for. The paper: "
        "89 % edit success.\n\n" + grid(["", "factor", "edit as asked", "accepted in the end"], body)
    )
    if checks:
        table += (
            "\n\nChecks of the words. Wrong: the class, no field, or several change. The paper: 97.2 and 98.4 %.\n\n"
        )
        table += grid(["", "precision", "recall"], checks)
    return table


def sensitivity(rows: Rows) -> str:
    """Like LANCE's figure 3: change of acc@1 by factor and model, with bars."""
    lance_row = next((row for arm in LANCE for row in rows if row.arm == arm), None)
    if lance_row is None:
        return ""
    body = [
        [figures.factor, model, str(delta.sources), _points(delta), _bar(delta.mean)]
        for figures in lance_row.factors
        for model, delta in sorted(figures.deltas.items())
    ]
    return (
        f"### Sensitivity by factor (LANCE, figure 3): {ARMS[lance_row.arm].title}\n\n"
        f"Δacc@1 in points, sources weighted equally, 95 % interval; a block is {BAR} points lost (▒: gained).\n\n"
        + grid(["factor", "model", "sources", "Δacc@1", ""], body)
    )


def corruption_points(rows: Rows) -> str:
    """The severity at which images first fail under each corruption."""
    body = [
        [points.corruption, figures.model, str(points.sources), *map(str, points.first), str(points.never)]
        for row in rows
        for figures in row.models
        for points in figures.failure_points
    ]
    if not body:
        return ""
    heads = ["corruption", "model", "images", *(f"at {severity}" for severity in range(1, 6)), "never"]
    return "### Where images first fail (corruptions)\n\n" + grid(heads, body)


def _cell_of(model: str, cell: Callable[[ModelFigures], str]) -> Callable[[ArmRow], str]:
    return lambda row: of_model(row, model, cell)


def _accuracy(figures: ModelFigures, k: int) -> str:
    accuracy = at(figures, k)
    return NOTHING if accuracy is None else rate(accuracy.counterfactuals)


def _originals(figures: ModelFigures) -> str:
    levels = [at(figures, k) for k in (1, 5)]
    return "; ".join(NOTHING if level is None else rate(level.originals) for level in levels)


def _deltas(figures: ModelFigures) -> str:
    levels = [at(figures, k) for k in (1, 5)]
    return " / ".join(NOTHING if at is None or at.delta is None else f"{100 * at.delta:+.1f}" for at in levels)


def _change(figures: ModelFigures) -> str:
    return number(figures.metrics.mean_absolute_delta_probability, 3)


def _distance(row: ArmRow) -> str:
    distance = row.distance
    return NOTHING if distance is None else f"{1000 * distance.value:.1f} ± {1000 * distance.error:.1f}"


def _perplexity(row: ArmRow) -> str:
    if row.perplexity_before is None or row.perplexity_after is None:
        return NOTHING
    return f"{row.perplexity_before:.2f} → {row.perplexity_after:.2f}"


def _seconds(row: ArmRow) -> float | None:
    accepted = row.funnel.accepted.count
    return row.seconds / accepted if row.seconds is not None and accepted else None


def _points(delta: MeanDifference) -> str:
    return f"{100 * delta.mean:+.1f} ({100 * delta.low:+.0f} to {100 * delta.high:+.0f})"


def _bar(mean: float) -> str:
    return ("█" if mean < 0 else "▒") * round(abs(100 * mean) / BAR)


MODEL_LINES: tuple[tuple[str, Callable[[ModelFigures], str]], ...] = (
    ("acc@1", lambda figures: _accuracy(figures, 1)),
    ("acc@5", lambda figures: _accuracy(figures, 5)),
    ("Δacc@1 / @5", _deltas),
    ("mean \\|Δp\\|", _change),
)
