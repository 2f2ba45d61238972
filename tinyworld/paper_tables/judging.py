"""What oracles and grammar say of a job's counterfactuals, whose source scenes are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.analysis.certainty import LEVEL, clustered_rate, mean_interval
from gateway.methods.counterfactual import FACTORS, Change, Edit, Factor
from shared.images import decode
from shared.schemas.jobs import CounterfactualView
from shared.schemas.results import Rate
from shared.seeds import derive_seed
from tinyworld.judges.oracles import in_place, judge
from tinyworld.judges.trials import source_picture
from tinyworld.measure.counterfactuals import OTHER, Seen, field_and_value, known_of, seen_of
from tinyworld.objects.pictures import Pixels, rendered
from tinyworld.objects.world import EDIT_FACTOR, Scene
from tinyworld.paper_tables.rows import FactorFigures, MeanDifference, TextChecks

FIELD_FACTORS = {"label": "subject", **EDIT_FACTOR}
# Refusals that are no judgement on an edit: there was another one like it.
NO_JUDGEMENT = frozenset({"duplicate edit"})
_AT_ONCE = 100  # images judged together


@dataclass(frozen=True, slots=True)
class Judged:
    """A proposed edit: the field of the scene that its captions change, and, where accepted, what the oracles see.

    `known`: the fields that both oracles read rightly on the source image.
    """

    view: CounterfactualView
    factor: str
    field: str
    seen: Seen | None
    known: tuple[str, ...]

    @property
    def as_asked(self) -> bool:
        """Whether its captions differ in one field, of the factor that was asked for."""
        return FIELD_FACTORS.get(self.field) == self.factor

    @property
    def wrong(self) -> bool:
        """Whether its captions change the class, no field of the scene, or several."""
        return self.field in (OTHER, "label")

    @property
    def flipped(self) -> bool:
        """Whether a model under test that is right on the original no longer is on the counterfactual."""
        return any(
            one.original is not None
            and one.counterfactual is not None
            and one.original.rank == 1 != one.counterfactual.rank
            for one in self.view.predictions
        )

    @property
    def others(self) -> tuple[str, ...]:
        """The fields beside class and edit that can be judged."""
        return tuple(name for name in self.known if name not in ("label", self.field))

    @property
    def changed_besides(self) -> tuple[str, ...]:
        """Those of `others` that the oracles no longer both read rightly."""
        return () if self.seen is None else tuple(name for name in self.seen.others if name in self.others)


def judged(views: Sequence[CounterfactualView], scenes: Sequence[Scene], image: Callable[[str], bytes]) -> list[Judged]:
    """All proposed edits of a job over `scenes` (in the order of their positions); `image` loads a digest's PNG."""
    before = judge([source_picture(scene) for scene in scenes])
    known = [known_of(scene, said) for scene, said in zip(scenes, before, strict=True)]
    found = []
    for start in range(0, len(views), _AT_ONCE):
        some = views[start : start + _AT_ONCE]
        accepted = [one for one in some if one.verdict.accepted and one.image]
        pictures: list[Pixels] = [decode(image(one.image)) for one in accepted if one.image]
        masks = [rendered(scenes[one.source.position])[1] == 1 for one in accepted]
        said = zip(judge(pictures), in_place(pictures, masks), strict=True) if pictures else iter(())
        read_in = {one.id: pair for one, pair in zip(accepted, said, strict=True)}
        for one in some:
            scene = scenes[one.source.position]
            field, value = field_and_value(_edit(one))
            pair = read_in.get(one.id)
            seen = None if pair is None else seen_of(scene, field, value, True, *pair)
            factor = one.changes[0].factor if one.changes else ""
            found.append(Judged(one, factor, field, seen, known[one.source.position]))
    return found


def _edit(view: CounterfactualView) -> Edit:
    changes = [
        Change(_factor(one.factor), one.from_phrase, one.to_phrase, one.from_value, one.to_value)
        for one in view.changes
    ]
    return Edit(tuple(changes) or (Change("other", "", "", "", ""),), view.caption, view.new_caption)


def _factor(name: str) -> Factor:
    return next((factor for factor in FACTORS if factor == name), "other")


def factor_figures(found: Sequence[Judged]) -> list[FactorFigures]:
    """The figures of all edits, then of each factor by name."""
    factors = sorted({one.factor for one in found if one.factor})
    rows = [_figures("all", found)]
    return rows + [_figures(name, [one for one in found if one.factor == name]) for name in factors]


def _figures(factor: str, found: Sequence[Judged]) -> FactorFigures:
    accepted = [one for one in found if one.seen is not None]
    pairs = [(one, name) for one in accepted for name in one.others]
    return FactorFigures(
        factor=factor,
        as_asked=_rate(found, lambda one: one.as_asked),
        accepted=_rate(found, lambda one: one.view.verdict.accepted),
        kept=_rate(accepted, _kept),
        kept_flipped=_rate([one for one in accepted if one.flipped], _kept),
        shown=_rate(
            [one for one in accepted if one.field != OTHER], lambda one: one.seen is not None and one.seen.shown
        ),
        unchanged=_rate(accepted, lambda one: not one.changed_besides),
        each_unchanged=_clustered(
            [name not in one.changed_besides for one, name in pairs], [one.view.source.position for one, _ in pairs]
        ),
        deltas=dict(_deltas(factor, accepted)),
    )


def _kept(one: Judged) -> bool:
    return one.seen is not None and one.seen.kept


def _deltas(factor: str, accepted: Sequence[Judged]) -> Iterator[tuple[str, MeanDifference]]:
    """By model: per source image the mean over its counterfactuals of right on it less right on the original."""
    by_model: dict[str, dict[int, list[int]]] = {}
    for one in accepted:
        for said in one.view.predictions:
            if said.original is not None and said.counterfactual is not None:
                difference = (said.counterfactual.rank == 1) - (said.original.rank == 1)
                by_model.setdefault(said.model, {}).setdefault(one.view.source.position, []).append(difference)
    for model, by_source in sorted(by_model.items()):
        means = np.array([np.mean(values) for values in by_source.values()], np.float64)
        interval = mean_interval(means, LEVEL, derive_seed("paper tables", factor, model))
        yield (
            model,
            MeanDifference(
                sources=len(means), mean=round(float(means.mean()), 4), low=interval.low, high=interval.high
            ),
        )


def text_checks(found: Sequence[Judged]) -> TextChecks | None:
    """How the refusals by words stand to the grammar; None where no words are refused or nothing is readable."""
    proposed = [one for one in found if one.view.caption and one.view.verdict.check not in NO_JUDGEMENT]
    refused = [one for one in proposed if one.view.image is None]
    if not refused:
        return None
    return TextChecks(
        precision=_rate(refused, lambda one: one.wrong),
        recall=_rate([one for one in proposed if one.wrong], lambda one: one.view.image is None),
    )


def _rate(some: Sequence[Judged], test: Callable[[Judged], bool]) -> Rate:
    return _clustered([test(one) for one in some], [one.view.source.position for one in some])


def _clustered(hits: Iterable[bool], sources: Iterable[int]) -> Rate:
    return clustered_rate(np.array(list(hits), bool), np.array(list(sources), np.int64))
