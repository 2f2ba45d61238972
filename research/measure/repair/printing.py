"""Measured repairs of both domains in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from research.measure.repair.records import (
    MeasuredObjectRepairs,
    MeasuredRoadRepairs,
    PixelFigures,
    RepairedPlant,
    RepairMeasurement,
)
from shared.schemas.repairs import ARMS, TRAINED, Paired
from shared.words.wording import tenths


def object_table(measured: MeasuredObjectRepairs) -> str:
    """The measurement in Markdown: a line per plant."""
    return _plants(measured, f"{measured.per_class} source images a class", "right")


def road_table(measured: MeasuredRoadRepairs) -> str:
    """The measurement in Markdown: a line per plant, in IoU of its class; then all pixels of the scenes."""
    heads = ["| model | scenes | n | of all pixels", *ARMS]
    lines = [" | ".join(heads) + " |", "|---" * (len(ARMS) + 4) + "|"]
    for model in measured.models:
        labels = list(dict.fromkeys(plant.label for plant in model.plants))
        for figures_of_scenes in model.figures:
            lines_of_arm = {arm: _lines(figures, labels) for arm, figures in figures_of_scenes.arms.items()}
            for name in lines_of_arm["before"]:
                arms = " | ".join(lines_of_arm[arm][name] if arm in lines_of_arm else "–" for arm in ARMS)
                lines.append(
                    f"| {model.model} | {figures_of_scenes.scenes} | {figures_of_scenes.count} | {name} | {arms} |"
                )
    plants = _plants(measured, f"{measured.images} source images", "IoU of the planted class")
    return plants + "\n\n" + "\n".join(lines)


def _plants(measured: RepairMeasurement, of: str, score: str) -> str:
    images = (
        f"no source image shows {', '.join(measured.lacking)}"
        if measured.lacking
        else "the source images hold what was planted, too"
    )
    lines = [
        f"{images[0].upper()}{images[1:]}. {measured.counterfactuals} accepted counterfactuals of {of}, "
        f"{measured.request.steps} steps, seed {measured.request.seed}: `{measured.command}`",
        "",
        f"| model | planted | {score}: as it is → with the value | {' | '.join(TRAINED)} | won back "
        "| over the best control | on scenes as they are | n |",
        "|---" * (len(TRAINED) + 7) + "|",
    ]
    for model in measured.models:
        for plant in model.plants:
            arms = " | ".join(f"{plant.after[arm]:.1%}" for arm in TRAINED)
            lines.append(
                f"| {model.model} | {plant.label}, {plant.value} | {plant.before_as_it_is:.1%} → {plant.before:.1%} "
                f"| {arms} | {_share(plant)} | {_points(plant.over_best_control)}, {plant.best_control} "
                f"| {_points(model.lost)} | {plant.scenes}, {model.own_scenes} |"
            )
    return "\n".join(lines)


def _lines(figures: PixelFigures, labels: Sequence[str]) -> dict[str, str]:
    rate = figures.pedestrians
    return {
        "mIoU": f"{figures.mean_iou:.1%}",
        **{f"IoU, {label}": tenths(figures.iou[label]) for label in labels},
        "pedestrians found": f"{tenths(rate.value)} ({rate.count}/{rate.n}; {rate.low:.0%} to {rate.high:.0%})",
    }


def _share(plant: RepairedPlant) -> str:
    if plant.won_back is None:
        return f"no certain loss, n = {plant.scenes}"
    if plant.regained is not None and plant.newly_lost is not None:
        rate, lost = plant.regained, plant.newly_lost
        limits = f"{100 * rate.low:.0f} to {100 * rate.high:.0f}"
        return f"{rate.count} of {rate.n}, {rate.value or 0:.0%} ({limits}); newly lost {lost.count} of {lost.n}"
    if plant.won_back_low is None or plant.won_back_high is None:
        return f"{plant.won_back:.0%} (no upper bound, n = {plant.scenes})"
    return f"{plant.won_back:.0%} ({100 * plant.won_back_low:.0f} to {100 * plant.won_back_high:.0f})"


def _points(paired: Paired) -> str:
    text = f"{100 * paired.difference:+.1f}"
    if paired.interval is None:
        return text
    return f"{text} ({100 * paired.interval.low:+.1f} to {100 * paired.interval.high:+.1f})"
