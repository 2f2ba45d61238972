"""Which counterfactuals to show: per finding those that flipped first, then a gallery, then some of the rejected.

Rows come as a stream of source images and only what may be shown is kept, so a job of any size needs the same memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import NamedTuple

from gateway.results.stream import CounterfactualRow, PredictionRow, SourceRows, Triple, cells_of, triples
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import Cell, JobResults

PER_FINDING = 6
FINDINGS_WITH_PICTURES = 6
GALLERY = 24
REJECTED = 9

# So many source images give the gallery its pictures even if findings and hero show all that others have.
_GALLERY_SOURCES = GALLERY + PER_FINDING * FINDINGS_WITH_PICTURES + 1

_Finding = tuple[str, str, Cell]


@dataclass(frozen=True, slots=True)
class PictureSelection:
    """Ids of counterfactuals. `findings` is keyed by (model, method, cell); `hero` is the first picture of all."""

    hero: str | None
    hero_model: str | None
    findings: dict[_Finding, list[str]]
    gallery: list[str]
    rejected: list[str]

    @property
    def ids(self) -> list[str]:
        """Every id once."""
        in_findings = [id for ids in self.findings.values() for id in ids]
        return list(dict.fromkeys([*([self.hero] if self.hero else []), *in_findings, *self.gallery, *self.rejected]))


class _Drama(NamedTuple):
    """Sort key: flips that the null or sham arm does not share first; then the largest loss of probability."""

    not_flipped: bool
    damaged: bool
    change: float
    id: str


def select_pictures(sources: Iterable[SourceRows], results: JobResults) -> PictureSelection:
    """The same pictures for the same rows: the order is by flip, then loss of probability, then id."""
    ranked = [(effect, figures) for figures in results.results for effect in figures.findings]
    ranked.sort(key=lambda pair: pair[0].standing != "weakness")
    best: dict[_Finding, list[_Drama]] = {
        (figures.model, figures.method, effect.cell): [] for effect, figures in ranked[:FINDINGS_WITH_PICTURES]
    }
    models = list(dict.fromkeys(figures.model for figures in results.results))
    hero_model = next((model for model, _, _ in best), models[0] if models else None)
    heroes: list[_Drama] = []
    accepted: defaultdict[str, list[str]] = defaultdict(list)
    rejected: defaultdict[str, list[str]] = defaultdict(list)
    for rows in sources:
        edits = list(triples(rows.counterfactuals))
        good = [triple for triple in edits if triple.edit.counted]
        _note_findings(rows, good, results, best)
        if not best:
            predictions = rows.predictions_of(hero_model or "")
            heroes = nsmallest(1, [*heroes, *(_drama(triple, predictions, ALL_CLASSES) for triple in good)])
        if good and len(accepted) < _GALLERY_SOURCES:
            accepted[rows.source.id] = [triple.edit.id for triple in good]
        for row in (triple.edit for triple in edits):
            if not row.accepted and row.rendered and len(rejected[row.check]) < REJECTED:
                rejected[row.check].append(row.id)
    findings = {finding: [drama.id for drama in dramas] for finding, dramas in best.items()}
    hero = next((ids[0] for ids in findings.values() if ids), heroes[0].id if heroes else None)
    shown = {id for ids in findings.values() for id in ids}
    rest = [[id for id in ids if id not in shown] for ids in accepted.values()]
    gallery, refused = _in_turn(rest, GALLERY), _in_turn(rejected.values(), REJECTED)
    return PictureSelection(hero, hero_model, findings, gallery, refused)


def _note_findings(
    rows: SourceRows,
    accepted: list[Triple[CounterfactualRow]],
    results: JobResults,
    best: dict[_Finding, list[_Drama]],
) -> None:
    relation = results.results[0].relation if results.results else "labelled"
    for (model, method, cell), dramas in best.items():
        predictions = rows.predictions_of(model)
        if cell.label not in rows.labels(predictions.get(rows.source.id), relation):
            continue
        members = [
            triple for triple in accepted if triple.edit.method == method and cell in cells_of(triple.edit, cell.label)
        ]
        if members:
            shown = [*dramas, *(_drama(triple, predictions, cell.label) for triple in members)]
            dramas[:] = nsmallest(PER_FINDING, shown)


def _drama(triple: Triple[CounterfactualRow], predictions: Mapping[str, PredictionRow], label: str) -> _Drama:
    """`label` is the class in question; only segmenters predict more than one for an image."""
    compared = triple.predictions(predictions)
    original, image, reference = compared.original, compared.counterfactual, compared.reference
    if original is None or image is None:
        return _Drama(True, True, 0.0, triple.edit.id)
    flipped = _differs(original, image, label)
    damaged = reference is not None and _differs(original, reference, label)
    change = (image.confidence(label) or 0.0) - (original.confidence(label) or 0.0)
    return _Drama(not flipped, damaged, change, triple.edit.id)


def _differs(original: PredictionRow, other: PredictionRow, label: str) -> bool:
    if original.overlaps is None:
        return other.predicted != original.predicted
    return original.holds(label) != other.holds(label)


def _in_turn(groups: Iterable[list[str]], most: int) -> list[str]:
    """One of each group in turn, so that no source image or check crowds out the others."""
    groups = list(groups)
    longest = max(map(len, groups), default=0)
    turns = (group[turn] for turn in range(longest) for group in groups if turn < len(group))
    return [id for _, id in zip(range(most), turns, strict=False)]
