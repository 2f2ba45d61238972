"""Template filters that write figures and captions."""

from __future__ import annotations

import math
import re
from datetime import datetime
from difflib import SequenceMatcher
from typing import Any

from markupsafe import Markup, escape

from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.own_images import LEAST_MARKED
from gateway.kinds import KINDS, TaskKind, of_metric
from gateway.methods import METHODS, NULL_ARM
from gateway.results.wording import chosen_by
from shared.schemas.effects import Cell, CellEffect, Rate, VarianceComponents
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.reports import ReportPictures
from shared.schemas.results import ChangeView, JobResults, ModelOpinion, ModelResults, PredictionView
from shared.schemas.scores import lost_labels
from shared.words.verdicts import (
    any_testable,
    by_severity,
    not_settled_sentence,
    open_cells_sentence,
    ruled_out,
    ruled_out_terms,
    verdict_of,
)
from shared.words.wording import (
    NO_FINDING,
    NO_PAIR_COUNTS,
    SCORE_WORDS,
    asked_sentences,
    change_in_words,
    checks_off_lines,
    class_in_words,
    counts_pairs,
    factor_in_words,
    interval,
    judge_sentence,
    limits,
    more_images,
    nothing_accepted,
    objects_lines,
    p_value,
    percent,
    points,
    review_sentence,
    usage_in_words,
)

# What readers of a report may not know. The glossary of the documentation has the exact meanings.
TERMS = {
    "source": "A picture of your test set.",
    "null arm": "The same picture, drawn again by the same editor, unchanged. It shows what drawing alone does.",
    "sham arm": "A rendering whose words are changed but not their meaning.",
    "counterfactual": "The same picture with one thing changed. It must still show its class.",
    "cell": "All pictures of one class that get the same change.",
    "points": "Percentage points: 10 points are 10 of 100 pictures.",
    "95 % interval": "Where the true value lies, in 95 of 100 such tests.",
    "family": "All cells that are tested together. Tests allow for their number.",
    "q": "The share of false findings to expect among those at least this strong.",
}
_TOKENS = re.compile(r"\w+(?:['’-]\w+)*|\s+|[^\w\s]")
_FIRST_SENTENCE = re.compile(r"((?:`[^`]*`|[^`])*?)\. (.*)", re.DOTALL)


def marked_caption(caption: str, new_caption: str) -> Markup:
    """The new caption with removed words in <del> and added words in <ins>.

    An edit that was rejected before it had a new caption ("") shows the old one.
    """
    if not new_caption:
        return escape(caption)
    old, new = _TOKENS.findall(caption), _TOKENS.findall(new_caption)
    marked, removed, added = Markup(""), "", ""
    for kind, i, j, k, m in [*SequenceMatcher(None, old, new, autojunk=False).get_opcodes(), ("end", 0, 0, 0, 0)]:
        before, after = "".join(old[i:j]), "".join(new[k:m])
        if kind == "equal" and not after.strip() and (removed or added):
            removed, added = removed + before, added + after  # joins two changes that only a space separates
        elif kind in ("equal", "end"):
            marked += _mark(removed, added) + escape(after)
            removed = added = ""
        else:
            removed, added = removed + before, added + after
    return marked


def _mark(removed: str, added: str) -> Markup:
    removed_words, added_words = removed.strip(), added.strip()
    marks = [Markup("<del>{}</del>").format(removed_words)] if removed_words else []
    marks += [Markup("<ins>{}</ins>").format(added_words)] if added_words else []
    before = " " if (added or removed).startswith(" ") else ""
    after = " " if marks and (added or removed).endswith(" ") else ""
    return Markup("").join([before, Markup(" ").join(marks), after])


def rate(value: Rate) -> Markup:
    """A rate with its count, n and Wilson interval: "93.8 % (30 of 32; 80–98 %)", "0 % (0 of 9; none; …)"."""
    if value.value is None:
        return Markup('<span class="quiet">none</span>')
    figure = Markup("{} <span class=quiet>({} of {}; {})</span>")
    return figure.format(percent(value.value), value.count, value.n, limits(value))


def of_valid(effect: CellEffect) -> str:
    """The interval of the effect among valid counterfactuals, or "–" if the errors of the checks are unknown."""
    return interval(effect.among_valid.interval if effect.among_valid else None)


def limit(effect: CellEffect) -> str:
    """For a finding, the share of invalid images that it withstands; otherwise the detectable drop ("drop of 72")."""
    if effect.breakdown is not None:
        return f"{math.floor(100 * effect.breakdown)}\N{NO-BREAK SPACE}% invalid"
    return "–" if effect.detectable is None else f"drop of {round(100 * effect.detectable)}"


def estimate_under(effect: CellEffect, estimand: str) -> str:
    """The effect under another estimand with its interval ("−12, −30 to +4"), or "–"."""
    other_effect = next((entry for entry in effect.others if entry.estimand == estimand), None)
    if other_effect is None:
        return "–"
    return points(other_effect.delta_accuracy) + (
        f", {interval(other_effect.interval)}" if other_effect.interval else ""
    )


def bounds(effect: CellEffect) -> str:
    """The bounds of the effect with refused pairs that may be valid ("−67 to −17"), or "–" if there are none."""
    limits = effect.bounds
    return "–" if limits is None else f"{points(limits.low)} to {points(limits.high)}"


def variance(components: VarianceComponents) -> str:
    """The shares of the variance components, and what the next rendering buys: two sentences."""
    parts = {
        "source images": components.source,
        "edits of a source image": components.edit,
        "seeds of an edit": components.seed,
    }
    values = {name: part.value for name, part in parts.items() if part is not None}
    total = sum(values.values())
    if not total:
        return "Within cells all differences are equal."
    shares = ", ".join(f"{round(100 * value / total)} % between {name}" for name, value in values.items())
    best, *other_steps = components.next
    gains = " and ".join(f"{step.buy} {round(100 * step.gain)} %" for step in other_steps)
    advice = f"Per network evaluation (NFE), more {best.buy} reduce the variance most (100 %; {gains})"
    return f"Variance within cells: {shares}. {advice}."


def format_signed(value: float | None) -> str:
    """A probability or accuracy difference in points, or "–"."""
    return "–" if value is None else points(value)


def cell_name(cell: Cell) -> str:
    """Short name of a cell: "bus, to night"."""
    return f"{cell.label}, {cell.direction} {cell.value}"


def change_name(change: ChangeView) -> str:
    """ "weather: day → night"; "weather: → night" for an added phrase; "weather: day" for a removed one."""
    old, new = change.from_value or change.from_phrase, change.to_value or change.to_phrase
    return f"{factor_in_words(change.factor, new or old)}: " + (f"{old} → {new}".strip() if new else old)


def null_arm(method: str) -> str:
    """What the null arms of a method are."""
    return METHODS[method].null_arm if method in METHODS else NULL_ARM


def holds(opinion: PredictionView | None, expected: str | None) -> bool | None:
    """Whether a prediction is the expected class; None if either is unknown, or the model gave no answer."""
    return None if opinion is None or expected is None or not opinion.top else opinion.predicted == expected


def day(time: datetime) -> str:
    """ "20 Nov 2026"."""
    return f"{time.day} {time:%b %Y}"


def date_and_time(time: datetime) -> str:
    """ "20 Nov 2026, 11:24 UTC"."""
    return f"{day(time)}, {time:%H:%M} UTC"


def about_model(results: JobResults, result: ModelResults) -> str:
    """The version of a model under test, and how often it is right: " · version 6f4cb640cbc4 · 98 % right on 88 …"."""
    weights = [weights for info in results.made.services.values() for weights in info.weights]
    served = (entry.revision for entry in weights if entry.role == f"under test: {result.model}")
    version = results.made.uploaded_models.get(result.model) or next(served, "")
    right = result.originals.right if result.originals else None
    share = "" if right is None else f"{percent(right.value)} {SCORE_WORDS[result.metric].share} on {right.n} originals"
    return "".join(f" · {part}" for part in (f"version {version[:12]}" if version else "", share) if part)


def pictures_of(pictures: ReportPictures, result: ModelResults, effect: CellEffect | None) -> list[str]:
    """The id of the picture of a verdict: the clearest of its cell, or without a cell the strongest flip; or none."""
    if effect is None:
        return [pictures.hero] if pictures.hero and pictures.hero_model == result.model else []
    of_cell = (result.model, result.method, effect.cell)
    shown = [entry for entry in pictures.findings if (entry.model, entry.method, entry.cell) == of_cell]
    return shown[0].counterfactuals[:1] if shown else []


def headline(text: str) -> tuple[str, str]:
    """The first sentence of a text, and the rest. A full stop between backticks ends none: "`St. Bernard` at …"."""
    parts = _FIRST_SENTENCE.match(text)
    return (text, "") if parts is None else (parts[1], parts[2])


def with_code(sentence: str) -> Markup:
    """A sentence whose text between backticks is set as code."""
    parts = str(escape(sentence)).split("`")
    return Markup("").join(
        Markup(f"<code>{part}</code>") if index % 2 else Markup(part) for index, part in enumerate(parts)
    )


def describe_lost_labels(opinion: ModelOpinion) -> str:
    """The labels that hold on the original and not on the counterfactual, with their scores."""
    before, after = (view.scores if view else {} for view in (opinion.original, opinion.counterfactual))
    return ", ".join(
        f"{name} {percent(before[name])} → {percent(after.get(name))}" for name in lost_labels(before, after)
    )


def kind_of_results(results: JobResults) -> TaskKind[Any, Any]:
    """The kind of a job's models; without models, the first one."""
    return of_metric(results.results[0].metric) if results.results else next(iter(KINDS.values()))


def sentence_case(words: str) -> str:
    """Words with a capital first letter; the rest stays, such as names of classes."""
    return words[:1].upper() + words[1:]


def shorten(name: str) -> str:
    """A class's name, cut to 15 characters."""
    return name if len(name) <= 15 else f"{name[:14]}…"


def no_link(*_: str, **__: str) -> None:
    """The link of figures that have no gallery to link to."""


FILTERS = {
    "lost_labels": describe_lost_labels,
    "shortened": shorten,
    "judge_sentence": judge_sentence,
    "review_sentence": review_sentence,
    "checks_off": checks_off_lines,
    "objects": objects_lines,
    "percent": percent,
    "of_valid": of_valid,
    "limit": limit,
    "other": estimate_under,
    "bounds": bounds,
    "variance": variance,
    "rate": rate,
    "chosen_by": chosen_by,
    "interval": interval,
    "signed": format_signed,
    "p_value": p_value,
    "cell_name": cell_name,
    "null_arm": null_arm,
    "change_name": change_name,
    "sentence_case": sentence_case,
    "headline": headline,
    "with_code": with_code,
    "date_and_time": date_and_time,
    "day": day,
}
MOST_CELLS = 200  # of a table; the data has all

GLOBALS = {
    "MOST_CELLS": MOST_CELLS,
    "TERMS": TERMS,
    "about_model": about_model,
    "pictures_of": pictures_of,
    "marked_caption": marked_caption,
    "holds": holds,
    "asked_sentences": asked_sentences,
    "usage_in_words": usage_in_words,
    "nothing_accepted": nothing_accepted,
    "NO_FINDING": NO_FINDING,
    "NO_PAIR_COUNTS": NO_PAIR_COUNTS,
    "SCORE_WORDS": SCORE_WORDS,
    "ALL_CLASSES": ALL_CLASSES,
    "KINDS": KINDS,
    "kind_of_results": kind_of_results,
    "of_metric": of_metric,
    "counts_pairs": counts_pairs,
    "no_link": no_link,
    "any_testable": any_testable,
    "by_severity": by_severity,
    "verdict_of": verdict_of,
    "not_settled_sentence": not_settled_sentence,
    "ruled_out": ruled_out,
    "ruled_out_terms": ruled_out_terms,
    "open_cells_sentence": open_cells_sentence,
    "more_images": more_images,
    "change_in_words": change_in_words,
    "class_in_words": class_in_words,
    "LEAST_SOURCES": LEAST_SOURCES,
    "LEAST_MARKED": LEAST_MARKED,
}
