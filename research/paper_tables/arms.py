"""The arms of the tables and their measurement: a public job, oracles, image distances and perplexity."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
from PIL import Image
from pydantic import JsonValue

from contrafact.client import Client
from gateway.analysis.realism import kernel_distance, perplexity
from gateway.methods import METHODS
from gateway.model_services.clients import ModelServices
from research.judges.trials import source_picture
from research.paper_tables.faults import faults
from research.paper_tables.judging import JudgedCounterfactual, factor_figures, judge_counterfactuals, text_checks
from research.paper_tables.rows import ArmRow, Distance, ModelFigures
from research.pictures.sheet import contact_sheet
from research.system.public_jobs import embedded_client, figures, run_job, seconds_of
from research.system.spawn_services import spawn_services
from shared.chunks import chunks
from shared.media.images import decode
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, ImagePayload
from shared.schemas.evaluation import EmbedRequest
from shared.schemas.jobs import JobDetail, JobSpec, MethodChoice
from shared.schemas.language import ScoreRequest
from shared.schemas.results import JobResults
from tinyworld.objects.demo import own_distribution
from tinyworld.objects.world import CLASSES, Scene

RUNS = Path("runs/paper-tables")
TASK = "classify the object in the picture"
FIRST = 500_000  # the first scene of the split "final-test"; nothing else uses scenes from here on
TEXTS = 64  # per message
SHEET = 24  # accepted counterfactuals on a contact sheet


@dataclass(frozen=True, slots=True)
class Arm:
    """A method with the tables' parameters; everything else comes from the profile."""

    title: str
    method: str
    parameters: Mapping[str, JsonValue] = field(default_factory=dict)


ARMS: dict[str, Arm] = {
    "dillema-full": Arm("DILLEMA, full", "dillema", {"control_region": "full"}),
    "dillema-keep": Arm("DILLEMA, keep", "dillema", {"control_region": "keep"}),
    "lance-direct": Arm("LANCE, direct", "lance", {"inversion": "direct"}),
    "lance-null-text": Arm("LANCE, null_text", "lance", {"inversion": "null_text"}),
    "lance-r": Arm("LANCE-R", "lance-r"),
    "reconstruction": Arm("Reconstruction", "reconstruction"),
    "reconstruction-null-text": Arm("Reconstruction, null_text", "reconstruction", {"inversion": "null_text"}),
    "shifts": Arm("Shifts", "shifts"),
    "corruptions": Arm("Corruptions", "corruptions"),
}


def scenes_of(sources: int) -> list[Scene]:
    """The first scenes of the models' own distribution, every class in turn."""
    scenes: list[Scene] = []
    for index in count(FIRST):
        if len(scenes) == sources:
            return scenes
        scene = own_distribution(index, "final-test")
        if scene.label == CLASSES[len(scenes) % len(CLASSES)]:
            scenes.append(scene)
    raise AssertionError("count never ends")


def write_sources(scenes: Sequence[Scene], folder: Path) -> None:
    """The scenes as PNG files in their order, and a manifest with their classes."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["file,label"]
    for number, scene in enumerate(scenes):
        Image.fromarray(source_picture(scene)).save(folder / f"{number:05}.png")
        lines.append(f"{number:05}.png,{scene.label}")
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")


def measure_arm(name: str, sources: int, profile: str, command: str) -> ArmRow:
    """Run the job of an arm in a separate embedded system, so that it reuses no recorded calls of other arms.

    An interrupted arm resumes; its seconds are then unknown. Raises ValueError for an unknown method.
    """
    arm = ARMS[name]
    if arm.method not in METHODS:
        raise ValueError(f"there is no method {arm.method!r}; there are {', '.join(METHODS)}")
    scenes, folder = scenes_of(sources), RUNS / f"sources-{sources}"
    write_sources(scenes, folder)
    place = RUNS / f"{name}-{sources}"
    begun_before = place.exists()
    with embedded_client(place, profile) as client:
        spec = JobSpec(task_description=TASK, methods=[MethodChoice(name=arm.method, parameters=dict(arm.parameters))])
        job = run_job(client, spec, folder, name)
        results = figures(client, job)
        edits = judge_counterfactuals(list(client.counterfactuals(job.id, {})), scenes, client.image)
        with spawn_services(profile, ["evaluator_service", "llm_service"]) as services:
            row = _row(name, command, job, results, edits, _realism(services, client, scenes, edits))
        _sheet(edits, scenes, client, RUNS / f"sheet-{name}-{sources}.png")
    shutil.rmtree(place)
    return row.model_copy(update={"seconds": None}) if begun_before else row


@dataclass(frozen=True, slots=True)
class _Realism:
    distance: Distance | None
    before: float | None
    after: float | None


def _row(
    name: str,
    command: str,
    job: JobDetail,
    results: JobResults,
    edits: Sequence[JudgedCounterfactual],
    realism: _Realism,
) -> ArmRow:
    method = ARMS[name].method
    (chosen,) = job.methods
    return ArmRow(
        arm=name,
        method=method,
        command=command,
        machine=f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        sources=results.sources - results.sources_failed,
        parameters={key: value for key, value in chosen.parameters.items() if not key.endswith("thresholds")},
        weights={service: info.revision for service, info in results.made.services.items()},
        seconds=round(seconds_of(job), 1),
        funnel=next(funnel for funnel in results.funnels if funnel.method == method),
        cost=next(cost for cost in results.costs if cost.method == method),
        distance=realism.distance,
        perplexity_before=realism.before,
        perplexity_after=realism.after,
        text_checks=text_checks(edits),
        factors=factor_figures(edits),
        models=[
            ModelFigures(model=model.model, metrics=model.metrics, failure_points=model.failure_points)
            for model in results.results
            if model.method == method and model.metrics is not None
        ],
        faults=faults([edit.view for edit in edits]),
    )


def _realism(
    services: ModelServices, client: Client, scenes: Sequence[Scene], edits: Sequence[JudgedCounterfactual]
) -> _Realism:
    """Distance of the accepted images from the originals, and perplexity of their captions before and after."""
    accepted = [edit.view for edit in edits if edit.view.verdict.accepted and edit.view.image]
    generated = _embed(services, [client.image(view.image) for view in accepted if view.image])
    originals = {edit.view.source.position: edit.view.source.image for edit in edits}
    real = _embed(services, [client.image(digest) for digest in originals.values()])
    far = None
    if accepted:
        places = np.array([view.source.position for view in accepted], np.int64)
        far = kernel_distance(real, np.array(list(originals), np.int64), generated, places)
    captioned = [view for view in accepted if view.caption and view.new_caption]
    features = f"the profile's scorer, evaluator {services.info('evaluator_service').revision[:12]}"
    return _Realism(
        None if far is None else Distance(value=far.value, error=far.error, features=features),
        _perplexity(services, [view.caption for view in captioned]),
        _perplexity(services, [view.new_caption for view in captioned]),
    )


def _embed(services: ModelServices, images: Sequence[bytes]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    rows: list[list[float]] = []
    for chunk in chunks(images, MAX_IMAGES_PER_MESSAGE):
        rows += services.embed(EmbedRequest(images=[ImagePayload(png=png) for png in chunk])).images
    return np.array(rows, np.float64)


def _perplexity(services: ModelServices, texts: Sequence[str]) -> float | None:
    sums: list[float] = []
    tokens: list[int] = []
    for chunk in chunks(texts, TEXTS):
        reply = services.score(ScoreRequest(texts=list(chunk)))
        sums += reply.log_likelihoods
        tokens += reply.tokens
    return perplexity(np.array(sums, np.float64), np.array(tokens, np.int64))


def _sheet(edits: Sequence[JudgedCounterfactual], scenes: Sequence[Scene], client: Client, path: Path) -> None:
    """Accepted counterfactuals beside their sources, spread over the job."""
    accepted = [edit for edit in edits if edit.oracle is not None]
    pictures = []
    for edit in accepted[:: max(1, len(accepted) // SHEET)][:SHEET]:
        scene = scenes[edit.view.source.position]
        value = edit.view.changes[0].to_value if edit.view.changes else ""
        lost = "" if edit.oracle and edit.oracle.kept else " LOST"
        pictures += [(source_picture(scene), scene.label), (decode(client.image(edit.view.image or "")), value + lost)]
    if pictures:
        contact_sheet(pictures, 8, path)
