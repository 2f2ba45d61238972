"""Which counterfactuals the report shows: pictures of each finding, flips first; a gallery; some rejected ones.

Source images are streamed and only candidates are kept, so memory does not grow with the job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from gateway.results.stream import CounterfactualRow, PredictionRow, SourceRows, Triple, cells_of, triples
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import Cell, JobResults

PER_FINDING = 6
FINDINGS_WITH_PICTURES = 6
GALLERY = 24
REJECTED = 9

# Enough source images to fill the gallery, even if findings and hero use up all pictures of some source images.
_GALLERY_SOURCES = GALLERY + PER_FINDING * FINDINGS_WITH_PICTURES + 1

_Finding = tuple[str, str, Cell]


@dataclass(frozen=True, slots=True)
class PictureSelection:
    """Ids of counterfactuals. The keys of `findings` are (model, method, cell); `hero` is the page's first picture."""

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


class _Rank(NamedTuple):
    """Sort key: flips that the null or sham arm does not share first; then the largest loss of probability."""

    not_flipped: bool
    null_flipped: bool
    change: float
    id: str


def select_pictures(sources: Iterable[SourceRows], results: JobResults) -> PictureSelection:
    """The pictures of a job, ordered by flip, then loss of probability, then id. Equal rows give equal pictures."""
    findings = [(effect, figures) for figures in results.results for effect in figures.findings]
    findings.sort(key=lambda pair: pair[0].standing != "weakness")
    best: dict[_Finding, list[_Rank]] = {
        (figures.model, figures.method, effect.cell): [] for effect, figures in findings[:FINDINGS_WITH_PICTURES]
    }
    models = list(dict.fromkeys(figures.model for figures in results.results))
    hero_model = next((model for model, _, _ in best), models[0] if models else None)
    heroes: list[_Rank] = []
    accepted: defaultdict[str, list[str]] = defaultdict(list)
    rejected: defaultdict[str, list[str]] = defaultdict(list)
    for rows in sources:
        edits = list(triples(rows.counterfactuals))
        counted = [triple for triple in edits if triple.edit.counted]
        _update_best(rows, counted, results, best)
        if not best:
            predictions = rows.predictions_of(hero_model or "")
            heroes = nsmallest(1, [*heroes, *(_rank(triple, predictions, ALL_CLASSES) for triple in counted)])
        if counted and len(accepted) < _GALLERY_SOURCES:
            accepted[rows.source.id] = [triple.edit.id for triple in counted]
        for row in (triple.edit for triple in edits):
            if not row.accepted and row.rendered and len(rejected[row.check]) < REJECTED:
                rejected[row.check].append(row.id)
    pictures = {finding: [rank.id for rank in ranks] for finding, ranks in best.items()}
    hero = next((ids[0] for ids in pictures.values() if ids), heroes[0].id if heroes else None)
    used_ids = {id for ids in pictures.values() for id in ids}
    unused_ids = [[id for id in ids if id not in used_ids] for ids in accepted.values()]
    gallery, rejected_ids = _round_robin(unused_ids, GALLERY), _round_robin(rejected.values(), REJECTED)
    return PictureSelection(hero, hero_model, pictures, gallery, rejected_ids)


def _update_best(
    rows: SourceRows,
    counted: list[Triple[CounterfactualRow]],
    results: JobResults,
    best: dict[_Finding, list[_Rank]],
) -> None:
    """Insert the counterfactuals of a source image into the best pictures of each finding."""
    relation = results.results[0].relation if results.results else "labelled"
    for (model, method, cell), ranks in best.items():
        predictions = rows.predictions_of(model)
        if cell.label not in rows.labels(predictions.get(rows.source.id), relation):
            continue
        members = [
            triple for triple in counted if triple.edit.method == method and cell in cells_of(triple.edit, cell.label)
        ]
        if members:
            candidates = [*ranks, *(_rank(triple, predictions, cell.label) for triple in members)]
            ranks[:] = nsmallest(PER_FINDING, candidates)


def _rank(triple: Triple[CounterfactualRow], predictions: Mapping[str, PredictionRow], label: str) -> _Rank:
    """`label` is the class in question; only segmenters predict more than one for an image."""
    compared = triple.predictions(predictions)
    original, image, reference = compared.original, compared.counterfactual, compared.reference
    if original is None or image is None:
        return _Rank(True, True, 0.0, triple.edit.id)
    flipped = _differs(original, image, label)
    damaged = reference is not None and _differs(original, reference, label)
    change = (image.confidence(label) or 0.0) - (original.confidence(label) or 0.0)
    return _Rank(not flipped, damaged, change, triple.edit.id)


def _differs(original: PredictionRow, other: PredictionRow, label: str) -> bool:
    if original.overlaps is None:
        return other.predicted != original.predicted
    return original.holds(label) != other.holds(label)


def _round_robin(groups: Iterable[list[str]], limit: int) -> list[str]:
    """Up to `limit` ids, taken from the groups in turn, so that no source image or check fills the list."""
    groups = list(groups)
    longest = max(map(len, groups), default=0)
    ids = (group[index] for index in range(longest) for group in groups if index < len(group))
    return list(islice(ids, limit))
