"""Run one job of `contrafact.test` on an embedded system and read its outcome."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import httpx
from PIL import Image

from contrafact.client import Client
from contrafact.outcome import Outcome, is_flipped
from contrafact.testing import InProcessOptions, JobFailed
from embedded.library.datasets import ImageSet, read_dataset
from embedded.library.images import pixels_of, png_of
from embedded.library.models import Alias, Upload, prepare_model
from embedded.run import Embedded, run_embedded
from evaluator_service.models_under_test.in_process import InProcessModel, refuse_other_rows
from shared.endpoints import READYZ
from shared.problems import Problem, from_reply
from shared.schemas.jobs import JobDetail, JobRequest, ManifestImage, MethodChoice, MethodInfo
from shared.schemas.result_rows import CounterfactualView

PICTURED = 48  # counterfactuals whose pictures an outcome holds
PICTURE_SIDE = 384
LOADING_SECONDS = 600.0
POLL_SECONDS = 0.2


def run_test(model: object, dataset: object, options: InProcessOptions) -> Outcome:
    """Test a model; see `contrafact.test`."""
    images = read_dataset(dataset, options.classes, options.labels)
    subject = prepare_model(model, images, options)
    if isinstance(subject, InProcessModel):
        _try(subject, images)
    objects = {options.name: subject} if isinstance(subject, InProcessModel) else {}
    with (
        run_embedded(options.directory, options.profile, in_process=objects) as system,
        closing(Client(system.base_url)) as client,
    ):
        _cancel_left_over(client, options.name)
        name = _add(client, subject, options)
        job = client.create(_request(client, name, images, options))
        with _cancelled_on_error(client, job):
            for current in client.follow(job.id):
                job = current
                if options.on_progress is not None:
                    options.on_progress(job)
        _wait_until_loaded(system)
        return _outcome(client, job, system)


def _try(subject: InProcessModel, images: ImageSet) -> None:
    """Run the model on the first image, so that its own errors are raised here rather than fail every image."""
    first = images.read(0)
    rows = subject.predict([pixels_of(first.image, channels_first=first.channels_first)])
    refuse_other_rows(rows, 1, len(subject.classes))


def _cancel_left_over(client: Client, name: str) -> None:
    """Cancel what an earlier, killed process left: its model is gone, and this one has the same name."""
    for job in client.jobs(limit=200).jobs:
        if job.state == "running" and name in job.models:
            client.cancel(job.id)


def _add(client: Client, subject: InProcessModel | Upload | Alias, options: InProcessOptions) -> str:
    """The model's name in jobs. An upload replaces an earlier one of its name."""
    listed = client.models_when_ready().models
    if isinstance(subject, Alias):
        return subject.name
    if isinstance(subject, Upload):
        for model in listed:
            if model.uploaded and model.name == options.name and model.id is not None:
                client.remove_model(model.id)
        client.add_model(subject.spec, subject.files)
    return options.name


def _request(client: Client, name: str, images: ImageSet, options: InProcessOptions) -> JobRequest:
    rows = []
    for position in range(images.length):
        row = images.read(position)
        digest = client.upload(png_of(row.image, channels_first=row.channels_first))
        rows.append(ManifestImage(digest=digest, label=row.label, name=row.name, group=row.group))
    methods = _methods(client, options)
    return JobRequest(
        task_description=options.task,
        models=[name],
        images=rows,
        label_map=dict(options.label_map),
        seed=options.seed,
        **({} if methods is None else {"methods": methods}),
    )


def _methods(client: Client, options: InProcessOptions) -> list[MethodChoice] | None:
    """The methods with `factors` among their parameters, or None for the profile's. Raises ValueError."""
    if options.methods is None and options.factors is None:
        return None
    listed = {method.name: method for method in client.methods().methods}
    names = options.methods or [method.name for method in listed.values() if method.default]
    choices = [method if isinstance(method, MethodChoice) else MethodChoice(name=method) for method in names]
    if options.factors is None:
        return choices
    with_factors = []
    for choice in choices:
        if choice.name in listed and not _has_factors(listed[choice.name]):
            raise ValueError(f"method {choice.name!r} has no factors; leave `factors` out")
        parameters = {**choice.parameters, "factors": list(options.factors)}
        with_factors.append(MethodChoice(name=choice.name, parameters=parameters))
    return with_factors


def _has_factors(method: MethodInfo) -> bool:
    properties = method.parameters["properties"]
    return isinstance(properties, dict) and "factors" in properties


@contextmanager
def _cancelled_on_error(client: Client, job: JobDetail) -> Iterator[None]:
    """Cancel the job if the block raises, as on Ctrl-C: a later process has another model of its name."""
    try:
        yield
    except BaseException:
        client.cancel(job.id)
        raise


def _wait_until_loaded(system: Embedded) -> None:
    """Wait until no service loads weights: Python aborts if a process ends meanwhile."""
    deadline = time.monotonic() + LOADING_SECONDS
    with httpx.Client(trust_env=False, timeout=LOADING_SECONDS) as http:
        for url in system.service_urls.values():
            while time.monotonic() < deadline:
                reply = http.get(f"{url}{READYZ}")
                if reply.is_success or _has_failed(reply):
                    break
                time.sleep(POLL_SECONDS)


def _has_failed(reply: httpx.Response) -> bool:
    problem: Problem = from_reply(reply.status_code, reply.content, None)
    return problem.members.get("failed") is True


def _outcome(client: Client, job: JobDetail, system: Embedded) -> Outcome:
    page = client.results(job.id, {}, limit=1)
    if job.state != "done" or page.metrics is None:
        raise JobFailed(job.failure or f"the job is {job.state}")
    views = list(client.counterfactuals(job.id, {}))
    return Outcome(
        job=job.id,
        directory=system.directory,
        metrics=page.metrics,
        counterfactuals=views,
        failures=page.failures,
        report_page=client.report(job.id),
        pictures=_pictures(client, views),
    )


def _pictures(client: Client, views: Sequence[CounterfactualView]) -> dict[str, bytes]:
    """Source image, null arm and counterfactual of the first accepted counterfactuals, flipped ones first."""
    accepted = sorted((view for view in views if view.verdict.accepted), key=lambda view: not is_flipped(view))
    digests = [
        digest for view in accepted[:PICTURED] for digest in (view.source.image, view.null_image, view.image) if digest
    ]
    return {digest: _small(client.image(digest)) for digest in dict.fromkeys(digests)}


def _small(png: bytes) -> bytes:
    picture = Image.open(io.BytesIO(png))
    if max(picture.size) <= PICTURE_SIDE:
        return png
    picture.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    written = io.BytesIO()
    picture.save(written, "PNG")
    return written.getvalue()
