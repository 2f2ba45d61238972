"""Run one job of `contrafact.test` on an embedded system and read its outcome."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import httpx
import numpy as np
from huggingface_hub.constants import HF_HOME
from PIL import Image

from contrafact import plan_text
from contrafact.client import Client
from contrafact.command_line import messages
from contrafact.outcome import Outcome, is_flipped
from contrafact.progress_display import follow_job, print_page
from contrafact.testing import InProcessOptions, JobFailed
from embedded.library.datasets import LABELS, ImageSet, Truths, read_dataset
from embedded.library.detection import BOXES, on_stored, prepare_detector, try_detector
from embedded.library.images import UNUSABLE, first_pixels, named_problem, pixels_of, png_of, read_image
from embedded.library.models import Alias, Upload, own_classes, prepare_model, try_classifier
from embedded.library.questions import ASKED_TRUTHS, prepare_answerer, try_answerer
from embedded.run import LOG, Embedded, quiet_libraries, run_embedded
from evaluator_service.model import DomainJudge
from evaluator_service.models_under_test.in_process import InProcessModel
from evaluator_service.similarity import Scorer
from gateway.jobs.domain import REFUSED_ABOVE, SAMPLED, scaled_down
from shared.media.images import Pixels
from shared.media.testsets import distinct
from shared.problems import NotReady, Problem, from_reply
from shared.profiles.fetch_weights import fetch, hub_files
from shared.profiles.profile import load_profile
from shared.schemas.base import Kind
from shared.schemas.boxes import BoxSpec
from shared.schemas.jobs import JobDetail, JobRequest, ManifestImage, MethodChoice, MethodInfo
from shared.schemas.questions import QuestionSpec
from shared.schemas.results import CounterfactualView
from shared.service.endpoints import INFO

DRAWN, MOVING, METHOD = "tiny", "photographs", "compose"  # default profiles, and the method of the second
PICTURED = 48  # counterfactuals whose pictures an outcome holds
PICTURE_SIDE = 384
START_SECONDS = 600.0  # of a service, before it answers at all
LAST_REPLY_SECONDS = 10.0
POLL_SECONDS = 0.2
SILENT_SECONDS = 1.0  # of waiting for another thread's test
LAST_BATCH_SECONDS = 600.0  # a batch may still compute for a cancelled job
# One test at a time: loaders set torch's default dtype for the whole process, and migrations keep global state. A test
# may run inside another's `on_progress`.
RUNNING = threading.RLock()


class LibraryKind(NamedTuple):
    """How the caller's data sets and models of a kind are read and tried."""

    name: Kind
    truths: Truths
    prepare: Callable[[object, ImageSet, InProcessOptions], InProcessModel | Upload | Alias]
    try_out: Callable[[InProcessModel, Pixels], None]


KINDS: Mapping[Kind, LibraryKind] = {
    kind.name: kind
    for kind in (
        LibraryKind("classification", LABELS, prepare_model, try_classifier),
        LibraryKind("detection", BOXES, prepare_detector, try_detector),
        LibraryKind("vqa", ASKED_TRUTHS, prepare_answerer, try_answerer),
    )
}


def run_test(model: object, dataset: object, options: InProcessOptions) -> Outcome:
    """Test a model; see `contrafact.test`. Waits while another thread runs a test, and says so after a second."""
    if not RUNNING.acquire(timeout=SILENT_SECONDS):
        messages.print("Another thread of this process runs a test; this one starts when that ends.", soft_wrap=True)
        RUNNING.acquire()
    try:
        with quiet_libraries():
            return _run_test(model, dataset, options)
    finally:
        RUNNING.release()


def _run_test(model: object, dataset: object, options: InProcessOptions) -> Outcome:
    known = {*own_classes(model), *options.label_map}
    kind = KINDS[options.kind]
    images = read_dataset(dataset, options.classes, options.labels, options.label_column, known, kind.truths)
    first = first_pixels(images)
    profile, methods = choose_profile(images, options)
    options = replace(options, methods=methods)
    if profile == MOVING:
        fetch(hub_files(load_profile(profile)), Path(HF_HOME))  # here it fails with what to do, and not in a service
    subject = kind.prepare(model, images, options)
    if isinstance(subject, InProcessModel):  # its own errors are raised here rather than fail every image
        kind.try_out(subject, first)
    objects = {options.name: subject} if isinstance(subject, InProcessModel) else {}
    with (
        run_embedded(options.directory, profile, in_process=objects, drain_seconds=LAST_BATCH_SECONDS) as system,
        closing(Client(system.base_url)) as client,
    ):
        try:
            _cancel_left_over(client, options.name)
            _wait_until_loaded(system)  # before the caller's own code runs: loaders change torch's default dtype
            job = _run_job(client, subject, images, options)
            return _outcome(client, job, system)
        finally:
            _let_loading_end(system)  # Python aborts if the process ends while weights load


def choose_profile(images: ImageSet, options: InProcessOptions) -> tuple[str, Sequence[str | MethodChoice] | None]:
    """The profile and the methods: the caller's, else those that know the images, which a line on stderr says.

    The default is DRAWN. Images that it does not know get MOVING where nothing was asked for that needs a generator.
    """
    if options.profile is not None:
        return options.profile, options.methods
    names = [choice if isinstance(choice, str) else choice.name for choice in options.methods or [METHOD]]
    needs_more = options.factors or options.values or options.design or options.outside_domain
    has_places = KINDS[options.kind].truths is not LABELS  # they would not move with the objects
    if has_places or METHOD not in names or needs_more or _knows(DRAWN, images):
        return DRAWN, options.methods
    messages.print(
        f"Profile {MOVING}: these images are not drawn, so method {METHOD} moves their objects, which a background "
        "remover finds, to other backgrounds. To generate changes, name a profile with a generator, such as modern.",
        soft_wrap=True,
    )
    return MOVING, options.methods or [METHOD]


def _knows(profile: str, images: ImageSet) -> bool:
    """Whether most images that are looked at belong to the profile's domain."""
    evaluator = load_profile(profile).evaluator
    assert evaluator.domain is not None
    pictures = []
    for position in np.linspace(0, images.length - 1, min(images.length, SAMPLED)).round().astype(int):
        with suppress(*UNUSABLE):
            pictures.append(np.asarray(scaled_down(Image.fromarray(read_image(images.read(int(position)), pixels_of)))))
    judge = DomainJudge(Scorer(evaluator.scorer, device="cpu"), evaluator.domain.statistics)
    return float(np.mean(judge.log_odds(pictures) > 0)) <= REFUSED_ABOVE


def _run_job(
    client: Client, subject: InProcessModel | Upload | Alias, images: ImageSet, options: InProcessOptions
) -> JobDetail:
    """Create the job and follow it to its end."""
    name = _add(client, subject, options)
    request = _request(client, name, images, options)
    plan = client.plan(request)
    lines = images.test_set.lines(plan.images, plan.labelled)
    messages.print(plan_text.plan(plan.model_copy(update={"test_set": lines})))
    job = client.create(request)
    print_page(client, job.id)
    with _cancelled_on_error(client, job):
        if options.on_progress is None:
            return follow_job(client, job)
        for current in client.follow(job.id):
            job = current
            options.on_progress(job)
    return job


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
    rows, problem = [], None
    for position in range(images.length):
        row = images.read(position)
        try:
            data = read_image(row, png_of)
            digest = client.upload(data)
        except UNUSABLE as error:
            problem = named_problem(row, error)
            images.test_set.left_out[row.name] = str(error)
            continue
        boxes = None if row.boxes is None else list(on_stored(data, row.boxes))
        questions = None if row.questions is None else list(row.questions)
        rows.append(
            ManifestImage(
                digest=digest, label=row.label, name=row.name, group=row.group, boxes=boxes, questions=questions
            )
        )
    if problem is not None and not rows:
        raise problem
    digests = [row.digest for row in rows]
    labels = [
        options.label_map.get(row.label or "", row.label)
        if row.boxes is None and row.questions is None
        else repr((row.boxes, row.questions))
        for row in rows
    ]
    rows = [rows[position] for position in distinct(images.test_set, [row.name for row in rows], digests, labels)]
    methods = _methods(client, options)
    return JobRequest(
        task_description=options.task,
        models=[name],
        images=rows,
        label_map=dict(options.label_map),
        seed=options.seed,
        outside_domain=options.outside_domain,
        protected_characteristics=options.protected_characteristics,
        values=tuple(options.values or ()),
        design=options.design,
        **({} if methods is None else {"methods": methods}),
        **({} if all(row.boxes is None for row in rows) else {"boxes": _box_spec(options)}),
        **({} if all(row.questions is None for row in rows) else {"questions": QuestionSpec()}),
    )


def _box_spec(options: InProcessOptions) -> BoxSpec:
    if isinstance(options.score, Mapping):
        return BoxSpec(scores=dict(options.score))
    if options.score == "best":
        return BoxSpec(choose_scores=True)
    return BoxSpec() if options.score is None else BoxSpec(score=options.score)


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
    """Wait until every service has loaded its weights or failed to. Raises NotReady for one that never starts."""
    give_up = time.monotonic() + START_SECONDS
    with httpx.Client(trust_env=False, timeout=START_SECONDS) as http:
        for name, url in system.service_urls.items():
            while (state := _load_state(http, url)) != "loaded or failed":
                if state == "not started" and time.monotonic() > give_up:
                    raise NotReady(f"{name} has not started; {system.directory / LOG} may say why")
                time.sleep(POLL_SECONDS)


def _let_loading_end(system: Embedded) -> None:
    """Wait ten minutes at most for services that load weights. Never raises: the caller should see the first error."""
    give_up = time.monotonic() + START_SECONDS
    with httpx.Client(trust_env=False, timeout=LAST_REPLY_SECONDS) as http:
        for url in system.service_urls.values():
            while _load_state(http, url) == "loading" and time.monotonic() < give_up:
                time.sleep(POLL_SECONDS)


def _load_state(http: httpx.Client, url: str) -> Literal["not started", "loading", "loaded or failed"]:
    try:
        reply = http.get(f"{url}{INFO.path}")
    except httpx.ConnectError:
        return "not started"
    except httpx.TransportError:
        return "loading"  # it accepts connections, and is too busy to answer
    if reply.is_success:
        return "loaded or failed"
    problem: Problem = from_reply(reply.status_code, reply.content, None)
    failed = not isinstance(problem, NotReady) or problem.members.get("failed") is True
    return "loaded or failed" if failed else "loading"


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
