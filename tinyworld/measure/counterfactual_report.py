"""The report of measured counterfactuals: rates by factor with Wilson intervals, how null arms compare with the
originals, how far the source's attention to the class overlaps the object, and how far the oracles are to be believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tinyworld.judges.label import error_lines, in_words, shipped_labels
from tinyworld.measure.equivalence import equivalence
from tinyworld.measure.records import Record
from tinyworld.objects.factors import FACTORS

Test = Callable[[Record], bool]
MARGIN = 0.01  # of accuracy, within which reconstructions should equal the originals


def report(done: Sequence[Record], settings: Mapping[str, object]) -> str:
    """All figures in words; rates as "share (count of n; interval)"."""
    edits = [one for one in done if one.arm == "edit"]
    nulls = [one for one in done if one.arm == "null"]
    lines = [f"{len(edits)} counterfactuals, one source each; " + ", ".join(f"{k} {v}" for k, v in settings.items())]
    for title, some in (
        ("all", edits),
        ("combinations seen by the generator", [one for one in edits if not one.withheld]),
        ("combinations withheld from it", [one for one in edits if one.withheld]),
    ):
        if some:
            lines += ["", f"== {title} ({len(some)})", *_table(some)]
    if edits:
        lines += ["", "== refused by", *_refusals(edits)]
    if nulls:
        lines += ["", f"== null arms ({len(nulls)})", *_null_lines(nulls)]
    if nulls and edits:
        lines += ["", "== beside the null arm of the same source", *_beside_nulls(edits, nulls)]
    lines += ["", "== cost and attention", *_cost_lines(edits, done)]
    lines += [
        "",
        "== the oracles against people who looked without knowing their answers",
        *error_lines(shipped_labels()),
    ]
    return "\n".join(lines) + "\n"


def _table(some: Sequence[Record]) -> Iterable[str]:
    yield (
        f"{'':<12} {'n':>4}  yield, then among accepted: label kept | kept if flipped | edit shown | all others "
        "unchanged | each other unchanged"
    )
    groups = {"all": list(some)}
    groups |= {name: [one for one in some if one.factor == name] for name in sorted({one.factor for one in some})}
    groups |= {f". {name}": [one for one in some if one.field == name] for name in sorted({one.field for one in some})}
    for name, members in groups.items():
        accepted = [one for one in members if one.accepted]
        cells = (
            _rate(members, lambda one: one.accepted),
            _rate(accepted, lambda one: one.kept),
            _rate([one for one in accepted if one.flipped], lambda one: one.kept),
            _rate([one for one in accepted if one.field in FACTORS], lambda one: one.shown),
            _rate(accepted, lambda one: not one.changed_besides),
            _each_unchanged(accepted),
        )
        yield f"{name:<12} {len(members):>4}  " + " | ".join(cells)
    yield "others count where both oracles read them rightly on the source; each: (image, field) pairs"
    drawn = [one for one in some if one.image]
    yield "before the checks: " + ", ".join(
        f"{what} {_rate(drawn, test)}"
        for what, test in (
            ("label kept", lambda one: one.kept),
            ("edit shown", lambda one: one.shown),
            ("all others unchanged", lambda one: not one.changed_besides),
        )
    )
    worst = sorted({name for one in drawn for name in one.changed_besides})
    yield "changed besides: " + ", ".join(f"{name} {_rate(drawn, _changes(name))}" for name in worst)


def _each_unchanged(some: Sequence[Record]) -> str:
    """Over all fields, beside class and edit, that both oracles read rightly on the source."""
    n = sum(len({*one.known} - {"label", one.field}) for one in some if one.known is not None)
    return in_words(n - sum(len(one.changed_besides) for one in some if one.known is not None), n)


def _changes(name: str) -> Test:
    return lambda one: name in one.changed_besides


def _refusals(edits: Sequence[Record]) -> Iterable[str]:
    for check in sorted({one.check for one in edits if one.check}):
        refused = [one for one in edits if one.check == check]
        if drawn := [one for one in refused if one.image]:
            good = _rate(drawn, lambda one: one.kept and one.shown)
            yield f"{check}: {len(refused)}, of which the oracles call right {good}"
        else:
            yield f"{check}: {len(refused)}, by words alone"


def _null_lines(nulls: Sequence[Record]) -> Iterable[str]:
    yield f"label kept {_rate(nulls, lambda one: one.kept)}"
    yield f"all other factors unchanged {_rate(nulls, lambda one: not one.changed_besides)}"
    if len(nulls) < 2:
        return
    by_model = {
        model: np.array([_right(one, model, 1) - _right(one, model, 0) for one in nulls], np.float64)
        for model in sorted({name for one in nulls for name in one.predicted})
    }
    for model, differences in {**by_model, "mean of the models": np.mean(list(by_model.values()), axis=0)}.items():
        found = equivalence(differences, MARGIN)
        verdict = "equivalent to" if found.equivalent else "not shown to be equivalent to"
        yield (
            f"{model}: accuracy {100 * found.mean:+.2f} points, 90 % interval {100 * found.low:+.2f} to "
            f"{100 * found.high:+.2f}, n = {found.n}: {verdict} the originals within {100 * MARGIN:g} point"
            f" (TOST, p = {found.p_value:.2g})"
        )


def _beside_nulls(edits: Sequence[Record], nulls: Sequence[Record]) -> Iterable[str]:
    """What the edit itself costs: only of what the oracles still read rightly on the source's null arm."""
    by_source = {one.source: one for one in nulls}
    accepted = [one for one in edits if one.accepted and one.source in by_source]
    yield "where the oracles still read them there, among accepted: label kept | each other unchanged"
    for name in ("all", *sorted({one.factor for one in accepted})):
        some = [one for one in accepted if name in ("all", one.factor)]
        kept = [one for one in some if by_source[one.source].kept]
        survived = [
            (one, field)
            for one in some
            if one.known is not None
            for field in {*one.known} - {"label", one.field, *by_source[one.source].changed_besides}
        ]
        unchanged = sum(field not in one.changed_besides for one, field in survived)
        yield f"{name:<12} {_rate(kept, lambda one: one.kept)} | {in_words(unchanged, len(survived))}"


def _right(one: Record, model: str, place: int) -> int:
    """Whether a model names the class on the source (0) or on the image (1)."""
    return int(one.predicted[model][place] == one.label)


def _cost_lines(edits: Sequence[Record], done: Sequence[Record]) -> Iterable[str]:
    spent = [one.evaluations for one in done if one.evaluations is not None]
    accepted = sum(one.accepted for one in edits)
    if spent and accepted:
        yield f"{sum(spent) / accepted:,.0f} network evaluations per accepted counterfactual, null arms included"
    seen = {one.source: (one.attention, one.kept) for one in done if one.attention is not None}
    if seen:
        overlaps = np.array([overlap for overlap, _ in seen.values()], np.float64)
        low, high = np.quantile(overlaps, (0.1, 0.9))
        yield (
            f"attention to the class overlaps the object: mean IoU {overlaps.mean():.2f}, middle 80 % {low:.2f} to "
            f"{high:.2f} (n = {len(overlaps)}; as many pixels as the object has)"
        )


def _rate(some: Sequence[Record], test: Test) -> str:
    return in_words(sum(map(test, some)), len(some))
