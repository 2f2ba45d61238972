"""`contrafact doctor --try IMAGE`: one image through every configured service, step by step.

Methods run with the profile's parameters and the plain clients of the services: no database, queue or object store.
Each call is a step with its seconds, the service's memory, what came out, and what is wrong with it; so is each edit,
with the scores of its checks beside their thresholds. Every picture is saved.

A trial's page: every step with its pictures, which lie beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gateway.jobs.choices import Plan, plan
from gateway.jobs.model_choice import models_by_name
from gateway.kinds import KINDS
from gateway.methods import METHODS, JobMethod
from gateway.methods.checks import limit_of
from gateway.methods.counterfactual import MethodCounterfactual, MethodImage, TaskDescription
from gateway.model_services.clients import ModelServices
from gateway.report.page import ASSETS, environment
from gateway.trial.steps import Step, TrialSource, WatchedServices
from shared.media.images import canonical
from shared.problems import InvalidInput, Problem, validation_sentence
from shared.profiles.profile import Profile
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.jobs import JobSpec, MethodChoice
from shared.schemas.service import ServiceName

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class TrialImage:
    """An image file, the sentence on what the models do, and the image's class, if known."""

    data: bytes
    task_description: str
    label: str | None = None

    @property
    def substitute(self) -> str:
        """The caption if the captioner fails."""
        return f"A photo of a {self.label}. Task: {self.task_description}." if self.label else self.task_description


def try_image(
    services: ModelServices,
    urls: Mapping[ServiceName, str],
    profile: Profile,
    image: TrialImage,
    folder: Path,
    working_side: int | None = None,
    methods: Sequence[str] = (),
) -> Iterator[Step]:
    """Run methods and the profile's default models on one image, and yield each step when it has ended.

    `methods`: default all that the profile can run without parameters of the user. Pictures go to `folder`. A step that
    fails ends its method, not the trial; if the captioner fails, task and label are the caption. Raises what
    `shared.media.images.canonical` raises for a file that no job would take, and InvalidInput for a sentence that none
    would take, or a method that the profile cannot run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = canonical(image.data, working_side=working_side)
    (folder / "source.png").write_bytes(source.png)
    size = f"{source.width} × {source.height} pixels"
    if (source.width, source.height) != source.file_size:
        size += f", scaled down from {source.file_size[0]} × {source.file_size[1]} (CONTRAFACT_WORKING_SIDE)"
    yield Step("image", size, pictures=("source.png",))
    try:
        available = services.models().models
        models = [model.name for model in models_by_name(profile.defaults.models, available)]
    except Problem as problem:
        yield Step("models under test", "cannot be listed", fault=problem.detail)
        available, models = [], []
    try:
        spec = JobSpec(task_description=image.task_description, models=models)
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error.errors())) from error
    chosen = plan(spec, profile, available)
    task = TaskDescription(image.task_description, classes=tuple(chosen.classes))
    payload = ImagePayload(png=source.png)
    watched = WatchedServices(services, urls, folder, TrialSource(payload, source.digest, image.substitute))
    for planned in planned_methods(methods, spec, profile, available):
        if isinstance(planned, Step):
            yield planned
        else:
            yield from _method_steps(watched, planned, MethodImage(source.digest, payload, image.label), task)
    yield from _model_steps(watched, chosen, payload)


def planned_methods(
    methods: Sequence[str], spec: JobSpec, profile: Profile, available: Sequence[ModelUnderTestInfo]
) -> list[JobMethod | Step]:
    """The methods to try: these, or by default all listed ones, the profile's own first.

    By default a method that cannot run becomes a step that says why; else InvalidInput is raised.
    """
    listed = [name for name, method in METHODS.items() if method.listed]
    planned: list[JobMethod | Step] = []
    for name in methods or dict.fromkeys([*profile.defaults.methods, *listed]):
        choice = spec.model_copy(update={"methods": [MethodChoice(name=name)]})
        try:
            planned += plan(choice, profile, available).methods
        except InvalidInput as problem:
            if methods:
                raise
            planned.append(Step(name, f"not tried: {problem.detail}"))
    return planned


def _method_steps(
    services: WatchedServices, method: JobMethod, image: MethodImage, task: TaskDescription
) -> Iterator[Step]:
    """A step that names the method, those of its calls and of its edits, and a summary of its counterfactuals.

    The first calls are known only with the first counterfactual, which may take minutes.
    """
    yield Step(method.name, "started")
    services.title, services.method = method.name, method
    counterfactuals: list[MethodCounterfactual] = []
    fault = ""
    try:
        for counterfactual in method.spec.function(image, task, services, method.parameters, 0):
            yield from services.take_steps()
            counterfactuals.append(counterfactual)
    except Problem as problem:
        fault = problem.detail
    yield from services.take_steps()
    for counterfactual in counterfactuals:
        if counterfactual.arm == "edit" and counterfactual.image is not None:
            yield _edit_step(method, counterfactual, services.picture_of(counterfactual.image))
    yield Step(method.name, "stopped", fault=fault) if fault else _result(method.name, counterfactuals)


def _edit_step(method: JobMethod, counterfactual: MethodCounterfactual, pictures: tuple[str, ...]) -> Step:
    """An edit's verdict, its scores beside the thresholds of the checks, and why it was refused.

    A check may refuse by more than its score (`label` also if another class is more probable), so the reason stands.
    """
    edit, verdict = counterfactual.edit, counterfactual.verdict
    changes = [f"“{change.from_phrase}” → “{change.to_phrase}”" for change in edit.changes] if edit else []
    scores = []
    for check, score in counterfactual.scores.items():
        if check in method.spec.checks:
            by_factor = method.thresholds.get(check)
            limit = f" (at least {limit_of(edit, by_factor):.2f})" if by_factor and edit and edit.changes else ""
            scores.append(f"{check} {score:.2f}{limit}")
    result = "accepted" if verdict.accepted else f"refused by {verdict.check}"
    if counterfactual.null_check:
        result += f", and its null arm by {counterfactual.null_check}"
    name = f"{method.name}: edit {counterfactual.ordinal}: {', '.join(changes)}"
    outcome = "; ".join(text for text in (result, ", ".join(scores), verdict.reason) if text)
    return Step(name, outcome, pictures=pictures)


def _result(name: str, counterfactuals: Sequence[MethodCounterfactual]) -> Step:
    """How many edits were proposed, rendered and accepted, and which check refused the others."""
    edits = [counterfactual for counterfactual in counterfactuals if counterfactual.arm == "edit"]
    rendered = [edit for edit in edits if edit.image is not None]
    accepted = sum(edit.verdict.accepted for edit in rendered)
    reasons = _refusals(edits)
    outcome = f"{len(edits)} edits, {len(rendered)} rendered, {accepted} accepted"
    fault = ""
    if not edits and not counterfactuals:
        fault = "the language model proposed no edit: read its reply above, and try another `[language]` or caption"
    elif edits and not rendered:
        fault = f"every edit was refused before it was rendered ({reasons}): {edits[0].verdict.reason}"
    elif edits and not accepted:
        fault = (
            f"no image passed the checks ({_refusals(rendered)}): if the pictures look right to you, the thresholds do "
            "not fit these images; `contrafact calibrate` fits them (docs/how-to/calibrate.md)"
        )
    return Step(name, f"{outcome}; refused: {reasons}" if reasons else outcome, fault=fault)


def _refusals(edits: Sequence[MethodCounterfactual]) -> str:
    """How many of the edits each check refused, the most first; "" if all were accepted."""
    counts = Counter(edit.verdict.check for edit in edits if not edit.verdict.accepted)
    return ", ".join(f"{check} {count}" for check, count in counts.most_common())


def _model_steps(services: WatchedServices, chosen: Plan, image: ImagePayload) -> Iterator[Step]:
    """The prediction of each model under test on the source image."""
    for model in chosen.models:
        services.title, services.method = model.name, None
        try:
            endpoint = KINDS[model.kind].endpoint
            services.call(endpoint, endpoint.request(model=model.name, images=[image]))
        except Problem as problem:
            yield Step(model.name, "stopped", fault=problem.detail)
        yield from services.take_steps()


def trial_page(steps: Sequence[Step], profile: str) -> str:
    """The page of a trial with a profile of this name."""
    return (
        environment(TEMPLATES)
        .get_template("trial.html")
        .render(
            steps=steps,
            profile=profile,
            style=(ASSETS / "contrafact.css").read_text(encoding="utf-8"),
            faults=sum(bool(step.fault) for step in steps),
            seconds=sum(step.seconds or 0.0 for step in steps),
        )
    )
