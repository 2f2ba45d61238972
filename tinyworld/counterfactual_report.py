"""The report of measured counterfactuals: rates by factor with Wilson intervals, and how far the oracles are to be
believed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tinyworld.label import error_lines, in_words, shipped_labels
from tinyworld.measured import Record

Test = Callable[[Record], bool]


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
        lines += ["", f"== {title} ({len(some)})", *_table(some)]
    lines += ["", "== refused by", *_refusals(edits)]
    if nulls:
        lines += ["", f"== null arms ({len(nulls)})", f"label kept {_rate(nulls, lambda one: one.kept)}"]
        lines += [f"other factors unchanged {_rate(nulls, lambda one: one.shown and not one.others)}"]
    lines += [
        "",
        "== the oracles against people who looked without knowing their answers",
        *error_lines(shipped_labels()),
    ]
    return "\n".join(lines) + "\n"


def _table(some: Sequence[Record]) -> Iterable[str]:
    yield f"{'':<12} {'n':>4}  yield, then among accepted: label kept | kept if flipped | edit shown | others unchanged"
    groups = {"all": list(some)}
    groups |= {name: [one for one in some if one.factor == name] for name in sorted({one.factor for one in some})}
    groups |= {f". {name}": [one for one in some if one.field == name] for name in sorted({one.field for one in some})}
    for name, members in groups.items():
        accepted = [one for one in members if one.accepted]
        flipped = [one for one in accepted if one.flipped]
        cells = (
            _rate(members, lambda one: one.accepted),
            _rate(accepted, lambda one: one.kept),
            _rate(flipped, lambda one: one.kept),
            _rate(accepted, lambda one: one.shown),
            _rate(accepted, lambda one: not one.others),
        )
        yield f"{name:<12} {len(members):>4}  " + " | ".join(cells)
    yield "before the checks: " + ", ".join(
        f"{what} {_rate(some, test)}"
        for what, test in (
            ("label kept", lambda one: one.kept),
            ("edit shown", lambda one: one.shown),
            ("others unchanged", lambda one: not one.others),
        )
    )
    worst = sorted({name for one in some for name in one.others})
    yield "changed besides: " + ", ".join(f"{name} {_rate(some, _changes(name))}" for name in worst)


def _changes(name: str) -> Test:
    return lambda one: name in one.others


def _refusals(edits: Sequence[Record]) -> Iterable[str]:
    for check in sorted({one.check for one in edits if one.check}):
        refused = [one for one in edits if one.check == check]
        good = _rate(refused, lambda one: one.kept and one.shown)
        yield f"{check}: {len(refused)}, of which the oracles call right {good}"


def _rate(some: Sequence[Record], test: Test) -> str:
    return in_words(sum(map(test, some)), len(some))
