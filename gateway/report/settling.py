"""What would settle a finding, or an effect that is none yet: sentences with what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.analysis.limits import LEAST_SOURCES
from gateway.methods import confirming_method
from gateway.results.confirmation import editor_to_confirm
from shared.schemas.effects import CellEffect
from shared.schemas.results import ModelResults
from shared.verdicts import suspected_drops
from shared.wording import open_effect_sentence

MOST_OPEN = 5


def steps_for(job: str, figures: ModelResults, effect: CellEffect) -> list[str]:
    """What would settle a finding, in the order in which to do it; commands stand between backticks."""
    return list(_steps(job, figures, effect))


def _steps(job: str, figures: ModelResults, effect: CellEffect) -> Iterator[str]:
    changed = effect.changed
    if effect.panel is not None and effect.panel.suspect:
        yield "Look at its images first: every reference model fails on them, too, so they may be broken."
    if effect.provisional and changed is not None and changed.reviewed < changed.n:
        image = "image" if changed.n == 1 else "images"
        yield f"Review its {changed.n} changed {image}, to see whether they are valid ({changed.reviewed} reviewed)."
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
    return figures.relation == "labelled" and figures.metric == "accuracy"


def open_effects(figures: ModelResults) -> list[str]:
    """The suspected drops that more images would settle, the fewest images first."""
    drops = _needing_least(suspected_drops(figures))[:MOST_OPEN]
    return [open_effect_sentence(effect, figures.metric) for effect in drops]


def _needing_least(effects: Sequence[CellEffect]) -> list[CellEffect]:
    known = [effect for effect in effects if effect.images_missing is not None]
    return sorted(known, key=lambda effect: (effect.images_missing or 0, effect.delta_accuracy))
