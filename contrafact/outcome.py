"""What a test found: findings, tables, the report and a gallery, all without a running system.

The columns of a counterfactual's changes in tables; several changes are joined by commas.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shared.schemas.effects import CellEffect
from shared.schemas.jobs import ImageFailure
from shared.schemas.results import CounterfactualView, JobResults, ModelOpinion, PredictionView
from shared.words.verdicts import VerdictKind, model_hints, verdict_of, verdict_sentence
from shared.words.wording import nothing_accepted

if TYPE_CHECKING:
    import pandas
from typing import NamedTuple

from shared.schemas.results import ChangeView

Table = Literal["counterfactuals", "cells"]
Value = str | float | int | bool | None

_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Contrafact: gallery</title>'
    '<body style="font-family: system-ui, sans-serif">{table}</body></html>'
)
_IMAGE = '<img src="data:image/png;base64,{png}" alt="{alt}" style="max-width: 14em">'


@dataclass(frozen=True)
class Finding:
    """An effect that is significant after correction and beyond 5 points, of one method on one model under test."""

    model: str
    method: str
    effect: CellEffect

    def __str__(self) -> str:
        return self.effect.sentence


@dataclass(frozen=True)
class OutcomeVerdict:
    """What the cells of one model under test under one method show together, as the report says it.

    `kind`: "weakness"; "not settled" (a suspected weakness, or a drop on too few images); "bounded" (cells were
    tested, and neither holds; `sentence` says which loss is ruled out, and `passes` whether all but a small one is, on
    reviewed images); "too few images"; "nothing compared" (no edit was accepted); "not testable" (the model is not
    right on the originals; `sentence` says what to check). `effects`: the weaknesses, strongest first, or the
    suspected drops, those that lost the most images first; empty for the other kinds.
    """

    model: str
    method: str
    kind: VerdictKind
    effects: Sequence[CellEffect]
    sentence: str
    passes: bool = False

    def __str__(self) -> str:
        return f"{self.model} under {self.method}: {self.sentence}"


@dataclass(frozen=True)
class Gallery:
    """Some accepted counterfactuals beside their source image and null arm. A notebook shows it as a table."""

    views: Sequence[CounterfactualView]
    pictures: Mapping[str, bytes] = field(repr=False)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{title}</th>" for title in ("change", "source image", "null arm", "counterfactual"))
        return f"<table><tr>{head}</tr>{''.join(map(self._row, self.views))}</table>"

    def save(self, path: Path | str) -> Path:
        """Write one HTML page that needs nothing else. Returns its path."""
        Path(path).write_text(_PAGE.format(table=self._repr_html_()), encoding="utf-8")
        return Path(path)

    def _row(self, view: CounterfactualView) -> str:
        changes = "<br>".join(
            html.escape(f"{c.from_value or '…'} → {c.to_value or '…'} ({c.factor})") for c in view.changes
        )
        truth = html.escape(view.source.ground_truth or "no label")
        cells = [
            self._cell(view.source.image, "source image", [(o.model, o.original) for o in view.predictions]),
            self._cell(view.null_image, "null arm", [(o.model, o.null_arm) for o in view.predictions]),
            self._cell(view.image, "counterfactual", [(o.model, o.counterfactual) for o in view.predictions]),
        ]
        return f"<tr><td>{truth}<br>{changes}</td>{''.join(cells)}</tr>"

    def _cell(self, digest: str | None, alt: str, predictions: Sequence[tuple[str, PredictionView | None]]) -> str:
        png = self.pictures.get(digest or "")
        image = "" if png is None else _IMAGE.format(png=base64.b64encode(png).decode(), alt=alt)
        words = [f"{model}: {p.predicted} {p.probability:.0%}" for model, p in predictions if p is not None]
        return f"<td>{image}<br>{'<br>'.join(map(html.escape, words))}</td>"


@dataclass(frozen=True)
class Outcome:
    """The outcome of `contrafact.test`.

    `metrics` are all results of the job, `counterfactuals` its rows, `failures` the first 20 images that could not be
    processed, `directory` where everything is kept: `contrafact serve --directory` shows its pages. `pictures` are
    PNGs of the counterfactuals that `gallery` shows, by digest. The representation ends with the verdicts.
    """

    job: str
    directory: Path
    metrics: JobResults = field(repr=False)
    counterfactuals: Sequence[CounterfactualView] = field(repr=False)
    failures: Sequence[ImageFailure]
    report_page: bytes = field(repr=False)
    pictures: Mapping[str, bytes] = field(repr=False)

    @property
    def findings(self) -> list[Finding]:
        """Weaknesses first, then improvements, each by strength, per method and model."""
        return [
            Finding(results.model, results.method, effect)
            for results in self.metrics.results
            for effect in results.findings
        ]

    @property
    def verdicts(self) -> list[OutcomeVerdict]:
        """A verdict per method and model. Read them even if there is no finding: a drop may lack images for a test."""
        verdicts = []
        for results in self.metrics.results:
            verdict = verdict_of(self.metrics, results)
            effects = {"weakness": verdict.weaknesses, "not settled": verdict.unsettled}.get(verdict.kind, [])
            text = verdict_sentence(verdict, results.metric)
            if verdict.kind == "nothing compared":
                text = f"{text} {nothing_accepted(self.metrics, results.method)}"
            verdicts.append(OutcomeVerdict(results.model, results.method, verdict.kind, effects, text, verdict.passes))
        return verdicts

    def __repr__(self) -> str:
        head = f"Outcome(job={self.job!r}, directory={self.directory!r}, failures={self.failures!r})"
        outside = self.metrics.outside_domain
        warning = [f"  Do not rely on these results: {outside}"] if outside else []
        hints = [f"  {hint}" for hint in model_hints(self.metrics)]
        return "\n".join([head, *warning, *(f"  {verdict}" for verdict in self.verdicts), *hints])

    def to_dataframe(self, table: Table = "counterfactuals") -> pandas.DataFrame:
        """A pandas table: a row per counterfactual and model, or with `"cells"` a row per cell with its effect.

        Raises ImportError without pandas.
        """
        try:
            library = import_module("pandas")
        except ImportError as error:
            raise ImportError("to_dataframe needs pandas; pip install pandas") from error
        frame: pandas.DataFrame = library.DataFrame(
            self._cell_rows() if table == "cells" else self._counterfactual_rows()
        )
        return frame

    def report(self, path: Path | str = "report.html") -> Path:
        """Write the report, one HTML page that needs nothing else. Returns its path."""
        Path(path).write_bytes(self.report_page)
        return Path(path)

    def gallery(self, count: int = 12, *, flipped: bool = False) -> Gallery:
        """The first `count` accepted counterfactuals whose pictures are here; `flipped`: only changed predictions."""
        views = [view for view in self.counterfactuals if view.image in self.pictures]
        views.sort(key=lambda view: not is_flipped(view))
        chosen = [view for view in views if is_flipped(view) or not flipped]
        return Gallery(chosen[:count], self.pictures)

    def _counterfactual_rows(self) -> list[dict[str, Value]]:
        nobody: list[ModelOpinion | None] = [None]  # of a refused edit, which no model has seen
        return [_row(view, opinion) for view in self.counterfactuals for opinion in view.predictions or nobody]

    def _cell_rows(self) -> list[dict[str, Value]]:
        return [
            {
                "model": results.model,
                "method": results.method,
                **effect.cell.model_dump(),
                "standing": effect.standing,
                "sources": effect.sources,
                "counterfactuals": effect.counterfactuals,
                "delta_accuracy": effect.delta_accuracy,
                "low": effect.interval.low if effect.interval else None,
                "high": effect.interval.high if effect.interval else None,
                "p_value": effect.p_value,
                "q_value": effect.q_value,
                "sentence": effect.sentence,
            }
            for results in self.metrics.results
            for effect in results.cells
        ]


def is_flipped(view: CounterfactualView) -> bool:
    """Whether a model predicts another class than on the original."""
    return any(opinion.flipped for opinion in view.predictions)


def _row(view: CounterfactualView, opinion: ModelOpinion | None) -> dict[str, Value]:
    def predicted_class(prediction: PredictionView | None) -> str | None:
        return None if prediction is None else prediction.predicted

    return {
        "id": view.id,
        "source": view.source.name,
        "ground_truth": view.source.ground_truth,
        "method": view.method,
        **change_columns(view.changes)._asdict(),
        "accepted": view.verdict.accepted,
        "check": view.verdict.check,
        "counted": view.counted,
        "model": opinion.model if opinion else None,
        "original": predicted_class(opinion.original) if opinion else None,
        "null_arm": predicted_class(opinion.null_arm) if opinion else None,
        "counterfactual": predicted_class(opinion.counterfactual) if opinion else None,
        "flipped": opinion.flipped if opinion else None,
    }


class ChangeColumns(NamedTuple):
    """Factors, old and new values of the changes."""

    factor: str
    from_value: str
    to_value: str


def change_columns(changes: Sequence[ChangeView]) -> ChangeColumns:
    """The columns of one counterfactual."""
    return ChangeColumns(
        factor=", ".join(change.factor for change in changes),
        from_value=", ".join(change.from_value for change in changes),
        to_value=", ".join(change.to_value for change in changes),
    )
