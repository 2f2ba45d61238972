"""A typed client of the public API. It knows only the schemas: neither the gateway's code nor terminals.

A file that reports its reading position, so that uploads can show their progress.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO

import httpx

from contrafact.connection import RETRY_SECONDS, Connection, Unreachable, pages, repeat_until_ready
from shared.problems import NotReady
from shared.schemas.calibration import JobCalibration
from shared.schemas.comparisons import ComparisonChoice, JobComparison
from shared.schemas.effects import DoseRequest
from shared.schemas.exports import Release
from shared.schemas.finding_notes import FindingNoteRequest
from shared.schemas.findings import FindingsListing, FindingView
from shared.schemas.jobs import (
    EventView,
    JobDetail,
    JobRequest,
    JobsPage,
    JobSpec,
    MethodsReply,
    ModelsListing,
    ModelView,
)
from shared.schemas.models import AddedModels, ModelSpec
from shared.schemas.own_images import MarkRequest, MarkView, OwnImagesView
from shared.schemas.plans import JobPlan
from shared.schemas.profiles import ProfilesReply
from shared.schemas.repairs import RepairRequest, RepairsPage, RepairView, TrainedArm
from shared.schemas.reports import ReportFormat
from shared.schemas.results import CounterfactualView, ResultsPage
from shared.schemas.reviews import ConfirmationJob, ConfirmationRequest, ReviewRequest, ReviewsPage, ReviewView
from shared.schemas.studies import (
    AnswersStored,
    InvitationsReply,
    InvitationsRequest,
    Side,
    StudiesListing,
    StudyRequest,
    StudyResults,
    StudyView,
)
from shared.schemas.suites import (
    RunRequest,
    RunResults,
    RunView,
    SuiteCounterfactuals,
    SuiteDetail,
    SuiteRequest,
    SuitesPage,
    SuiteView,
)

Report = Callable[[int], None]


class CountedFile(io.BufferedReader):
    """A file opened for reading; after each read it calls `report` with its position in bytes.

    A request that is sent again seeks to the start, so the position may go back.
    """

    def __init__(self, path: Path, report: Report) -> None:
        """Raises OSError for a file that cannot be opened."""
        super().__init__(io.FileIO(path))
        self._report = report

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to `size` bytes, all with -1, and report the position."""
        data = super().read(size)
        self._report(self.tell())
        return data


__all__ = ["Client", "Unreachable"]

MAX_RETRIES = 30
LEAST_PAUSE_SECONDS = 0.3
MOST_PAUSE_SECONDS = 2.0
STATUS_TIMEOUT = httpx.Timeout(20.0, connect=5.0)  # short, so that `follow` notices a gateway that hangs
DRY_RUN = {"dry_run": "true"}


def _ignore(_: int) -> None:
    """Report nothing."""


class Client:
    """A client of one gateway. Methods raise the gateway's problems as subclasses of `shared.problems.Problem`."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        ca_file: Path | str = "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`ca_file`: PEM of certificate authorities to trust, too. `transport` sends the requests; default: httpx's."""
        self._gateway = Connection(base_url, api_key, transport, ca_file)

    def close(self) -> None:
        """Close the connections."""
        self._gateway.http.close()

    def upload(self, image: Path | bytes) -> str:
        """Upload an image file, or its bytes, unless the gateway has it. Returns the digest for a `JobRequest`."""
        data = image if isinstance(image, bytes) else image.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        path_of_image = f"/images/{digest}"
        build_request = self._gateway.http.build_request
        if self._gateway.send(build_request("HEAD", path_of_image), allowed=404).status_code == 404:
            self._gateway.send(build_request("PUT", path_of_image, content=data))
        return digest

    def create(self, request: JobRequest, key: str | None = None) -> JobDetail:
        """Start a job over uploaded images. Waits while the services start that look at them."""
        return repeat_until_ready(lambda: self._gateway.post(JobDetail, "/jobs", request, headers=_idempotency(key)))

    def plan(self, request: JobRequest) -> JobPlan:
        """The plan of a job over these images. The images need not be uploaded."""
        return repeat_until_ready(lambda: self._gateway.post(JobPlan, "/jobs", request, DRY_RUN))

    def create_from_archive(
        self, spec: JobSpec, archive: Path, manifest: bytes | None, key: str | None = None, progress: Report = _ignore
    ) -> JobDetail:
        """Start a job over the images of a zip, tar or tar.gz. Calls `progress` with the number of bytes sent."""
        return repeat_until_ready(
            lambda: JobDetail.model_validate_json(
                self._post_archive(spec, archive, manifest, _idempotency(key), {}, progress)
            )
        )

    def plan_from_archive(
        self, spec: JobSpec, archive: Path, manifest: bytes | None, progress: Report = _ignore
    ) -> JobPlan:
        """The plan of a job over the images of an archive. Calls `progress` with the number of bytes sent."""
        return repeat_until_ready(
            lambda: JobPlan.model_validate_json(self._post_archive(spec, archive, manifest, {}, DRY_RUN, progress))
        )

    def plan_of(self, job: str) -> JobPlan:
        """The plan of a job."""
        return self._gateway.get(JobPlan, f"/jobs/{job}/plan")

    def _post_archive(
        self,
        spec: JobSpec,
        archive: Path,
        manifest: bytes | None,
        headers: Mapping[str, str],
        parameters: Mapping[str, str],
        progress: Report,
    ) -> bytes:
        with CountedFile(archive, progress) as file:
            files: dict[str, tuple[str, IO[bytes] | bytes]] = {
                "spec": ("spec.json", spec.model_dump_json(exclude_unset=True).encode()),
                "images": (archive.name, file),
            }
            if manifest is not None:
                files["manifest"] = ("manifest", manifest)
            request = self._gateway.http.build_request("POST", "/jobs", params=parameters, files=files, headers=headers)
            return self._gateway.send(request).content

    def job(self, job: str) -> JobDetail:
        """A job with its progress. Raises Unreachable if the gateway does not answer within 20 seconds."""
        request = self._gateway.http.build_request("GET", f"/jobs/{job}", timeout=STATUS_TIMEOUT)
        return JobDetail.model_validate_json(self._gateway.send(request).content)

    def jobs(self, limit: int = 20) -> JobsPage:
        """The newest jobs."""
        return self._gateway.get(JobsPage, "/jobs", {"limit": str(limit)})

    def results(self, job: str, filters: Mapping[str, str], limit: int = 50, cursor: str | None = None) -> ResultsPage:
        """The metrics and one page of counterfactuals."""
        page = {"limit": str(limit), **filters, **({"cursor": cursor} if cursor else {})}
        return self._gateway.get(ResultsPage, f"/jobs/{job}/results", page)

    def counterfactuals(self, job: str, filters: Mapping[str, str]) -> Iterator[CounterfactualView]:
        """All counterfactuals that match the filters, page by page."""
        get_page = partial(self._gateway.get, ResultsPage, f"/jobs/{job}/results")
        for page in pages(get_page, {"metrics": "false", **filters}):
            yield from page.counterfactuals

    def compare(self, job: str, choice: ComparisonChoice, limit: int = 20, cursor: str | None = None) -> JobComparison:
        """The effects of two models, methods or jobs on the same source images, and one page of disagreements."""
        fields = choice.model_dump(by_alias=True, exclude_none=True)
        page = {"limit": str(limit), **fields, **({"cursor": cursor} if cursor else {})}
        return self._gateway.get(JobComparison, f"/jobs/{job}/comparison", page)

    def report(self, job: str, report_format: ReportFormat = "html") -> bytes:
        """The report: one HTML page, `md` (Markdown without pictures), or `json` (a `JobReport`, the page's data)."""
        return self._gateway.fetch(f"/jobs/{job}/report", {"format": report_format})

    def review(self, job: str, counterfactual: str, request: ReviewRequest) -> ReviewView:
        """Review a counterfactual. Replaces your earlier review of it."""
        return self._gateway.put(ReviewView, f"/jobs/{job}/reviews/{counterfactual}", request)

    def reviews(self, job: str) -> Iterator[ReviewView]:
        """All reviews of a job, newest first, page by page."""
        for page in pages(partial(self._gateway.get, ReviewsPage, f"/jobs/{job}/reviews")):
            yield from page.reviews

    def own_images(self, job: str) -> OwnImagesView:
        """The source images to mark by eye for the findings of a job, and all marks."""
        return self._gateway.get(OwnImagesView, f"/jobs/{job}/own-images")

    def mark(self, job: str, image: str, request: MarkRequest) -> MarkView:
        """Say whether a source image (by digest) shows the value of a finding. Replaces your earlier mark."""
        return self._gateway.put(MarkView, f"/jobs/{job}/own-images/{image}", request)

    def findings(self, job: str) -> FindingsListing:
        """The findings of a job's report, each with its id, status and note."""
        return self._gateway.get(FindingsListing, f"/jobs/{job}/findings")

    def note_finding(self, job: str, finding: str, request: FindingNoteRequest) -> FindingView:
        """Set the status and the note of a finding. Replaces earlier ones."""
        return self._gateway.put(FindingView, f"/jobs/{job}/findings/{finding}", request)

    def calibration(self, job: str) -> JobCalibration:
        """The errors of a job's checks, from the reviews of its calibration sample."""
        return self._gateway.get(JobCalibration, f"/jobs/{job}/calibration")

    def dose(self, job: str, request: DoseRequest) -> JobDetail:
        """Start the job that renders a finished job's weaknesses at other doses, and undone."""
        return self._gateway.post(JobDetail, f"/jobs/{job}/doses", request)

    def report_anew(self, job: str) -> JobDetail:
        """Rebuild the report of a finished job with its current reviews."""
        return self._gateway.post(JobDetail, f"/jobs/{job}/report")

    def confirm(self, job: str, request: ConfirmationRequest) -> ConfirmationJob:
        """Start the job that tests a job's findings again with an unrelated editor, or return the existing one.

        `not_tested` has the findings that it does not test, with the reasons. Waits while the services start.
        """
        return repeat_until_ready(lambda: self._gateway.post(ConfirmationJob, f"/jobs/{job}/confirmation", request))

    def export(self, job: str, query: Sequence[tuple[str, str]], out: IO[bytes]) -> None:
        """Stream the job's export into a file. After a problem the file is incomplete."""
        with self._gateway.stream(f"/jobs/{job}/export", query) as reply:
            for chunk in reply.iter_bytes():
                out.write(chunk)

    def publish_suite(self, suite: str, release: Release, out: IO[bytes]) -> None:
        """Stream a suite as a data set in the Hub's layout (tar). After a problem the file is incomplete."""
        query = [(name, str(value)) for name, value in release.model_dump().items() if value]
        with self._gateway.stream(f"/suites/{suite}/export", query) as reply:
            for chunk in reply.iter_bytes():
                out.write(chunk)

    def create_study(self, job: str, request: StudyRequest) -> StudyView:
        """Sample counterfactuals of a finished job for people to rate."""
        return self._gateway.post(StudyView, f"/jobs/{job}/studies", request)

    def studies(self, job: str) -> StudiesListing:
        """The studies of a job, newest first."""
        return self._gateway.get(StudiesListing, f"/jobs/{job}/studies")

    def study(self, study: str) -> StudyView:
        """A study with its progress."""
        return self._gateway.get(StudyView, f"/studies/{study}")

    def delete_study(self, study: str) -> None:
        """Delete a study with its links, its answers, and the reviews that its consensus gave."""
        self._gateway.delete(f"/studies/{study}")

    def invite_raters(self, study: str, raters: int = 1) -> InvitationsReply:
        """Invite people to a study. Their links are shown once."""
        return self._gateway.post(InvitationsReply, f"/studies/{study}/invitations", InvitationsRequest(raters=raters))

    def study_results(self, study: str) -> StudyResults:
        """Raters, agreement, and the answers by question and method."""
        return self._gateway.get(StudyResults, f"/studies/{study}/results")

    def study_items(self, study: str) -> bytes:
        """The items as CSV, for a crowd platform."""
        return self._gateway.fetch(f"/studies/{study}/items.csv")

    def study_image(self, study: str, item: str, side: Side) -> bytes:
        """An image of an item as PNG, without provenance."""
        return self._gateway.fetch(f"/studies/{study}/items/{item}/{side}")

    def study_answers(self, study: str) -> bytes:
        """All ratings of a study as CSV."""
        return self._gateway.fetch(f"/studies/{study}/answers.csv")

    def upload_study_answers(self, study: str, csv: bytes) -> AnswersStored:
        """Store ratings from CSV: `rater`, `item`, and a column for each question."""
        request = self._gateway.http.build_request(
            "PUT", f"/studies/{study}/answers.csv", content=csv, headers={"Content-Type": "text/csv"}
        )
        return AnswersStored.model_validate_json(self._gateway.send(request).content)

    def rating_page_of(self, link: str) -> str:
        """The URL of an invitation's link."""
        return str(self._gateway.http.base_url.join(link.removeprefix("/")))

    def create_suite(self, request: SuiteRequest) -> SuiteDetail:
        """Freeze counterfactuals of a job."""
        return self._gateway.post(SuiteDetail, "/suites", request)

    def suites(self) -> Iterator[SuiteView]:
        """All suites, page by page."""
        for page in pages(partial(self._gateway.get, SuitesPage, "/suites")):
            yield from page.suites

    def suite(self, suite: str) -> SuiteDetail:
        """A suite with its runs."""
        return self._gateway.get(SuiteDetail, f"/suites/{suite}")

    def suite_counterfactuals(self, suite: str) -> Iterator[CounterfactualView]:
        """All counterfactuals of a suite, page by page, without predictions."""
        for page in pages(partial(self._gateway.get, SuiteCounterfactuals, f"/suites/{suite}/counterfactuals")):
            yield from page.counterfactuals

    def delete_suite(self, suite: str) -> None:
        """Delete a suite with its runs."""
        self._gateway.delete(f"/suites/{suite}")

    def start_run(self, suite: str, model: str) -> RunView:
        """Run a model under test on a suite, or return its earlier run. Waits while the models start."""
        return repeat_until_ready(lambda: self._gateway.post(RunView, f"/suites/{suite}/runs", RunRequest(model=model)))

    def run(self, suite: str, run: str) -> RunView:
        """A run with its progress."""
        return self._gateway.get(RunView, f"/suites/{suite}/runs/{run}")

    def run_results(self, suite: str, run: str, baseline: str | None, max_drop: float) -> RunResults:
        """The results of a finished run, compared with a baseline run or with its own null arms."""
        parameters = {"max_drop": str(max_drop), **({"baseline": baseline} if baseline else {})}
        return self._gateway.get(RunResults, f"/suites/{suite}/runs/{run}/results", parameters)

    def begin_repair(self, job: str, request: RepairRequest) -> RepairView:
        """Train a model under test on a job's counterfactuals. Waits while the models start."""
        return repeat_until_ready(lambda: self._gateway.post(RepairView, f"/jobs/{job}/repairs", request))

    def repair(self, repair: str) -> RepairView:
        """A repair with its progress and, once finished, its result."""
        return self._gateway.get(RepairView, f"/repairs/{repair}")

    def repairs(self, limit: int = 50) -> RepairsPage:
        """The newest repairs."""
        return self._gateway.get(RepairsPage, "/repairs", {"limit": str(limit)})

    def cancel_repair(self, repair: str) -> RepairView:
        """Stop a repair."""
        return self._gateway.post(RepairView, f"/repairs/{repair}/cancel")

    def delete_repair(self, repair: str) -> None:
        """Delete a repair with its models."""
        self._gateway.delete(f"/repairs/{repair}")

    def repaired_model(self, repair: str, arm: TrainedArm = "repaired") -> bytes:
        """The model of an arm, as a tar that `add_model` takes."""
        return self._gateway.fetch(f"/repairs/{repair}/model", {"arm": arm})

    def image(self, digest: str) -> bytes:
        """An image as PNG."""
        return self._gateway.fetch(f"/images/{digest}")

    def cancel(self, job: str) -> JobDetail:
        """Stop a job."""
        return self._gateway.post(JobDetail, f"/jobs/{job}/cancel")

    def retry(self, job: str) -> JobDetail:
        """Retry a job's failed and cancelled images."""
        return self._gateway.post(JobDetail, f"/jobs/{job}/retry")

    def delete(self, job: str) -> None:
        """Delete a job with its results."""
        self._gateway.delete(f"/jobs/{job}")

    def methods(self) -> MethodsReply:
        """The methods with their parameters."""
        return self._gateway.get(MethodsReply, "/methods")

    def profiles(self) -> ProfilesReply:
        """The profiles, and which one the gateway runs."""
        return self._gateway.get(ProfilesReply, "/profiles")

    def models(self) -> ModelsListing:
        """The models under test."""
        return self._gateway.get(ModelsListing, "/models")

    def add_model(self, spec: ModelSpec, paths: Sequence[Path], progress: Report = _ignore) -> ModelView:
        """Upload a model under test: an archive, an .onnx file, or the files of a model in Hub layout.

        Calls `progress` with the number of bytes sent, summed over the files.
        """
        positions = dict.fromkeys(paths, 0)

        def report(path: Path, position: int) -> None:
            positions[path] = position
            progress(sum(positions.values()))

        with ExitStack() as stack:
            parts: list[tuple[str, tuple[str, IO[bytes] | bytes]]] = [
                ("spec", ("spec.json", spec.model_dump_json(exclude_unset=True).encode()))
            ]
            for path in paths:
                file = stack.enter_context(CountedFile(path, partial(report, path)))
                parts.append(("model", (path.name, file)))
            request = self._gateway.http.build_request("POST", "/models", files=parts)
            return ModelView.model_validate_json(self._gateway.send(request).content)

    def remove_model(self, model: str) -> None:
        """Delete an uploaded model, by its id."""
        self._gateway.delete(f"/models/{model}")

    def add_models_to_job(self, job: str, names: Sequence[str]) -> JobDetail:
        """Test more models on the images of a finished job. Waits while the models start."""
        return repeat_until_ready(
            lambda: self._gateway.post(JobDetail, f"/jobs/{job}/models", AddedModels(models=list(names)))
        )

    def models_when_ready(self, on_wait: Callable[[NotReady], None] = lambda _: None) -> ModelsListing:
        """The models under test. Waits while their service starts and calls `on_wait` before each retry.

        Raises NotReady if the service fails or is not ready after 10 minutes.
        """
        return repeat_until_ready(self.models, on_wait)

    def follow(self, job: str) -> Iterator[JobDetail]:
        """Yield the job repeatedly until it ends.

        While the gateway is unreachable, yields the last known state, up to a limit of retries.
        """
        pause, attempts = LEAST_PAUSE_SECONDS, 0
        detail: JobDetail | None = None
        while True:
            try:
                detail = self.job(job)
            except (Unreachable, NotReady):
                attempts += 1
                if attempts > MAX_RETRIES:
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
            pause, attempts = min(MOST_PAUSE_SECONDS, 1.02 * pause), 0

    def page_of(self, job: str) -> str:
        """The URL of a job's page."""
        return str(self._gateway.http.base_url.join(f"jobs/{job}/view"))

    def gallery_of(self, job: str) -> str:
        """The URL of the page with a job's accepted counterfactuals."""
        return str(self._gateway.http.base_url.join(f"jobs/{job}/gallery?verdict=accepted"))

    def calibration_page_of(self, job: str) -> str:
        """The URL of the page that shows a job's calibration sample."""
        return str(self._gateway.http.base_url.join(f"jobs/{job}/review?sample=calibration"))

    def comparison_page_of(self, job: str, choice: ComparisonChoice) -> str:
        """The URL of the page that shows a comparison."""
        address = self._gateway.http.base_url.join(f"jobs/{job}/compare")
        return str(address.copy_merge_params(choice.model_dump(by_alias=True, exclude_none=True)))

    def events(self, job: str) -> Iterator[EventView]:
        """Yield the job's events until it ends. Resumes a broken connection after the last event."""
        last_event, attempts = 0, 0
        while True:
            try:
                with self._gateway.stream(f"/jobs/{job}/events", headers={"Last-Event-ID": str(last_event)}) as reply:
                    if reply.status_code == 204:
                        return
                    for line in reply.iter_lines():
                        if line.startswith("data:"):
                            event = EventView.model_validate_json(line.removeprefix("data:"))
                            last_event, attempts = event.sequence, 0
                            yield event
            except Unreachable:
                attempts += 1
                if attempts > MAX_RETRIES:
                    raise
                time.sleep(RETRY_SECONDS)


def _idempotency(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": key} if key else {}
