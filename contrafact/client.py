"""A typed client of the public API. It knows only the schemas: neither the gateway's code nor terminals."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

import httpx

from contrafact.counted_file import CountedFile, Report
from shared.problems import DependencyFailed, NotReady, Overloaded, from_reply
from shared.schemas.base import Contract
from shared.schemas.jobs import (
    CounterfactualView,
    EventView,
    JobDetail,
    JobPlan,
    JobRequest,
    JobsPage,
    JobSpec,
    MethodsReply,
    ModelsListing,
    ModelView,
    ResultsPage,
)
from shared.schemas.models import AddedModels, ModelSpec
from shared.schemas.repairs import RepairRequest, RepairsPage, RepairView, TrainedArm
from shared.schemas.reviews import ReviewRequest, ReviewsPage, ReviewView
from shared.schemas.suites import RunRequest, RunResults, RunView, SuiteDetail, SuiteRequest, SuitesPage, SuiteView

RETRY_SECONDS = 1.0
MAX_RETRIES = 30
LEAST_PAUSE_SECONDS = 0.3
MOST_PAUSE_SECONDS = 2.0
START_PATIENCE_SECONDS = 600.0
LIMIT_PATIENCE_SECONDS = 600.0
STATUS_TIMEOUT = httpx.Timeout(20.0, connect=5.0)  # so that whoever follows a job hears of a gateway that hangs
DRY_RUN = {"dry_run": "true"}

Answered = TypeVar("Answered", bound=Contract)


def _ignore(_: int) -> None:
    """Report nothing."""


class Unreachable(DependencyFailed):
    """The gateway cannot be reached."""


class Client:
    """A client of one gateway. Methods raise the gateway's problems as subclasses of `shared.problems.Problem`."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(60.0, connect=5.0, read=600.0)
        self._http = httpx.Client(base_url=base_url, headers=headers, timeout=timeout, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def upload(self, path: Path) -> str:
        """Upload an image file unless the gateway has it. Returns the digest for a `JobRequest`."""
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        place = f"/images/{digest}"
        if self._send(self._http.build_request("HEAD", place), allowed=404).status_code == 404:
            self._send(self._http.build_request("PUT", place, content=data))
        return digest

    def create(self, request: JobRequest, key: str | None = None) -> JobDetail:
        """Start a job over uploaded images."""
        headers = {"Content-Type": "application/json", **_idempotency(key)}
        content = request.model_dump_json(exclude_unset=True)
        message = self._http.build_request("POST", "/jobs", content=content, headers=headers)
        return JobDetail.model_validate_json(self._send(message).content)

    def plan(self, request: JobRequest) -> JobPlan:
        """The plan of a job over these images, which need not be uploaded."""
        content = request.model_dump_json(exclude_unset=True)
        headers = {"Content-Type": "application/json"}
        message = self._http.build_request("POST", "/jobs", params=DRY_RUN, content=content, headers=headers)
        return JobPlan.model_validate_json(self._send(message).content)

    def create_from_archive(
        self, spec: JobSpec, archive: Path, manifest: bytes | None, key: str | None = None, sent: Report = _ignore
    ) -> JobDetail:
        """Start a job over the images of a zip, tar or tar.gz. Calls `sent` with the bytes of it sent so far."""
        return JobDetail.model_validate_json(self._post_archive(spec, archive, manifest, _idempotency(key), {}, sent))

    def plan_from_archive(
        self, spec: JobSpec, archive: Path, manifest: bytes | None, sent: Report = _ignore
    ) -> JobPlan:
        """The plan of a job over the images of an archive. Calls `sent` with the bytes of it sent so far."""
        return JobPlan.model_validate_json(self._post_archive(spec, archive, manifest, {}, DRY_RUN, sent))

    def plan_of(self, job: str) -> JobPlan:
        """The plan of a job."""
        return self._get(JobPlan, f"/jobs/{job}/plan")

    def _post_archive(
        self,
        spec: JobSpec,
        archive: Path,
        manifest: bytes | None,
        headers: Mapping[str, str],
        parameters: Mapping[str, str],
        sent: Report,
    ) -> bytes:
        with CountedFile(archive, sent) as file:
            files: dict[str, tuple[str, IO[bytes] | bytes]] = {
                "spec": ("spec.json", spec.model_dump_json(exclude_unset=True).encode()),
                "images": (archive.name, file),
            }
            if manifest is not None:
                files["manifest"] = ("manifest", manifest)
            message = self._http.build_request("POST", "/jobs", params=parameters, files=files, headers=headers)
            return self._send(message).content

    def job(self, job: str) -> JobDetail:
        """A job with its progress. Raises Unreachable where the gateway gives no answer for a while."""
        request = self._http.build_request("GET", f"/jobs/{job}", timeout=STATUS_TIMEOUT)
        return JobDetail.model_validate_json(self._send(request).content)

    def jobs(self, limit: int = 20) -> JobsPage:
        """The newest jobs."""
        return self._get(JobsPage, "/jobs", {"limit": str(limit)})

    def results(self, job: str, filters: Mapping[str, str], limit: int = 50, cursor: str | None = None) -> ResultsPage:
        """The metrics and one page of counterfactuals."""
        page = {"limit": str(limit), **filters, **({"cursor": cursor} if cursor else {})}
        return self._get(ResultsPage, f"/jobs/{job}/results", page)

    def counterfactuals(self, job: str, filters: Mapping[str, str]) -> Iterator[CounterfactualView]:
        """All counterfactuals that match the filters, page by page."""
        cursor = None
        while True:
            page = self.results(job, filters, limit=200, cursor=cursor)
            yield from page.counterfactuals
            cursor = page.next
            if cursor is None:
                return

    def report(self, job: str) -> bytes:
        """The report as one HTML page."""
        return self._send(self._http.build_request("GET", f"/jobs/{job}/report")).content

    def review(self, job: str, counterfactual: str, request: ReviewRequest) -> ReviewView:
        """Review a counterfactual. Replaces your earlier review of it."""
        return self._send_message("PUT", ReviewView, f"/jobs/{job}/reviews/{counterfactual}", request)

    def reviews(self, job: str) -> Iterator[ReviewView]:
        """All reviews of a job, newest first, page by page."""
        cursor: str | None = None
        while True:
            parameters = {"limit": "200", **({"cursor": cursor} if cursor else {})}
            page = self._get(ReviewsPage, f"/jobs/{job}/reviews", parameters)
            yield from page.reviews
            cursor = page.next
            if cursor is None:
                return

    def report_anew(self, job: str) -> JobDetail:
        """Rebuild the report of a finished job with its current reviews."""
        message = self._http.build_request("POST", f"/jobs/{job}/report")
        return JobDetail.model_validate_json(self._send(message).content)

    def export(self, job: str, query: Sequence[tuple[str, str]], out: IO[bytes]) -> None:
        """Stream the job's export into a file. After a problem the file is incomplete."""
        message = self._http.build_request("GET", f"/jobs/{job}/export", params=list(query))
        try:
            reply = self._http.send(message, stream=True)
            try:
                if not reply.is_success:
                    raise from_reply(reply.status_code, reply.read(), reply.headers.get("Retry-After"))
                for piece in reply.iter_bytes():
                    out.write(piece)
            finally:
                reply.close()
        except httpx.TransportError as error:
            raise Unreachable(f"the connection to {self._http.base_url} broke off: {error!r}") from error

    def create_suite(self, request: SuiteRequest) -> SuiteDetail:
        """Freeze counterfactuals of a job."""
        return self._post(SuiteDetail, "/suites", request)

    def suites(self) -> Iterator[SuiteView]:
        """All suites, page by page."""
        cursor: str | None = None
        while True:
            page = self._get(SuitesPage, "/suites", {"limit": "200", **({"cursor": cursor} if cursor else {})})
            yield from page.suites
            cursor = page.next
            if cursor is None:
                return

    def suite(self, suite: str) -> SuiteDetail:
        """A suite with its runs."""
        return self._get(SuiteDetail, f"/suites/{suite}")

    def delete_suite(self, suite: str) -> None:
        """Delete a suite with its runs."""
        self._send(self._http.build_request("DELETE", f"/suites/{suite}"))

    def start_run(self, suite: str, model: str) -> RunView:
        """Run a model under test on a suite, or return its earlier run. Waits while the models start."""
        return self._when_ready(lambda: self._post(RunView, f"/suites/{suite}/runs", RunRequest(model=model)))

    def run(self, suite: str, run: str) -> RunView:
        """A run with its progress."""
        return self._get(RunView, f"/suites/{suite}/runs/{run}")

    def run_results(self, suite: str, run: str, baseline: str | None, max_drop: float) -> RunResults:
        """The results of a finished run, compared with a baseline run or with its own null arms."""
        parameters = {"max_drop": str(max_drop), **({"baseline": baseline} if baseline else {})}
        return self._get(RunResults, f"/suites/{suite}/runs/{run}/results", parameters)

    def begin_repair(self, job: str, request: RepairRequest) -> RepairView:
        """Train a model under test on a job's counterfactuals. Waits while the models start."""
        return self._when_ready(lambda: self._post(RepairView, f"/jobs/{job}/repairs", request))

    def repair(self, repair: str) -> RepairView:
        """A repair with its progress and, once finished, its result."""
        return self._get(RepairView, f"/repairs/{repair}")

    def repairs(self, limit: int = 50) -> RepairsPage:
        """The newest repairs."""
        return self._get(RepairsPage, "/repairs", {"limit": str(limit)})

    def cancel_repair(self, repair: str) -> RepairView:
        """Stop a repair."""
        return RepairView.model_validate_json(
            self._send(self._http.build_request("POST", f"/repairs/{repair}/cancel")).content
        )

    def delete_repair(self, repair: str) -> None:
        """Delete a repair with its models."""
        self._send(self._http.build_request("DELETE", f"/repairs/{repair}"))

    def repaired_model(self, repair: str, arm: TrainedArm = "repaired") -> bytes:
        """The model of an arm, as a tar that `add_model` takes."""
        return self._send(self._http.build_request("GET", f"/repairs/{repair}/model", params={"arm": arm})).content

    def image(self, digest: str) -> bytes:
        """An image as PNG."""
        return self._send(self._http.build_request("GET", f"/images/{digest}")).content

    def cancel(self, job: str) -> JobDetail:
        """Stop a job."""
        return JobDetail.model_validate_json(
            self._send(self._http.build_request("POST", f"/jobs/{job}/cancel")).content
        )

    def retry(self, job: str) -> JobDetail:
        """Retry a job's failed and cancelled images."""
        return JobDetail.model_validate_json(self._send(self._http.build_request("POST", f"/jobs/{job}/retry")).content)

    def delete(self, job: str) -> None:
        """Delete a job with its results."""
        self._send(self._http.build_request("DELETE", f"/jobs/{job}"))

    def methods(self) -> MethodsReply:
        """The methods with their parameters."""
        return self._get(MethodsReply, "/methods")

    def models(self) -> ModelsListing:
        """The models under test."""
        return self._get(ModelsListing, "/models")

    def add_model(self, spec: ModelSpec, paths: Sequence[Path], sent: Report = _ignore) -> ModelView:
        """Upload a model under test: an archive, an .onnx file, or the files of a model in Hub layout.

        Calls `sent` with the bytes of the files sent so far.
        """
        positions = dict.fromkeys(paths, 0)

        def report(path: Path, position: int) -> None:
            positions[path] = position
            sent(sum(positions.values()))

        with ExitStack() as stack:
            parts: list[tuple[str, tuple[str, IO[bytes] | bytes]]] = [
                ("spec", ("spec.json", spec.model_dump_json(exclude_unset=True).encode()))
            ]
            for path in paths:
                file = stack.enter_context(CountedFile(path, partial(report, path)))
                parts.append(("model", (path.name, file)))
            message = self._http.build_request("POST", "/models", files=parts)
            return ModelView.model_validate_json(self._send(message).content)

    def remove_model(self, model: str) -> None:
        """Delete an uploaded model, by its id."""
        self._send(self._http.build_request("DELETE", f"/models/{model}"))

    def add_models_to_job(self, job: str, names: Sequence[str]) -> JobDetail:
        """Test more models on the images of a finished job. Waits while the models start."""
        return self._when_ready(lambda: self._post(JobDetail, f"/jobs/{job}/models", AddedModels(models=list(names))))

    def models_when_ready(self, tell: Callable[[NotReady], None] = lambda _: None) -> ModelsListing:
        """The models under test. While their service starts, calls `tell` and waits; raises NotReady in the end."""
        return self._when_ready(self.models, tell)

    def _when_ready(self, ask: Callable[[], Answered], tell: Callable[[NotReady], None] = lambda _: None) -> Answered:
        give_up = time.monotonic() + START_PATIENCE_SECONDS
        while True:
            try:
                return ask()
            except NotReady as problem:
                if problem.members.get("failed") is True or time.monotonic() > give_up:
                    raise
                tell(problem)
                time.sleep(RETRY_SECONDS)

    def follow(self, job: str) -> Iterator[JobDetail]:
        """Yield the job repeatedly until it ends.

        While the gateway is unreachable, yields the last known state, up to a limit of retries.
        """
        pause, lost = LEAST_PAUSE_SECONDS, 0
        detail: JobDetail | None = None
        while True:
            try:
                detail = self.job(job)
            except (Unreachable, NotReady):
                lost += 1
                if lost > MAX_RETRIES:
                    raise
                if detail is not None:
                    progress = detail.progress.model_copy(update={"held_up": "the gateway does not answer"})
                    yield detail.model_copy(update={"progress": progress})
                time.sleep(RETRY_SECONDS)
                continue
            yield detail
            if detail.state != "running":
                return
            time.sleep(pause)
            pause, lost = min(MOST_PAUSE_SECONDS, 1.02 * pause), 0

    def gallery_of(self, job: str) -> str:
        """The URL of the page with a job's accepted counterfactuals."""
        return str(self._http.base_url.join(f"jobs/{job}/view?verdict=accepted#gallery"))

    def events(self, job: str) -> Iterator[EventView]:
        """Yield the job's events until it ends. Resumes a broken connection after the last event."""
        last_event, lost = 0, 0
        while True:
            try:
                with self._http.stream(
                    "GET", f"/jobs/{job}/events", headers={"Last-Event-ID": str(last_event)}
                ) as reply:
                    if reply.status_code == 204:
                        return
                    if reply.status_code != 200:
                        raise from_reply(reply.status_code, reply.read(), reply.headers.get("Retry-After"))
                    for line in reply.iter_lines():
                        if line.startswith("data:"):
                            event = EventView.model_validate_json(line.removeprefix("data:"))
                            last_event, lost = event.sequence, 0
                            yield event
            except httpx.TransportError as error:
                lost += 1
                if lost > MAX_RETRIES:
                    raise Unreachable(f"the connection to {self._http.base_url} broke off: {error!r}") from error
                time.sleep(RETRY_SECONDS)

    def _get(self, answered: type[Answered], path: str, parameters: Mapping[str, str] | None = None) -> Answered:
        request = self._http.build_request("GET", path, params=dict(parameters or {}))
        return answered.model_validate_json(self._send(request).content)

    def _post(self, answered: type[Answered], path: str, message: Contract) -> Answered:
        return self._send_message("POST", answered, path, message)

    def _send_message(self, verb: str, answered: type[Answered], path: str, message: Contract) -> Answered:
        content = message.model_dump_json(exclude_unset=True, by_alias=True)
        request = self._http.build_request(verb, path, content=content, headers={"Content-Type": "application/json"})
        return answered.model_validate_json(self._send(request).content)

    def _send(self, request: httpx.Request, allowed: int | None = None) -> httpx.Response:
        """Send a request; return a success or a reply with the allowed status. Waits while a rate limit is reached."""
        give_up = time.monotonic() + LIMIT_PATIENCE_SECONDS
        while True:
            reply = self._send_once(request)
            if reply.is_success or reply.status_code == allowed:
                return reply
            problem = from_reply(reply.status_code, reply.content, reply.headers.get("Retry-After"))
            pause = problem.retry_after or RETRY_SECONDS
            if not isinstance(problem, Overloaded) or time.monotonic() + pause > give_up:
                raise problem
            time.sleep(pause)

    def _send_once(self, request: httpx.Request) -> httpx.Response:
        try:
            return self._http.send(request)
        except httpx.ConnectError as error:
            raise Unreachable(
                f"nothing answers at {self._http.base_url}; start `contrafact serve`, or set CONTRAFACT_URL"
            ) from error
        except httpx.TransportError as error:
            raise Unreachable(f"the connection to {self._http.base_url} broke off: {error!r}") from error


def _idempotency(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": key} if key else {}
