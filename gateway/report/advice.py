"""What a report says first and last in words: what was tested, and what to do next.

What would settle a finding, or an effect that is none yet: sentences with what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gateway.analysis.limits import LEAST_SOURCES
from gateway.kinds import of_metric
from gateway.methods import confirming_method
from gateway.report.words import sentence_case
from gateway.results.confirmation import editor_to_confirm
from shared.schemas.effects import CellEffect
from shared.schemas.results import JobResults, ModelResults
from shared.words.verdicts import any_testable, lost_images, suspected_drops, verdict_of
from shared.words.wording import (
    change_in_words,
    class_in_words,
    counts_pairs,
    factor_in_words,
    more_images,
    nothing_compared,
    open_effect_sentence,
    points,
)

MOST_OPEN = 5


class Weakness(NamedTuple):
    """A weakness with the results that it belongs to."""

    result: ModelResults
    effect: CellEffect


def tested_sentence(results: JobResults) -> str:
    """What was tested: "Tested: street-classifier on 70 source images. Of 240 proposed edits (dillema), 230 …".

    If no edit was accepted, why.
    """
    if any_testable(results) and (nothing := nothing_compared(results)):
        return nothing
    models = list(dict.fromkeys(result.model for result in results.results))
    names = f"{', '.join(models[:-1])} and {models[-1]}" if len(models) > 1 else "".join(models)
    images = f"{results.sources:,} source image{'' if results.sources == 1 else 's'}"
    return f"{f'Tested: {names} on {images}' if models else f'No model was tested: {images}'}.{_edits(results)}"


def _edits(results: JobResults) -> str:
    """ " Of 240 proposed edits (dillema), 230 were rendered, 179 accepted and 170 compared."."""
    funnels = results.funnels
    if not funnels:
        return ""
    proposed, rendered = sum(funnel.proposed for funnel in funnels), sum(funnel.rendered for funnel in funnels)
    accepted = sum(funnel.accepted.count for funnel in funnels)
    compared = sum((funnel.counted or funnel.accepted).count for funnel in funnels)
    methods = ", ".join(funnel.method for funnel in funnels)
    last = f", {accepted:,} accepted and {compared:,} compared" if results.results else f" and {accepted:,} accepted"
    return f" Of {proposed:,} proposed edits ({methods}), {rendered:,} were rendered{last}."


def not_tested(results: JobResults) -> list[str]:
    """What these results say nothing of, in short sentences; empty if nothing was tested at all."""
    if not counts_pairs(results) or not any_testable(results):
        return []
    return list(dict.fromkeys(_not_tested(results)))


def _not_tested(results: JobResults) -> Iterator[str]:
    for result in results.results:
        if few := sum(effect.standing == "too few images" for effect in result.cells):
            yield f"{few:,} of {len(result.cells):,} changes of a class ({result.method}): too few images."
    cells = [effect.cell for result in results.results for effect in result.cells]
    factors = sorted({factor_in_words(cell.factor, cell.value) for cell in cells})
    yield f"Changes of anything but {', '.join(factors)}."
    if any(result.relation == "metamorphic" for result in results.results):
        yield "Whether predictions are right: without ground truth, only whether they stay the same."
    if results.provisional:
        yield f"Whether the pictures are valid: {'too few' if results.reviews else 'none'} were reviewed."
    for method, checks in results.checks_off.items():
        yield f"{sentence_case(', '.join(checks))} of the pictures ({method}): these checks are off."


def next_steps(results: JobResults) -> list[str]:
    """The first things to do with these results, as sentences with commands between backticks; at most five.

    Those for findings come before the images that an unsettled drop needs.
    """
    weaknesses = [
        Weakness(result, effect)
        for result in results.results
        for effect in result.findings
        if effect.standing == "weakness"
    ]
    if not results.results:
        return []
    if not any_testable(results):
        return ["Correct what the first sentence names, then submit the job again."]
    if nothing_compared(results):
        return ["Look at the refused pictures, correct what the first sentence names, then submit the job again."]
    if weaknesses:
        return [*_after_weaknesses(results, weaknesses), *_settling(results)]
    return [*_settling(results), *_without_weaknesses(results)]


def _settling(results: JobResults) -> Iterator[str]:
    """Which images to bring for the models whose verdict is not settled: those for the drop that lost most images."""
    verdicts = [(result.model, verdict_of(results, result)) for result in results.results]
    unsettled = [(model, verdict.unsettled[0]) for model, verdict in verdicts if verdict.kind == "not settled"]
    known = [(model, effect) for model, effect in unsettled if more_images(effect)]
    if known:
        model, first = max(known, key=lambda drop: lost_images(drop[1]))
        change = f"{class_in_words(first.cell, '`')} {change_in_words(first.cell)}"
        of_model = f" for `{model}`" if len({name for name, _ in verdicts}) > 1 else ""
        drop = f"{points(first.delta_accuracy)} points on {first.sources} image{'' if first.sources == 1 else 's'}"
        yield f"Settle {change}{of_model} ({drop}): submit {more_images(first)}."


def _after_weaknesses(results: JobResults, weaknesses: Sequence[Weakness]) -> Iterator[str]:
    job = results.made.job
    if any(effect.provisional for _, effect in weaknesses):
        images = f"the {results.review_first} sampled images" if results.review_first else "images"
        yield (
            f"Look at the pictures of the findings. Review {images} on `/jobs/{job}/review`, then add the reviews to "
            f"the report: `contrafact report {job} --anew`."
        )
    steps = (confirming_step(job, result, effect, "the weaknesses") for result, effect in weaknesses)
    if step := next(filter(None, steps), None):
        yield step
    first = weaknesses[0].result
    if first.relation == "labelled" and not of_metric(first.metric).no_repair:
        yield f"Train on what breaks the model: `contrafact repair --job {job} --model {first.model}`."
    yield f"Test the next release on the same images: `contrafact suites create {job} --name NAME`."


def _without_weaknesses(results: JobResults) -> Iterator[str]:
    job = results.made.job
    cells = [effect for result in results.results for effect in result.cells]
    if all(effect.standing == "too few images" for effect in cells):
        yield (
            f"Submit more images of each class: a change is tested on {LEAST_SOURCES} or more source images of a class."
        )
        return
    yield "See under Statistical power which drops these images detect; smaller ones need more images."
    yield f"Test the next release on the same images: `contrafact suites create {job} --name NAME`."


def steps_for(job: str, figures: ModelResults, effect: CellEffect) -> list[str]:
    """What would settle a finding, in the order in which to do it; commands stand between backticks."""
    return list(_steps(job, figures, effect))


def _steps(job: str, figures: ModelResults, effect: CellEffect) -> Iterator[str]:
    changed = effect.changed
    if effect.panel is not None and effect.panel.suspect:
        yield "Look at its images first: every reference model fails on them, too, so they may be broken."
    if effect.provisional and changed is not None and changed.reviewed < changed.n:
        needed, images = effect.reviews_needed or changed.n, f"image{'' if changed.n == 1 else 's'}"
        if changed.reviewed < needed < changed.n:
            what, why = f"{needed} of its {changed.n} changed images", "if all are valid, it stands"
        else:
            what, why = f"its {changed.n} changed {images}", "to see whether they are valid"
        yield f"Review {what}, {why} ({changed.reviewed} reviewed)."
    if confirming_method(figures.method) and _classifies(figures):
        if step := confirming_step(job, figures, effect, "it"):
            yield step
        elif effect.confirmation is not None and effect.confirmation.verdict == "too few images":
            yield f"`{effect.confirmation.method}` had too few images to confirm it: submit more of its class."
        if effect.standing == "weakness" and effect.dose is None:
            yield f"See whether it grows with the strength of the edit: `contrafact dose {job} --wait`."
    own = effect.corroboration
    if own is not None and own.showing.n < LEAST_SOURCES:
        yield (
            f"Bring photographs of `{effect.cell.label}` with {effect.cell.value}: your test set has {own.showing.n}, "
            f"and {LEAST_SOURCES} tell more than any rendering."
        )


def confirming_step(job: str, figures: ModelResults, finding: CellEffect, name: str) -> str:
    """What to do to test a finding, called `name`, with an unrelated editor; "" if that was done or cannot be."""
    editor = editor_to_confirm(figures.method, finding) if _classifies(figures) else None
    return f"Test {name} with an unrelated editor: `contrafact confirm {job} --with {editor} --wait`." if editor else ""


def _classifies(figures: ModelResults) -> bool:
    return figures.relation == "labelled" and of_metric(figures.metric).one_class


def open_effects(figures: ModelResults) -> list[str]:
    """The suspected drops that more images would settle, the fewest images first."""
    drops = _needing_least(suspected_drops(figures))[:MOST_OPEN]
    return [open_effect_sentence(effect, figures.metric) for effect in drops]


def _needing_least(effects: Sequence[CellEffect]) -> list[CellEffect]:
    known = [effect for effect in effects if effect.images_missing is not None]
    return sorted(known, key=lambda effect: (effect.images_missing or 0, effect.delta_accuracy))
