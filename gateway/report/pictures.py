"""Which counterfactuals to show: per finding those that flipped first, then a gallery, then some of the rejected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.outcomes import CounterfactualRow, JobRows, PredictionRow, cells_of
from shared.schemas.results import Cell, JobResults, ModelResults

PER_FINDING = 6
FINDINGS_WITH_PICTURES = 6
GALLERY = 24
REJECTED = 9


@dataclass(frozen=True, slots=True)
class Selection:
    """Ids of counterfactuals. `findings` is keyed by (model, method, cell); `hero` is the first picture of all."""

    hero: str | None
    hero_model: str | None
    findings: dict[tuple[str, str, Cell], list[str]]
    gallery: list[str]
    rejected: list[str]

    @property
    def ids(self) -> list[str]:
        """Every id once."""
        in_findings = [id for ids in self.findings.values() for id in ids]
        return list(dict.fromkeys([*([self.hero] if self.hero else []), *in_findings, *self.gallery, *self.rejected]))


def select_pictures(rows: JobRows, results: JobResults) -> Selection:
    """The same pictures for the same rows: the order is by flip, then loss of probability, then id."""
    said = {(row.model, row.counterfactual or row.source): row for row in rows.predictions}
    edits = [row for row in rows.counterfactuals if row.arm == "edit"]
    nulls = {(row.source, row.method, row.ordinal): row.id for row in rows.counterfactuals if row.arm == "null"}
    accepted = [row for row in edits if row.accepted]
    truth = {source.id: source.ground_truth for source in rows.sources}
    findings: dict[tuple[str, str, Cell], list[str]] = {}
    ranked = [(effect, found) for found in results.results for effect in found.findings]
    ranked.sort(key=lambda pair: pair[0].standing != "weakness")
    for effect, found in ranked[:FINDINGS_WITH_PICTURES]:
        members = [
            row for row in accepted if row.method == found.method and effect.cell in _cells(row, found, said, truth)
        ]
        members.sort(key=lambda row: _drama(row, found.model, said, nulls))
        findings[found.model, found.method, effect.cell] = [row.id for row in members[:PER_FINDING]]
    hero_model = next((model for model, _, _ in findings), rows.job.models[0] if rows.job.models else None)
    hero = next((ids[0] for ids in findings.values() if ids), None)
    if hero is None and accepted:
        hero = min(accepted, key=lambda row: _drama(row, hero_model or "", said, nulls)).id
    shown = {id for ids in findings.values() for id in ids}
    rest = _in_turn(((row.source, row) for row in accepted if row.id not in shown), GALLERY)
    rejected = _in_turn(((row.check, row) for row in edits if not row.accepted and row.rendered), REJECTED)
    return Selection(hero, hero_model, findings, [row.id for row in rest], [row.id for row in rejected])


_Said = dict[tuple[str, str], PredictionRow]


def _cells(row: CounterfactualRow, found: ModelResults, said: _Said, truth: dict[str, str | None]) -> list[Cell]:
    label = truth[row.source]
    if found.relation == "metamorphic":
        original = said.get((found.model, row.source))
        label = original.predicted if original else None
    return [] if label is None else cells_of(row, label)


def _drama(
    row: CounterfactualRow, model: str, said: _Said, nulls: dict[tuple[str, str, int], str]
) -> tuple[bool, bool, float, str]:
    """Sort key: flips that the null arm does not share first; then the largest loss of the truth's probability."""
    original, seen = said.get((model, row.source)), said.get((model, row.id))
    null_id = nulls.get((row.source, row.method, row.null_ordinal), "") if row.null_ordinal is not None else ""
    null = said.get((model, null_id))
    if original is None or seen is None:
        return (True, True, 0.0, row.id)
    flipped = seen.predicted != original.predicted
    damaged = null is not None and null.predicted != original.predicted
    return (not flipped, damaged, (seen.p_truth or 0.0) - (original.p_truth or 0.0), row.id)


def _in_turn(rows: Iterable[tuple[str, CounterfactualRow]], most: int) -> list[CounterfactualRow]:
    """One of each group in turn, so that no source image or check crowds out the others."""
    groups: dict[str, list[CounterfactualRow]] = defaultdict(list)
    for name, row in rows:
        groups[name].append(row)
    longest = max(map(len, groups.values()), default=0)
    turns = (group[turn] for turn in range(longest) for group in groups.values() if turn < len(group))
    return [row for _, row in zip(range(most), turns, strict=False)]
