"""`contrafact doctor --try IMAGE`: one image through every configured service, step by step.

The profile's methods run with its parameters and the plain clients of the services: no database, queue or object
store. Each call is a step with its seconds, the service's memory, what came out, and what is wrong with it. Every
picture is saved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gateway.jobs.choices import Plan, plan
from gateway.methods import JobMethod
from gateway.methods.counterfactual import MethodCounterfactual, MethodImage, TaskDescription
from gateway.model_services.clients import ModelServices
from gateway.trial.steps import Step, WatchedServices
from shared.images import canonical
from shared.problems import InvalidInput, Problem, validation_sentence
from shared.profiles import Profile
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import PredictRequest, SegmentRequest
from shared.schemas.jobs import JobSpec
from shared.schemas.service import ServiceName


@dataclass(frozen=True, slots=True)
class TrialImage:
    """An image file, the sentence on what the models do, and the image's class, if known."""

    data: bytes
    task_description: str
    label: str | None = None


def try_image(
    services: ModelServices,
    urls: Mapping[ServiceName, str],
    profile: Profile,
    image: TrialImage,
    folder: Path,
    working_side: int | None = None,
) -> Iterator[Step]:
    """Run the profile's default methods and models on one image, and yield each step when it has ended.

    Pictures go to `folder`. A step that fails ends its method, not the trial. Raises what `shared.images.canonical`
    raises for a file that no job would take, and InvalidInput for a sentence that none would take.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = canonical(image.data, working_side=working_side)
    (folder / "source.png").write_bytes(source.png)
    yield Step("image", f"{source.width} × {source.height} pixels", pictures=("source.png",))
    payload = ImagePayload(png=source.png)
    try:
        spec = JobSpec(task_description=image.task_description)
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error.errors())) from error
    try:
        chosen = plan(spec, profile, services.models().models)
    except Problem as problem:
        yield Step("models under test", "cannot be listed", fault=problem.detail)
        return
    task = TaskDescription(image.task_description, classes=tuple(chosen.classes))
    watched = WatchedServices(services, urls, folder)
    for method in chosen.methods:
        yield from _method_steps(watched, method, MethodImage(source.digest, payload, image.label), task)
    yield from _model_steps(watched, chosen, payload)


def _method_steps(
    services: WatchedServices, method: JobMethod, image: MethodImage, task: TaskDescription
) -> Iterator[Step]:
    """The steps of a method's calls, then a summary of its counterfactuals."""
    services.title = method.name
    counterfactuals: list[MethodCounterfactual] = []
    try:
        for counterfactual in method.spec.function(image, task, services, method.parameters, 0):
            yield from services.take_steps()
            counterfactuals.append(counterfactual)
    except Problem as problem:
        yield from services.take_steps()
        yield Step(method.name, "stopped", fault=problem.detail)
        return
    yield from services.take_steps()
    yield _result(method.name, counterfactuals)


def _result(name: str, counterfactuals: Iterable[MethodCounterfactual]) -> Step:
    """How many edits were proposed, rendered and accepted, and which check refused the others."""
    edits = [counterfactual for counterfactual in counterfactuals if counterfactual.arm == "edit"]
    rendered = [edit for edit in edits if edit.image is not None]
    accepted = sum(edit.verdict.accepted for edit in rendered)
    refusals = Counter(edit.verdict.check for edit in edits if not edit.verdict.accepted)
    reasons = ", ".join(f"{check} {count}" for check, count in refusals.most_common())
    outcome = f"{len(edits)} edits, {len(rendered)} rendered, {accepted} accepted"
    fault = ""
    if not edits:
        fault = "the language model proposed no edit: read its reply above, and try another `[language]` or caption"
    elif not rendered:
        fault = f"the text checks refused every edit ({reasons}): compare their words with `[text_thresholds]`"
    elif not accepted:
        fault = (
            f"no image passed the checks ({reasons}): if the pictures look right to you, the thresholds do not fit "
            "these images; `contrafact calibrate` fits them (docs/how-to/calibrate.md)"
        )
    return Step(name, f"{outcome}; refused: {reasons}" if reasons else outcome, fault=fault)


def _model_steps(services: WatchedServices, chosen: Plan, image: ImagePayload) -> Iterator[Step]:
    """The prediction of each model under test on the source image."""
    for model in chosen.models:
        services.title = model.name
        try:
            if model.kind == "classification":
                services.predict(PredictRequest(model=model.name, images=[image]))
            else:
                services.segment(SegmentRequest(model=model.name, images=[image]))
        except Problem as problem:
            yield Step(model.name, "stopped", fault=problem.detail)
        yield from services.take_steps()
