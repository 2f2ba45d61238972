"""What experiment trackers store of a job: parameters, effects with their intervals, the report, its data set."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from contrafact.client import Client
from shared.schemas.reports import ReportFormat
from shared.schemas.results import CounterfactualView, JobResults, ModelResults
from shared.words.verdicts import verdict_of, verdict_sentence

FORMATS: tuple[ReportFormat, ...] = ("html", "md", "json")
COUNTED = {"verdict": "counted"}
DIGEST_CHARACTERS = 36  # what MLflow takes
PART_CHARACTERS = 55  # of a metric's name, which has four parts and an end: MLflow takes 250 characters
NOT_IN_NAMES = re.compile(r"[^\w\-. ]")  # what MLflow refuses, and its separator; letters of any script are allowed


@dataclass(frozen=True, slots=True)
class TrackedData:
    """The counterfactuals that the effects are measured on.

    `digest` depends on their pixels and labels alone: all runs of a suite share it. `listing` is JSON lines, one for
    each counterfactual, with the digests of its images.
    """

    name: str
    digest: str
    source: str
    images: int
    listing: bytes


@dataclass(frozen=True, slots=True)
class TrackedJob:
    """A finished job. `files` are the report's formats by file name."""

    id: str
    parameters: dict[str, str]
    metrics: dict[str, float]
    files: dict[str, bytes]
    data: TrackedData


def load_tracked_job(client: Client, job: str, url: str) -> TrackedJob:
    """Fetch all that a tracker stores. Raises ValueError for a job without results."""
    results = client.results(job, {}, limit=1).metrics
    if results is None:
        raise ValueError(f"job {job} has no results yet; track it when it is done")
    files = {f"report.{name}": client.report(job, name) for name in FORMATS}
    data = tracked_data(job, f"{url}/jobs/{job}/results?verdict=counted", client.counterfactuals(job, COUNTED))
    return TrackedJob(job, parameters(results), metrics(results), files, data)


def parameters(results: JobResults) -> dict[str, str]:
    """What the figures depend on, as text."""
    provenance = results.made
    values = {
        "job": provenance.job,
        "task description": provenance.task_description,
        "profile": provenance.profile,
        "seed": str(provenance.seed),
        "models": ", ".join(dict.fromkeys(result.model for result in results.results)),
        "methods": ", ".join(funnel.method for funnel in results.funnels),
        "source images": str(results.sources),
        "provisional": str(results.provisional).lower(),
    }
    values |= {
        f"parameters of {name}": json.dumps(value, sort_keys=True) for name, value in provenance.parameters.items()
    }
    for result in results.results:
        sentence = verdict_sentence(verdict_of(results, result), result.metric)
        values[f"verdict of {_part(result.model)}/{_part(result.method)}"] = sentence
    values |= {"reserve": results.outside_domain} if results.outside_domain else {}
    return values | {f"version of {name}": number for name, number in provenance.versions.items()}


def metrics(results: JobResults) -> dict[str, float]:
    """Effects in −1 … 1 with the ends of their 95 % intervals, under names that every tracker takes.

    A tested cell has `MODEL/METHOD/CLASS/FACTOR to VALUE/` with `effect`, `low`, `high`, `images`, and of a finding
    `selected low` and `selected high`, adjusted for selection. Cells that were not tested have none, a model without a
    verdict has no numbers of findings, and accuracies need ground truth.
    """
    values = {name: value for result in results.results for name, value in _metrics_of(results, result)}
    spelled = Counter(name.casefold() for name in values)
    return {name if spelled[name.casefold()] == 1 else _with_digest(name): value for name, value in values.items()}


def _metrics_of(results: JobResults, result: ModelResults) -> Iterator[tuple[str, float]]:
    prefix = f"{_part(result.model)}/{_part(result.method)}"
    if verdict_of(results, result).kind in ("weakness", "not settled", "bounded"):  # else none would mean nothing
        yield f"{prefix}/findings", len(result.findings)
        yield f"{prefix}/weaknesses", sum(effect.standing == "weakness" for effect in result.findings)
    if result.metrics is not None and result.metrics.accuracy and result.relation == "labelled":
        accuracy = result.metrics.accuracy[0]
        for arm in ("originals", "nulls", "counterfactuals"):
            rate = getattr(accuracy, arm)
            if rate.value is not None:
                yield from ((f"{prefix}/accuracy {arm}{end}", getattr(rate, key)) for end, key in ENDS)
    for effect in result.cells:
        cell = effect.cell
        name = f"{prefix}/{_part(cell.label)}/{_part(f'{cell.factor} {cell.direction} {cell.value}')}"
        if effect.interval is None:
            continue
        yield f"{name}/effect", effect.delta_accuracy
        yield f"{name}/low", effect.interval.low
        yield f"{name}/high", effect.interval.high
        yield f"{name}/images", effect.sources
        if effect.selected_interval is not None:
            yield f"{name}/selected low", effect.selected_interval.low
            yield f"{name}/selected high", effect.selected_interval.high


ENDS = (("", "value"), (" low", "low"), (" high", "high"))


def _with_digest(name: str) -> str:
    """A metric's name with a digest before its end: stores on disks that ignore case would mix it with another one."""
    before, _, end = name.rpartition("/")
    return f"{before} {hashlib.sha256(before.encode()).hexdigest()[:8]}/{end}"


def _part(name: str) -> str:
    """A name without the characters that trackers refuse or take for a separator.

    A name that is written otherwise ends in a digest of the original, so it is the same in every run and no other's.
    """
    allowed = NOT_IN_NAMES.sub("_", unicodedata.normalize("NFC", name)).strip()
    if allowed == name and len(name) <= PART_CHARACTERS and name.strip("."):  # trackers take dots for folders
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{allowed[: PART_CHARACTERS - 9].strip('. ') or '_'} {digest}"


def tracked_data(job: str, source: str, views: Iterable[CounterfactualView]) -> TrackedData:
    """The data set of a job's counterfactuals; their order does not matter."""
    lines = sorted(
        json.dumps(
            {
                "method": view.method,
                "source": view.source.image,
                "ground_truth": view.source.ground_truth,
                "mask": view.source.mask,
                "null_image": view.null_image,
                "sham_image": view.sham_image,
                "image": view.image,
                "changes": [change.model_dump(mode="json") for change in view.changes],
            },
            sort_keys=True,
            ensure_ascii=False,
        )
        for view in views
    )
    listing = "".join(f"{line}\n" for line in lines).encode()
    digest = hashlib.sha256(listing).hexdigest()[:DIGEST_CHARACTERS]
    return TrackedData(f"contrafact-{digest[:12]}", digest, source, len(lines), listing)
