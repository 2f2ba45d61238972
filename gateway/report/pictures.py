"""Which counterfactuals the report shows: pictures of each finding, flips first; a gallery; some rejected ones.

Source images are streamed and only candidates are kept, so memory does not grow with the job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from gateway.results.pairing import CounterfactualRow, PredictionRow, Triple, labels, triples
from gateway.results.stream import SourceRows, cells_of
from shared.schemas.effects import Cell, CellEffect
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.reports import FindingPictures, ReportPictures
from shared.schemas.results import JobResults, ModelResults

PER_FINDING = 6
FINDINGS_WITH_PICTURES = 6
GALLERY = 24
REJECTED = 9

# Enough source images to fill the gallery, even if findings and hero use up all pictures of some source images.
_GALLERY_SOURCES = GALLERY + PER_FINDING * FINDINGS_WITH_PICTURES + 1

_Finding = tuple[str, str, Cell]


class _Rank(NamedTuple):
    """Sort key: flips that the null or sham arm does not share first; then the largest loss of probability."""

    not_flipped: bool
    null_flipped: bool
    change: float
    id: str


def select_pictures(sources: Iterable[SourceRows], results: JobResults) -> ReportPictures:
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
        _update_best(rows, counted, best)
        if not best:
            predictions = rows.predictions_of(hero_model or "")
            heroes = nsmallest(1, [*heroes, *(_rank(triple, predictions, ALL_CLASSES) for triple in counted)])
        if counted and len(accepted) < _GALLERY_SOURCES:
            accepted[rows.source.id] = [triple.edit.id for triple in counted]
        for row in (triple.edit for triple in edits):
            if not row.accepted and row.rendered and len(rejected[row.check]) < REJECTED:
                rejected[row.check].append(row.id)
    pictures = [
        FindingPictures(model=model, method=method, cell=cell, counterfactuals=[rank.id for rank in ranks])
        for (model, method, cell), ranks in best.items()
    ]
    hero = heroes[0].id if heroes else None
    if strongest := _strongest(findings, pictures):
        hero, hero_model = strongest.counterfactuals[0], strongest.model
    used_ids = {id for finding in pictures for id in finding.counterfactuals}
    unused_ids = [[id for id in ids if id not in used_ids] for ids in accepted.values()]
    gallery, rejected_ids = _round_robin(unused_ids, GALLERY), _round_robin(rejected.values(), REJECTED)
    return ReportPictures(hero=hero, hero_model=hero_model, findings=pictures, gallery=gallery, rejected=rejected_ids)


def _strongest(
    findings: Sequence[tuple[CellEffect, ModelResults]], pictures: Sequence[FindingPictures]
) -> FindingPictures | None:
    """The finding with pictures that lies furthest beyond no effect; `findings` begin with those of `pictures`."""
    shown = [
        (effect.standing != "weakness", _least(effect), number)
        for number, ((effect, _), finding) in enumerate(zip(findings, pictures, strict=False))
        if finding.counterfactuals
    ]
    return pictures[min(shown)[2]] if shown else None


def _least(effect: CellEffect) -> float:
    """The end of a finding's interval next to zero; the strongest weakness has the lowest."""
    interval = effect.selected_interval or effect.interval
    if interval is None:
        return effect.delta_accuracy
    return interval.high if effect.standing == "weakness" else -interval.low


def _update_best(
    rows: SourceRows,
    counted: list[Triple[CounterfactualRow]],
    best: dict[_Finding, list[_Rank]],
) -> None:
    """Insert the counterfactuals of a source image into the best pictures of each finding."""
    for (model, method, cell), ranks in best.items():
        predictions = rows.predictions_of(model)
        if cell.label not in labels(predictions.get(rows.source.id)):
            continue
        members = [
            triple for triple in counted if triple.edit.method == method and cell in cells_of(triple.edit, cell.label)
        ]
        if members:
            candidates = [*ranks, *(_rank(triple, predictions, cell.label) for triple in members)]
            ranks[:] = nsmallest(PER_FINDING, candidates)


def _rank(triple: Triple[CounterfactualRow], predictions: Mapping[str, PredictionRow], label: str) -> _Rank:
    """`label` is the class in question, of several in an image."""
    compared = triple.predictions(predictions)
    original, image, reference = compared.original, compared.counterfactual, compared.reference
    if original is None or image is None:
        return _Rank(True, True, 0.0, triple.edit.id)
    flipped = _differs(original, image, label)
    damaged = reference is not None and _differs(original, reference, label)
    change = (image.confidence(label) or 0.0) - (original.confidence(label) or 0.0)
    return _Rank(not flipped, damaged, change, triple.edit.id)


def _differs(original: PredictionRow, edited: PredictionRow, label: str) -> bool:
    if ALL_CLASSES in original.scores:  # of several labels only the one in question matters
        return original.holds(label) != edited.holds(label)
    return edited.predicted != original.predicted


def _round_robin(groups: Iterable[list[str]], limit: int) -> list[str]:
    """Up to `limit` ids, taken from the groups in turn, so that no source image or check fills the list."""
    groups = list(groups)
    longest = max(map(len, groups), default=0)
    ids = (group[index] for index in range(longest) for group in groups if index < len(group))
    return list(islice(ids, limit))
