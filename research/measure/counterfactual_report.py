"""The report of measured counterfactuals.

It has rates by factor with Wilson intervals, a comparison of null arms with the originals, the overlap of the source's
attention to the class with the object, and the oracles' error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from research.judges.label import error_lines, shipped_labels
from research.judges.records import Record
from research.statistics.equivalence import equivalence
from research.statistics.rates import rate_text
from tinyworld.objects.world import FACTORS

Test = Callable[[Record], bool]
MARGIN = 0.01  # margin of accuracy for the equivalence of reconstructions and originals


def report(done: Sequence[Record], settings: Mapping[str, object]) -> str:
    """All figures in words; rates as "share (count of n; interval)"."""
    edits = [record for record in done if record.arm == "edit"]
    nulls = [record for record in done if record.arm == "null"]
    lines = [f"{len(edits)} counterfactuals, one source each; " + ", ".join(f"{k} {v}" for k, v in settings.items())]
    for title, chosen in (
        ("all", edits),
        ("combinations seen by the generator", [record for record in edits if not record.withheld]),
        ("combinations withheld from it", [record for record in edits if record.withheld]),
    ):
        if chosen:
            lines += ["", f"== {title} ({len(chosen)})", *_table(chosen)]
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


def _table(records: Sequence[Record]) -> Iterable[str]:
    yield (
        f"{'':<12} {'n':>4}  yield, then among accepted: label kept | kept if flipped | edit shown | all others "
        "unchanged | each other unchanged"
    )
    groups = {"all": list(records)}
    groups |= {
        name: [record for record in records if record.factor == name]
        for name in sorted({record.factor for record in records})
    }
    groups |= {
        f". {name}": [record for record in records if record.field == name]
        for name in sorted({record.field for record in records})
    }
    for name, members in groups.items():
        accepted = [record for record in members if record.accepted]
        cells = (
            _rate(members, lambda record: record.accepted),
            _rate(accepted, lambda record: record.kept),
            _rate([record for record in accepted if record.flipped], lambda record: record.kept),
            _rate([record for record in accepted if record.field in FACTORS], lambda record: record.shown),
            _rate(accepted, lambda record: not record.changed_besides),
            _unchanged_rates(accepted),
        )
        yield f"{name:<12} {len(members):>4}  " + " | ".join(cells)
    yield "others count where both oracles read them rightly on the source; each: (image, field) pairs"
    rendered = [record for record in records if record.image]
    yield "before the checks: " + ", ".join(
        f"{name} {_rate(rendered, test)}"
        for name, test in (
            ("label kept", lambda record: record.kept),
            ("edit shown", lambda record: record.shown),
            ("all others unchanged", lambda record: not record.changed_besides),
        )
    )
    worst = sorted({name for record in rendered for name in record.changed_besides})
    yield "changed besides: " + ", ".join(f"{name} {_rate(rendered, _changes(name))}" for name in worst)


def _unchanged_rates(records: Sequence[Record]) -> str:
    """Rate over all fields except class and edit that both oracles read correctly on the source."""
    n = sum(
        len({*record.readable_fields} - {"label", record.field})
        for record in records
        if record.readable_fields is not None
    )
    return rate_text(
        n - sum(len(record.changed_besides) for record in records if record.readable_fields is not None), n
    )


def _changes(name: str) -> Test:
    return lambda record: name in record.changed_besides


def _refusals(edits: Sequence[Record]) -> Iterable[str]:
    for check in sorted({record.check for record in edits if record.check}):
        refused = [record for record in edits if record.check == check]
        if rendered := [record for record in refused if record.image]:
            good = _rate(rendered, lambda record: record.kept and record.shown)
            yield f"{check}: {len(refused)}; the oracles call {good} of them right"
        else:
            yield f"{check}: {len(refused)}, by words alone"


def _null_lines(nulls: Sequence[Record]) -> Iterable[str]:
    yield f"label kept {_rate(nulls, lambda record: record.kept)}"
    yield f"all other factors unchanged {_rate(nulls, lambda record: not record.changed_besides)}"
    if len(nulls) < 2:
        return
    by_model = {
        model: np.array([_right(record, model, 1) - _right(record, model, 0) for record in nulls], np.float64)
        for model in sorted({name for record in nulls for name in record.predicted})
    }
    for model, differences in {**by_model, "mean of the models": np.mean(list(by_model.values()), axis=0)}.items():
        test = equivalence(differences, MARGIN)
        verdict = "equivalent to" if test.equivalent else "not shown to be equivalent to"
        yield (
            f"{model}: accuracy {100 * test.mean:+.2f} points, 90 % interval {100 * test.low:+.2f} to "
            f"{100 * test.high:+.2f}, n = {test.n}: {verdict} the originals within {100 * MARGIN:g} point"
            f" (TOST, p = {test.p_value:.2g})"
        )


def _beside_nulls(edits: Sequence[Record], nulls: Sequence[Record]) -> Iterable[str]:
    """The effect of the edit itself, over the factors that the oracles read correctly on the source's null arm."""
    by_source = {record.source: record for record in nulls}
    accepted = [record for record in edits if record.accepted and record.source in by_source]
    yield "where the oracles still read them there, among accepted: label kept | each other unchanged"
    for name in ("all", *sorted({record.factor for record in accepted})):
        chosen = [record for record in accepted if name in ("all", record.factor)]
        null_kept = [record for record in chosen if by_source[record.source].kept]
        survived = [
            (record, field)
            for record in chosen
            if record.readable_fields is not None
            for field in {*record.readable_fields} - {"label", record.field, *by_source[record.source].changed_besides}
        ]
        unchanged = sum(field not in record.changed_besides for record, field in survived)
        yield f"{name:<12} {_rate(null_kept, lambda record: record.kept)} | {rate_text(unchanged, len(survived))}"


def _right(record: Record, model: str, place: int) -> int:
    """Whether a model names the class on the source (0) or on the image (1)."""
    return int(record.predicted[model][place] == record.label)


def _cost_lines(edits: Sequence[Record], done: Sequence[Record]) -> Iterable[str]:
    spent = [record.evaluations for record in done if record.evaluations is not None]
    accepted = sum(record.accepted for record in edits)
    if spent and accepted:
        yield f"{sum(spent) / accepted:,.0f} network evaluations per accepted counterfactual, null arms included"
    attention_by_source = {
        record.source: (record.attention, record.kept) for record in done if record.attention is not None
    }
    if attention_by_source:
        overlaps = np.array([overlap for overlap, _ in attention_by_source.values()], np.float64)
        low, high = np.quantile(overlaps, (0.1, 0.9))
        yield (
            f"attention to the class overlaps the object: mean IoU {overlaps.mean():.2f}, middle 80 % {low:.2f} to "
            f"{high:.2f} (n = {len(overlaps)}; as many pixels as the object has)"
        )


def _rate(records: Sequence[Record], test: Test) -> str:
    return rate_text(sum(map(test, records)), len(records))
