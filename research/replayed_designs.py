"""A job's designs at equal renderings, replayed with the effects that the yardstick's models showed on renderings.

`python -m research.replayed_designs`: every simulated job tests one model and draws the pairs of each place (a class
and a value) from that model's population there, with replacement, as many as its design gives the place. No image is
rendered. The populations have the effects of an answer (default: the committed one of the full size), and the accuracy
and acceptance of `simulated_designs`. With `--directory`, they are the pairs themselves of the finished jobs there.

*Free*: edits as the language model spread them. *Even*: a balanced design. *Adaptive*: `gateway.analysis.allocation`.
Recall is over the planted cells of the answer key, by dose. A finding is invented if its population's drop is at most
5 points.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.analysis.effects import Floats, differences
from gateway.analysis.limits import BEYOND
from gateway.database.sessions import open_engine, open_sessions, reading
from gateway.database.tables import Job
from gateway.results.job_rows import load_rows
from gateway.results.rows import ModelRows
from research.simulated_designs import ACCURACY, COUNTED, adaptive_job, even_job, fixed_job
from research.system.packed import read_text
from research.yardstick.formats import Answer, AnswerKey, FoundCell, KnownModel
from research.yardstick.score import DOSES, dose_of, truth_of
from shared.schemas.effects import Cell
from shared.seeds import derive_seed

RESULTS = Path(__file__).parent / "results" / "replayed-designs.json"
KEY = Path("research/yardstick/key.json.gz")
ANSWER = Path("research/yardstick/results/contrafact-dillema-full.json.gz")
PAIRS_PER_IMAGE = 10  # of a population, so that rounding does not change its effect
DESIGNS = ("free", "even", "adaptive")
RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class ReplayedModel:
    """One model's populations: the differences (−1 … 1) of each place, and the edits rendered there, counted or not."""

    model: str
    pool: int
    edits: int
    pairs: Mapping[str, Floats]
    rendered: Mapping[str, int]

    @property
    def places(self) -> Sequence[str]:
        return tuple(self.pairs)

    def draw(self, place: str, edits: int, random: np.random.Generator) -> Floats:
        """Pairs of the population, drawn with replacement; NaN where a pair does not count."""
        share = min(1.0, len(self.pairs[place]) / self.rendered[place])
        return np.where(random.random(edits) < share, random.choice(self.pairs[place], edits), np.nan)

    def free_edits(self) -> dict[str, int]:
        """The edits of each place in proportion to those that were rendered."""
        total = sum(self.rendered.values())
        return {place: self.edits * count // total for place, count in self.rendered.items()}


@dataclass(frozen=True, slots=True)
class PlantedRecall:
    """A planted cell: the pairs of its population and their mean drop, and of each design the share of jobs that find
    it."""

    model: str
    place: str
    dose: int
    pairs: int
    drop: float
    recall: dict[str, float]


@dataclass(frozen=True, slots=True)
class ReplayedDesigns:
    """`jobs`: simulated jobs of each model and design. `invented`: of all jobs of a design the share that invents a
    finding."""

    pool: int
    edits: int
    jobs: int
    models: int
    planted: list[PlantedRecall]
    invented: dict[str, float]


def latest_rows(session: Session, images: int | None = None) -> dict[str, ModelRows]:
    """The rows of each model in its latest finished job of DILLEMA alone in the free design.

    `images`: only jobs of so many source images.
    """
    latest: dict[str, str] = {}
    for job in session.scalars(select(Job).where(Job.state == "done").order_by(Job.created_at)):
        size_fits = images in (None, job.counts.get("images"))
        if size_fits and [method.name for method in job.methods] == ["dillema"] and job.stored_spec.design == "free":
            latest |= dict.fromkeys(job.models, job.id)
    rows = {job: load_rows(session, job).models for job in dict.fromkeys(latest.values())}
    return {model: rows[job][model, "dillema"] for model, job in latest.items()}


def replayed_model(model: str, rows: ModelRows, pool: int, edits: int) -> ReplayedModel:
    """The populations of a model, at the places where a pair counts."""
    pairs, rendered = {}, {}
    for cell, members in rows.scores.cells.items():
        measured = differences(rows.scores, members)
        if cell.direction == "to" and len(measured.correct):
            pairs[_name(cell)] = measured.correct
            rendered[_name(cell)] = max(len(measured.correct), len(rows.screened[cell].accepted))
    return ReplayedModel(model, pool, edits, pairs, rendered)


def _name(cell: Cell) -> str:
    return f"{cell.label}/{cell.value}"


def replay(model: ReplayedModel, design: str, seed: int) -> set[str]:
    """The findings of one simulated job."""
    if design == "free":
        return fixed_job(model, model.free_edits(), seed)[0]
    return (even_job if design == "even" else adaptive_job)(model, seed)[0]


def measure(models: Sequence[ReplayedModel], key: AnswerKey, jobs: int) -> Iterator[ReplayedDesigns]:
    """All designs on the models that the key knows: the figures of the first model, of the first two, and so on."""
    models_by_name = {model.name: model for model in key.models}
    planted: list[PlantedRecall] = []
    invented: dict[str, list[bool]] = {design: [] for design in DESIGNS}
    for number, model in enumerate([model for model in models if model.model in models_by_name], start=1):
        results = {
            design: [replay(model, design, derive_seed("replayed", model.model, job)) for job in range(jobs)]
            for design in DESIGNS
        }
        small = {place for place, pairs in model.pairs.items() if pairs.mean() >= -BEYOND}
        for design, of_jobs in results.items():
            invented[design] += [bool(places & small) for places in of_jobs]
        for place, dose in planted_places(models_by_name[model.model]).items():
            if place in model.pairs:
                recall = {design: sum(place in places for places in results[design]) / jobs for design in DESIGNS}
                pairs = model.pairs[place]
                planted.append(PlantedRecall(model.model, place, dose, len(pairs), -float(pairs.mean()), recall))
        shares = {design: float(np.mean(flags)) for design, flags in invented.items()}
        yield ReplayedDesigns(model.pool, model.edits, jobs, number, list(planted), shares)


def estimated_model(model: str, cells: Iterable[FoundCell], pool: int, edits: int) -> ReplayedModel:
    """Populations with the effects of an answer, in proportion to its images: pairs with independent errors."""
    pairs, rendered = {}, {}
    for cell_rows in cells:
        if (
            cell_rows.model == model
            and cell_rows.cell.direction == "to"
            and cell_rows.effect is not None
            and cell_rows.images
        ):
            size = PAIRS_PER_IMAGE * cell_rows.images
            pairs[_name(cell_rows.cell)] = independent_pairs(cell_rows.effect, size)
            rendered[_name(cell_rows.cell)] = round(size / COUNTED)
    return ReplayedModel(model, pool, edits, pairs, rendered)


def independent_pairs(effect: float, size: int) -> Floats:
    """So many differences with this mean (−1 … 1), of a model whose errors on both arms are independent."""
    change = round(size * effect)
    worse = max(0, -change, round(size * ACCURACY * (1 - ACCURACY - effect)))
    return np.repeat([-1.0, 1.0, 0.0], [worse, worse + change, size])[:size]


def planted_places(model: KnownModel) -> dict[str, int]:
    """The places of a model that truly lose more than 5 points, with their doses."""
    return {
        _name(true.cell): dose_of(true)
        for true in model.cells
        if true.cell.direction == "to" and truth_of(true) == "weakness"
    }


def format_rows(figures: ReplayedDesigns) -> Iterator[str]:
    """Mean recall of each design by dose, with an interval that resamples the planted cells."""
    random = np.random.default_rng(0)
    for dose in DOSES:
        cells = [cell for cell in figures.planted if cell.dose == dose]
        if not cells:
            continue
        picks = random.integers(len(cells), size=(RESAMPLES, len(cells)))
        shares = {design: np.array([cell.recall[design] for cell in cells]) for design in DESIGNS}
        for design, recalls in shares.items():
            low, high = np.quantile(recalls[picks].mean(axis=1), [0.025, 0.975])
            yield f"about {dose} points, {len(cells)} cells, {design:<8} {recalls.mean():.2f} ({low:.2f} to {high:.2f})"
    yield from (f"jobs that invent a finding, {design:<8} {share:.4f}" for design, share in figures.invented.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answer", type=Path, default=ANSWER, help="of the yardstick, whose effects are taken")
    parser.add_argument("--directory", type=Path, help="of an embedded system, whose pairs are taken")
    parser.add_argument("--key", type=Path, default=KEY, help="the answer key")
    parser.add_argument("--pool", type=int, default=300, help="source images of each class")
    parser.add_argument("--edits", type=int, default=1_200, help="of a job, without arms")
    parser.add_argument("--jobs", type=int, default=100, help="simulated jobs of each model and design")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    key = AnswerKey.model_validate_json(read_text(arguments.key))
    models = _models(arguments)
    if not models:
        parser.error("no finished free job of dillema there; first: python -m research.yardstick run --method dillema")
    source = f"--directory {arguments.directory}" if arguments.directory else f"--answer {arguments.answer}"
    options = f"{source} --pool {arguments.pool} --edits {arguments.edits} --jobs {arguments.jobs}"
    for figures in measure(models, key, arguments.jobs):  # written after every model: a long run can be interrupted
        record = {"command": f"python -m research.replayed_designs {options}", **asdict(figures)}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\n".join(format_rows(figures)))


def _models(arguments: argparse.Namespace) -> list[ReplayedModel]:
    pool, edits = arguments.pool, arguments.edits
    if arguments.directory is None:
        answer = Answer.model_validate_json(read_text(arguments.answer))
        return [estimated_model(model, answer.cells, pool, edits) for model in answer.models]
    sessions = open_sessions(open_engine(f"sqlite:///{arguments.directory / 'contrafact.db'}"))
    with reading(sessions) as session:
        rows = latest_rows(session)
    return [replayed_model(model, model_rows, pool, edits) for model, model_rows in rows.items()]


if __name__ == "__main__":
    main()
