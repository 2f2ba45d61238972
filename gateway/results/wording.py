"""Effects in cells, as sentences."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gateway.analysis.effects import Differences, Floats
from gateway.analysis.matched_pairs import is_paired
from shared.schemas.effects import (
    Cell,
    CellEffect,
    ChangedImages,
    Confirmation,
    Corroboration,
    DoseCurve,
    Metric,
    Panel,
    Undone,
)
from shared.schemas.results import Relation
from shared.words.wording import SCORE_WORDS, change_in_words, class_in_words, how_sure, points

IMPROVEMENT_UNSEEN = (
    "; provisional until its changed images are reviewed with their arms: an arm that no longer shows the class looks "
    "like a gain"
)


def with_sentences(
    effects: Sequence[CellEffect],
    cells: Mapping[Cell, Differences],
    relation: Relation,
    metric: Metric = "accuracy",
    instead: Mapping[Cell, str] = MappingProxyType({}),
) -> list[CellEffect]:
    """Effects with their sentences. `cells`: the differences that they were computed from. `instead`: as below."""
    alike: defaultdict[Cell | None, list[Cell]] = defaultdict(list)
    for effect in effects:
        alike[effect.part_of].append(effect.cell)
    return [
        effect.model_copy(
            update={
                "sentence": effect_sentence(
                    effect,
                    cells[effect.cell].correct,
                    relation,
                    metric,
                    instead.get(effect.cell, ""),
                ),
                "details": add_details(_same_pairs(alike[effect.cell]), _details(effect)),
            }
        )
        for effect in effects
    ]


def instead_in_words(names: Sequence[str]) -> str:
    """What the model calls the lost images: "all called `truck`", "most called `truck`"; "" without a majority."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if 2 * count <= len(names):
        return ""
    return f"{'all' if count == len(names) else 'most'} called `{name}`"


def with_reviews(effect: CellEffect, changed: ChangedImages) -> CellEffect:
    """A finding with its changed images; its sentence says how many of them were reviewed, and are valid."""
    change = "lost" if effect.standing == "weakness" else "gained"
    checked = f"{changed.reviewed} of the {changed.n} {change} images reviewed, {changed.valid} valid."
    sentence = f"{effect.sentence} {checked if changed.reviewed else 'Nobody has checked the pictures yet.'}"
    return effect.model_copy(update={"changed": changed, "sentence": sentence})


def add_details(details: str, more: str) -> str:
    """What is known of a finding, with one thing more, which begins with a semicolon."""
    return (details + more).removeprefix("; ")


def panel_sentence(panel: Panel) -> str:
    """How the reference models do in the cell of a finding."""
    if panel.suspect:
        return "; suspect: every reference model fails here, too, so the images may be broken"
    if not panel.references:
        return "; no reference model that is right on the originals has enough images here"
    return f"; {len(panel.failing)} of {len(panel.references)} reference models fail here"


def nearby_sentence(holds_at: Mapping[str, bool]) -> str:
    """Whether a finding holds at other scores: "; holds at score 0.4 and 0.6", "; not at score 0.6"."""
    held = [name for name, holds in holds_at.items() if holds]
    lost = [name for name, holds in holds_at.items() if not holds]
    parts = [f"{verb} at score {' and '.join(names)}" for verb, names in (("holds", held), ("not", lost)) if names]
    return f"; {', '.join(parts)}" if parts else ""


def confirmation_sentence(confirmation: Confirmation) -> str:
    """The verdict of an unrelated editor on a finding: "; confirmed by `shifts`: −60 points, −80 to −31, 30 images"."""
    effect, limits = confirmation.delta_accuracy, confirmation.interval
    if confirmation.verdict == "not tested again":
        return f"; not tested again: {confirmation.reason}"
    if effect is None or limits is None:
        return f"; `{confirmation.method}` has too few images to confirm it ({confirmation.sources})"
    figures = f"{points(effect)} points, {points(limits.low)} to {points(limits.high)}, {confirmation.sources} images"
    return f"; {confirmation.verdict} by `{confirmation.method}`: {figures}"


def dose_sentence(curve: DoseCurve) -> str:
    """Dose and return of a finding: "; the effect grows with the dose (guidance): −20 points at 0.5, …"."""
    words = {
        "grows": "the effect grows with the dose",
        "shrinks": "the effect shrinks with the dose",
        "no trend established": "no trend with the dose is established",
        "too few images": f"too few images for a trend with the dose ({curve.sources})",
    }
    by_dose = ", ".join(f"{points(point.delta_accuracy)} points at {point.dose:g}" for point in curve.points)
    sentence = f"; {words[curve.verdict]} ({curve.parameter.replace('_', ' ')}): {by_dose}"
    return sentence if curve.undone is None else sentence + return_sentence(curve.undone)


def return_sentence(undone: Undone) -> str:
    """Whether the model is right again: "; returns when the edit is undone; +60 points regained, …"."""
    words = {
        "returns": "returns when the edit is undone",
        "returns in part": "returns only in part when the edit is undone: part of the loss is the editor's",
        "does not return": "does not return when the edit is undone: the loss is (partly) the editor's",
        "undecided": "whether it returns when the edit is undone is undecided",
        "too few images": "too few images with the edit undone",
    }
    figures = f"{points(undone.regained)} points regained"
    if undone.regained_interval is not None and undone.remaining_interval is not None:
        regained, remaining = undone.regained_interval, undone.remaining_interval
        figures += (
            f" ({points(regained.low)} to {points(regained.high)}), {points(undone.remaining)} points against the "
        )
        figures += f"source images ({points(remaining.low)} to {points(remaining.high)})"
    return f"; {words[undone.verdict]}; {figures}, {undone.sources} image{'' if undone.sources == 1 else 's'}"


def corroboration_sentence(corroboration: Corroboration, value: str) -> str:
    """What the job's own images with the value of a finding show: "; own images: 3 of 9 with night are right, ..."."""
    showing, remaining, compared = (
        corroboration.showing,
        corroboration.rest,
        corroboration.showing.n + corroboration.rest.n,
    )
    chosen = chosen_by(corroboration)
    sampled = f", a random {compared:,} of {corroboration.sampled_of:,}" if corroboration.sampled_of else ""
    if not showing.n or not remaining.n:
        share = "none" if not showing.n else "all"
        return f"; own images, {chosen}: {value} in {share} of {compared}{sampled}"
    counts = f"{showing.count} of {showing.n} with {value} are right, {remaining.count} of {remaining.n} without"
    sentence = f"; own images, {chosen}: {counts}{sampled}"
    if corroboration.difference is None or corroboration.interval is None:
        return sentence
    limits = f"{points(corroboration.interval.low)} to {points(corroboration.interval.high)}"
    of_choice = "" if corroboration.chosen_by == "eye" else " for the chosen images"  # it ignores the scorer's errors
    return f"{sentence} ({points(corroboration.difference)} points, {limits}{of_choice})"


def chosen_by(corroboration: Corroboration) -> str:
    """Who chose the own images: "chosen by the scorer", "confirmed by eye (18 of the scorer's 20)"."""
    marks = corroboration.marks
    if marks is None or corroboration.chosen_by == "scorer":
        return "chosen by the scorer"
    confirmed = f"{marks.precision.count} of the scorer's {marks.precision.n}"
    missed = f", {marks.missed} that it missed" if marks.missed else ""
    if corroboration.chosen_by == "eye":
        return f"confirmed by eye ({confirmed}{missed})"
    return f"chosen by the scorer, marked by eye in part ({confirmed} confirmed{missed})"


def effect_sentence(
    effect: CellEffect,
    correct: Floats,
    relation: Relation,
    metric: Metric = "accuracy",
    instead: str = "",
) -> str:
    """One cell in short sentences. What is surely lost in a finding is adjusted for selection.

    `correct`: per-source differences. `instead`: what the model says. Example: "`bus` at night is not recognised: 14 of
    14 lost, all called `truck`. At least 45 points are lost, 95 % sure."
    """
    name, words = class_in_words(effect.cell, "`", metric), SCORE_WORDS[metric]
    worse, better = words.verbs(relation)
    verb = {
        "weakness": worse,
        "suspected weakness": "may lose",
        "improvement": better,
        "nothing found": "has no established effect",
        "too few images": "has too few images to tell",
    }[effect.standing]
    counts = [_counts(effect, correct, words.unit), instead if effect.standing == "weakness" else "", _outlook(effect)]
    sentence = f"{name} {change_in_words(effect.cell)} {verb}: {', '.join(filter(None, counts))}."
    sure = how_sure(effect, words.unit)
    return f"{sentence} {sure}." if sure else sentence


def _counts(effect: CellEffect, correct: Floats, unit: str) -> str:
    """ "14 of 15 lost" where each image is lost, gained or neither; else "−40 points of IoU on 40 images"."""
    n, lost, gained = effect.sources, int((correct < 0).sum()), int((correct > 0).sum())
    if effect.groups is None and is_paired(correct):
        return f"{gained} of {n} gained" if gained > lost else f"{lost} of {n} lost"
    grouped = "" if effect.groups is None else f" in {effect.groups} group{'' if effect.groups == 1 else 's'}"
    return f"{points(effect.delta_accuracy)} {unit} on {n} image{'' if n == 1 else 's'}{grouped}"


def _outlook(effect: CellEffect) -> str:
    if effect.standing == "too few images" and effect.images_needed is not None:
        return f"an effect of this size needs about {effect.images_needed}{' groups' if effect.groups else ''}"
    if effect.standing == "nothing found" and effect.detectable is not None:
        return f"this many images detect drops of {round(100 * effect.detectable)} points or more"
    return ""


def _same_pairs(cells: Sequence[Cell]) -> str:
    """The other findings about a finding's pairs: "with time of day changed from day: the same images, so …"."""
    changes = " and ".join(map(change_in_words, cells))
    return f"{changes}: the same images, so no finding of its own" if cells else ""


def _details(effect: CellEffect) -> str:
    """How a finding depends on the validity of its images."""
    if effect.breakdown is None:
        return ""
    sentence = f"; stands unless more than {math.floor(100 * effect.breakdown)} % of its images are invalid"
    valid = effect.among_valid
    unseen = effect.standing == "improvement" and (valid is None or valid.pool != "cell")
    outlook = IMPROVEMENT_UNSEEN if unseen else ""
    if valid is None:
        return sentence + outlook
    inconclusive = not unseen and not valid.stands
    invalid, most = round(100 * (1 - valid.valid)), math.ceil(100 * (1 - valid.valid_low))
    low, high = points(valid.interval.low), points(valid.interval.high)
    source = "reviews found" if valid.source == "reviews" else "the checks pass"
    pooled = "" if valid.pool in ("cell", "class") else ", pooled over classes"
    sentence += f"; {source} about {invalid} % invalid images (at most {most} %{pooled}), which leaves "
    return f"{sentence}{points(valid.estimate)} points, {low} to {high}{' (inconclusive)' if inconclusive else outlook}"
