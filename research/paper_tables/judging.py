"""Judge a job's counterfactuals by oracles and the caption parser; their source scenes are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.analysis.certainty import LEVEL, clustered_rate, mean_interval
from gateway.methods.counterfactual import FACTORS, Change, Edit, Factor
from research.judges.oracles.objects import in_place, judge
from research.judges.trials import source_picture
from research.measure.counterfactuals import (
    OTHER_FACTOR,
    OracleVerdict,
    field_and_value,
    oracle_verdict,
    readable_fields,
)
from research.objects.pictures import render_pair
from research.paper_tables.rows import FactorFigures, MeanDifference, TextChecks
from research.pictures.rendered_once import Pixels
from shared.chunks import chunks
from shared.media.images import decode
from shared.schemas.effects import Rate
from shared.schemas.results import CounterfactualView
from shared.seeds import derive_seed
from tinyworld.objects.world import EDIT_FACTOR, Scene

FIELD_FACTORS = {"label": "subject", **EDIT_FACTOR}
# Refusals that do not judge an edit: another edit was the same.
NO_JUDGEMENT = frozenset({"duplicate edit"})
_AT_ONCE = 100  # images judged together


@dataclass(frozen=True, slots=True)
class JudgedCounterfactual:
    """A proposed edit: the field of the scene that its captions change, and, if accepted, the oracles' verdict.

    `known`: the fields that both oracles read correctly on the source image.
    """

    view: CounterfactualView
    factor: str
    field: str
    oracle: OracleVerdict | None
    readable_fields: tuple[str, ...]

    @property
    def as_asked(self) -> bool:
        """Whether its captions differ in one field, of the requested factor."""
        return FIELD_FACTORS.get(self.field) == self.factor

    @property
    def wrong(self) -> bool:
        """Whether its captions change the class, no field of the scene, or several."""
        return self.field in (OTHER_FACTOR, "label")

    @property
    def flipped(self) -> bool:
        """Whether a model under test that is right on the original no longer is on the counterfactual."""
        return any(
            opinion.original is not None
            and opinion.counterfactual is not None
            and opinion.original.rank == 1 != opinion.counterfactual.rank
            for opinion in self.view.predictions
        )

    @property
    def other_changes(self) -> tuple[str, ...]:
        """The fields beside class and edit that can be judged."""
        return tuple(name for name in self.readable_fields if name not in ("label", self.field))

    @property
    def changed_besides(self) -> tuple[str, ...]:
        """Those of `other_changes` that at least one oracle no longer reads correctly."""
        return () if self.oracle is None else tuple(name for name in self.oracle.others if name in self.other_changes)


def judge_counterfactuals(
    views: Sequence[CounterfactualView], scenes: Sequence[Scene], image: Callable[[str], bytes]
) -> list[JudgedCounterfactual]:
    """All proposed edits of a job over `scenes` (in the order of their positions); `image` loads a digest's PNG."""
    before = judge([source_picture(scene) for scene in scenes])
    readable = [readable_fields(scene, readings) for scene, readings in zip(scenes, before, strict=True)]
    results = []
    for batch in chunks(views, _AT_ONCE):
        accepted = [view for view in batch if view.verdict.accepted and view.image]
        pictures: list[Pixels] = [decode(image(view.image)) for view in accepted if view.image]
        masks = [render_pair(scenes[view.source.position])[1] == 1 for view in accepted]
        readings = zip(judge(pictures), in_place(pictures, masks), strict=True) if pictures else iter(())
        read_in = {view.id: pair for view, pair in zip(accepted, readings, strict=True)}
        for view in batch:
            scene = scenes[view.source.position]
            field, value = field_and_value(_edit(view))
            pair = read_in.get(view.id)
            verdict = None if pair is None else oracle_verdict(scene, field, value, True, *pair)
            factor = view.changes[0].factor if view.changes else ""
            results.append(JudgedCounterfactual(view, factor, field, verdict, readable[view.source.position]))
    return results


def _edit(view: CounterfactualView) -> Edit:
    changes = [
        Change(_factor(change.factor), change.from_phrase, change.to_phrase, change.from_value, change.to_value)
        for change in view.changes
    ]
    return Edit(tuple(changes) or (Change("other", "", "", "", ""),), view.caption, view.new_caption)


def _factor(name: str) -> Factor:
    return next((factor for factor in FACTORS if factor == name), "other")


def factor_figures(edits: Sequence[JudgedCounterfactual]) -> list[FactorFigures]:
    """The figures of all edits, then of each factor by name."""
    factors = sorted({edit.factor for edit in edits if edit.factor})
    rows = [_figures("all", edits)]
    return rows + [_figures(name, [edit for edit in edits if edit.factor == name]) for name in factors]


def _figures(factor: str, edits: Sequence[JudgedCounterfactual]) -> FactorFigures:
    accepted = [edit for edit in edits if edit.oracle is not None]
    pairs = [(edit, name) for edit in accepted for name in edit.other_changes]
    return FactorFigures(
        factor=factor,
        as_asked=_rate(edits, lambda edit: edit.as_asked),
        accepted=_rate(edits, lambda edit: edit.view.verdict.accepted),
        kept=_rate(accepted, _keeps_rest),
        kept_flipped=_rate([edit for edit in accepted if edit.flipped], _keeps_rest),
        shown=_rate(
            [edit for edit in accepted if edit.field != OTHER_FACTOR],
            lambda edit: edit.oracle is not None and edit.oracle.shown,
        ),
        unchanged=_rate(accepted, lambda edit: not edit.changed_besides),
        each_unchanged=_cluster_rate(
            [name not in edit.changed_besides for edit, name in pairs], [edit.view.source.position for edit, _ in pairs]
        ),
        deltas=dict(_deltas(factor, accepted)),
    )


def _keeps_rest(edit: JudgedCounterfactual) -> bool:
    return edit.oracle is not None and edit.oracle.kept


def _deltas(factor: str, accepted: Sequence[JudgedCounterfactual]) -> Iterator[tuple[str, MeanDifference]]:
    """By model: per source image the mean over its counterfactuals of right on it less right on the original."""
    by_model: dict[str, dict[int, list[int]]] = {}
    for edit in accepted:
        for opinion in edit.view.predictions:
            if opinion.original is not None and opinion.counterfactual is not None:
                difference = (opinion.counterfactual.rank == 1) - (opinion.original.rank == 1)
                by_model.setdefault(opinion.model, {}).setdefault(edit.view.source.position, []).append(difference)
    for model, by_source in sorted(by_model.items()):
        means = np.array([np.mean(values) for values in by_source.values()], np.float64)
        interval = mean_interval(means, LEVEL, derive_seed("paper tables", factor, model))
        yield (
            model,
            MeanDifference(
                sources=len(means), mean=round(float(means.mean()), 4), low=interval.low, high=interval.high
            ),
        )


def text_checks(edits: Sequence[JudgedCounterfactual]) -> TextChecks | None:
    """The text checks' refusals, judged by the grammar; None if there are no refusals or no readable captions."""
    proposed = [edit for edit in edits if edit.view.caption and edit.view.verdict.check not in NO_JUDGEMENT]
    refused = [edit for edit in proposed if edit.view.image is None]
    if not refused:
        return None
    return TextChecks(
        precision=_rate(refused, lambda edit: edit.wrong),
        recall=_rate([edit for edit in proposed if edit.wrong], lambda edit: edit.view.image is None),
    )


def _rate(rows: Sequence[JudgedCounterfactual], test: Callable[[JudgedCounterfactual], bool]) -> Rate:
    return _cluster_rate([test(edit) for edit in rows], [edit.view.source.position for edit in rows])


def _cluster_rate(hits: Iterable[bool], sources: Iterable[int]) -> Rate:
    return clustered_rate(np.array(list(hits), bool), np.array(list(sources), np.int64))
