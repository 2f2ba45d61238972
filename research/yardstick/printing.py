"""Print a score on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.analysis.limits import FALSE_DISCOVERY_RATE
from research.yardstick.dilution import Dilution
from research.yardstick.formats import Agreement, AnswerKey, Score, Spent
from shared.schemas.effects import Rate
from tinyworld.objects.world import BACKGROUNDS


def format_answer(score: Score) -> str:
    """One method's score, a line per question."""
    lines = [
        f"{score.method}: {score.models} models",
        *(
            f"  about {dose.dose} points          found {dose.found}, missed {dose.missed}, not tested "
            f"{dose.untested}; recall {rate(dose.recall)}"
            for dose in score.doses
        ),
        f"  improvements           found {rate(score.improvements)}",
        f"  findings               {score.found} true, {score.invented} invented, {score.undecided} in cells too near "
        f"5 points to call; precision {rate(score.precision)}",
        f"  false discovery rate   {score.false_discovery_rate:.1%}, mean over models",
        f"  null cells             {rate(score.false_discoveries_over_null_cells)} called findings",
        f"  60-point plants        first finding in {rate(score.first_findings)} of the models",
        f"  effects, all cells     {_agreement(score.all_cells)}",
        f"  effects, where any is  {_agreement(score.cells_with_effect)}",
        f"  effects, weaknesses    {_agreement(score.weaknesses)}",
        f"  intervals              {rate(score.coverage)} contain the truth",
        f"  provisional            {rate(score.provisional)} of the findings",
        f"  outside the words      {rate(score.outside_untested)} rightly not tested",
        f"  cost                   {_format_cost(score.spent)}",
    ]
    if score.unknown_cells:
        lines.append(f"  not in the key         {score.unknown_cells} cells, which count nowhere")
    return "\n".join(lines)


def format_comparison(scores: Sequence[Score]) -> str:
    """Findings and cost of each method as rows of Markdown, and the recommended method.

    That is the method with the most true findings per hour, among those with a false discovery rate of at most 5 %.
    """
    rows = [
        "| method | 60 points | 30 points | 15 points | improvements | precision | false discovery rate | RMSE "
        "| seconds | network evaluations | true findings an hour |",
        "|" + "---|" * 11,
    ]
    for score in sorted(scores, key=lambda candidate: -(_per_hour(candidate) or 0)):
        rows.append(f"| {' | '.join(_cells(score))} |")
    able = [
        candidate
        for candidate in scores
        if candidate.found and candidate.false_discovery_rate <= FALSE_DISCOVERY_RATE and _per_hour(candidate)
    ]
    first = (
        max(able, key=lambda candidate: _per_hour(candidate) or 0).method if able else "none of them: nothing was found"
    )
    return "\n".join([*rows, "", f"Take first: {first}"])


def _cells(score: Score) -> tuple[str, ...]:
    """The row of a method in the table of `format_comparison`."""
    by_dose = {dose.dose: dose.recall for dose in score.doses}
    rmse, an_hour = score.cells_with_effect.rmse, _per_hour(score)
    return (
        score.method,
        *(rate(by_dose[dose]) for dose in sorted(by_dose, reverse=True)),
        rate(score.improvements),
        rate(score.precision),
        f"{score.false_discovery_rate:.1%}",
        "–" if rmse is None else f"{rmse:.1f}",
        *(
            "–" if amount is None else f"{amount:,.0f}"
            for amount in (score.spent.seconds, score.spent.network_evaluations)
        ),
        "–" if an_hour is None else f"{an_hour:.1f}",
    )


def _per_hour(score: Score) -> float | None:
    return 3600 * score.found / score.spent.seconds if score.spent.seconds else None


def format_key(key: AnswerKey) -> str:
    """The planted weaknesses and their true effects, one line each; then the clean models."""
    lines = [f"{key.scenes_per_class} scenes per class; fields {', '.join(key.fields)}"]
    for model in key.models:
        effects = {true.cell: true for true in (*model.cells, *model.outside)}
        for planting in model.planted:
            cell = (
                planting.cell.model_copy(update={"factor": "domain"}) if planting.kind == "outside" else planting.cell
            )
            true = effects.get(cell)
            text = f"{points(true.effect)} [{points(true.low)}, {points(true.high)}]" if true else "not measured"
            lines.append(
                f"  {model.name:<20} {model.accuracy.value:>6.1%}  {planting.kind:<10} {cell.label} to {cell.value} "
                f"called {planting.called}: {text}"
            )
        if not model.planted:
            worst = min(model.cells, key=lambda true: true.effect)
            lines.append(
                f"  {model.name:<20} {model.accuracy.value:>6.1%}  clean; worst cell {worst.cell.label} "
                f"{worst.cell.direction} {worst.cell.value} {points(worst.effect)}"
            )
    return "\n".join(lines)


def format_dilutions(dilutions: Iterable[Dilution]) -> str:
    """Where planted effects are lost, a row per relabelled cell, as Markdown."""
    rows = [
        "| model | cell | images in the plant's places | called as planted there | right elsewhere | null arm there |",
        "|" + "---|" * 6,
    ]
    for dilution in dilutions:
        plant = dilution.plant
        name = f"{plant.label} to {plant.value}, {len(plant.places)} of {len(BACKGROUNDS)} places"
        shares = " | ".join(
            rate(share) for share in (dilution.covered, dilution.arrived, dilution.right, dilution.right_before)
        )
        rows.append(f"| {dilution.model} | {name} | {shares} |")
    return "\n".join(rows)


def rate(rate: Rate) -> str:
    """A rate with its count and Wilson interval."""
    if rate.value is None:
        return "– (0 of 0)"
    return f"{rate.value:.1%} ({rate.count} of {rate.n}; {rate.low:.1%} to {rate.high:.1%})"


def points(share: float) -> str:
    """A difference in points, with its sign."""
    return f"{100 * share:+.1f}"


def _agreement(agreement: Agreement) -> str:
    if agreement.bias is None or agreement.rmse is None:
        return "nothing tested"
    rank = "–" if agreement.rank_correlation is None else f"{agreement.rank_correlation:.2f}"
    return f"bias {agreement.bias:+.1f} points, RMSE {agreement.rmse:.1f}, rank correlation {rank} (n = {agreement.n})"


def _format_cost(spent: Spent) -> str:
    figures_of_cost: Sequence[tuple[float | None, str]] = (
        (spent.seconds, "seconds"),
        (spent.source_images, "source images"),
        (spent.counterfactuals, "counterfactuals accepted"),
        (spent.network_evaluations, "network evaluations"),
    )
    return ", ".join(f"{value:,.0f} {unit}" for value, unit in figures_of_cost if value is not None) or "not said"
