"""The pages of studies: the owner's, which works without scripts, and `/rate/TOKEN`, a rater's.

The token in the path is all that a rater needs, and all that it opens. Their page shows nothing that gives an answer
away: no verdict, prediction, method, file name or arm, and ids that mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile

from gateway.api.dependencies import Gateway, JobId, Owner
from gateway.api.forms import part_of, read_form, refuse_other_types, validate
from gateway.api.studies import item_image
from gateway.auth.middleware import RATE_PATH, STUDY_ANSWERS_BYTES
from gateway.context import Context
from gateway.database.sessions import reading
from gateway.database.tables import Job
from gateway.feedback import raters, ratings, studies
from gateway.jobs import jobs
from gateway.web.rendering import render
from shared.problems import InvalidInput, Malformed, NotFound, Problem
from shared.schemas.results import FAILURE_MODES
from shared.schemas.studies import ATTENTION, CHOICES, QUESTIONS, InvitationsRequest, Side, StudyRequest, StudyView

OWN_QUESTIONS = "own"
FIELDS = (
    "title", "questions", "own_questions", "methods", "sample", "model", "element", "per_method", "per_factor",
    "raters_per_item", "items_per_rater", "consensus", "controls", "attention", "least_control_score",
)  # fmt: skip
MAX_FIELDS = 40
_MODES: dict[str, str] = {mode: words[0].upper() + words[1:] for mode, words in FAILURE_MODES.items()}
WORDS = {"yes": "Yes", "no": "No", "unsure": "Cannot tell", "none": "Nothing", **_MODES}
KEYS = {"yes": "y", "no": "n", "unsure": "u", "none": "0", **dict(zip(_MODES, "lmpcg", strict=True))}
# The address must not reach other sites; with `no-referrer` browsers would send the form without its origin.
REFERRER = {"Referrer-Policy": "same-origin", "X-Robots-Tag": "noindex"}

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
StudyId = Annotated[str, Path(max_length=64)]
Token = Annotated[str, Path(max_length=100)]
Item = Annotated[str, Path(max_length=64)]


@dataclass(frozen=True, slots=True)
class FormReply:
    """What the page says after a form: a problem with its `wrong` field, the `filled` form, links, notice."""

    problem: Problem | None = None
    wrong: str = ""
    filled: Mapping[str, str] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    notice: str = ""


@router.get("/jobs/{job}/studies/view")
def show_studies(
    job: JobId, gateway: Gateway, owner: Owner, study: Annotated[str | None, Query(max_length=64)] = None
) -> HTMLResponse:
    """The studies of a job, one of them in full (by default the newest), and a form for a new one."""
    return _page(gateway, owner, job, study, FormReply())


@router.post("/jobs/{job}/studies/view")
async def create_study(job: JobId, request: Request, gateway: Gateway, owner: Owner) -> Response:
    """Sample the study of the form, and show it. A refusal is shown on the form, with its input kept."""
    refuse_other_types(request, "application/x-www-form-urlencoded")
    async with request.form(max_fields=MAX_FIELDS) as form:
        filled = {name: str(form.get(name, "")).strip() for name in FIELDS}
        methods = [str(name) for name in form.getlist("methods")]
    try:
        study = await run_in_threadpool(_create, gateway, owner, job, filled, methods)
    except Problem as problem:
        wrong = next((name for name in FIELDS if name in problem.detail), "")
        reply = FormReply(problem, wrong, {**filled, "methods": "\n".join(methods)})
        return await run_in_threadpool(_page, gateway, owner, job, None, reply)
    return RedirectResponse(f"/jobs/{job}/studies/view?study={study}#study", 303)


@router.post("/jobs/{job}/studies/{study}/invitations")
async def invite(job: JobId, study: StudyId, request: Request, gateway: Gateway, owner: Owner) -> Response:
    """Invite the form's number of people, and show their links."""
    refuse_other_types(request, "application/x-www-form-urlencoded")
    async with request.form(max_fields=1) as form:
        count = str(form.get("raters", ""))
    return await run_in_threadpool(_invite, gateway, owner, job, study, count, str(request.base_url).rstrip("/"))


@router.post("/jobs/{job}/studies/{study}/answers")
async def upload_answers(job: JobId, study: StudyId, request: Request, gateway: Gateway, owner: Owner) -> Response:
    """Store the ratings of the form's CSV file, and say how many they are."""
    async with read_form(request, ("answers",), 1, STUDY_ANSWERS_BYTES) as form:
        data = await _file_of(form)
    return await run_in_threadpool(_upload, gateway, owner, job, study, data)


@router.post("/jobs/{job}/studies/{study}/delete")
def delete_study(job: JobId, study: StudyId, gateway: Gateway, owner: Owner) -> Response:
    """Delete a study, and show the others."""
    with gateway.sessions.begin() as session:
        studies.remove(session, owner, study)
    return RedirectResponse(f"/jobs/{job}/studies/view", 303)


async def _file_of(form: FormData) -> bytes:
    chosen = [part for part in form.getlist("answers") if isinstance(part, UploadFile) and part.filename]
    return await part_of(form, "answers", STUDY_ANSWERS_BYTES) or b"" if chosen else b""


def _create(context: Context, owner: str, job: str, filled: Mapping[str, str], methods: list[str]) -> str:
    with context.sessions.begin() as session:
        return studies.create(session, owner, job, _request(filled, methods))


def _request(filled: Mapping[str, str], methods: list[str]) -> StudyRequest:
    """The study that the form describes; empty fields have their defaults. Raises InvalidInput and Malformed."""
    given = {name: value for name, value in filled.items() if value and name not in ("own_questions", "methods")}
    fields: dict[str, object] = {**given, **({"methods": methods} if methods else {})}
    if filled["questions"] == OWN_QUESTIONS:
        try:
            fields["questions"] = from_json(filled["own_questions"])
        except ValueError as error:
            raise Malformed(f"own_questions is not JSON: {error}") from error
    return validate(StudyRequest, fields, "the form")


def _invite(context: Context, owner: str, job: str, study: str, count: str, site: str) -> HTMLResponse:
    try:
        request = validate(InvitationsRequest, {"raters": count}, "the form")
        with context.sessions.begin() as session:
            reply = raters.invite(session, owner, study, request.raters)
    except InvalidInput as problem:
        return _page(context, owner, job, study, FormReply(problem, "raters", {"raters": count}))
    return _page(context, owner, job, study, FormReply(links=tuple(f"{site}{each.link}" for each in reply.invitations)))


def _upload(context: Context, owner: str, job: str, study: str, data: bytes) -> HTMLResponse:
    try:
        if not data:
            raise InvalidInput("no file of answers is chosen, or it is empty")
        with context.sessions.begin() as session:
            stored = raters.upload_answers(session, owner, study, data)
    except (InvalidInput, Malformed) as problem:
        return _page(context, owner, job, study, FormReply(problem, "answers"))
    return _page(context, owner, job, study, FormReply(notice=stored.sentence))


def _page(context: Context, owner: str, job: str, study: str | None, reply: FormReply) -> HTMLResponse:
    """Raises NotFound for a study that the job does not have."""
    with reading(context.sessions) as session:
        row = jobs.find(session, owner, job)
        listed = studies.listing(session, owner, job).studies
        shown = _chosen(listed, study)
        figures = (
            None
            if shown is None or not shown.answered
            else ratings.study_results(session, studies.find(session, owner, shown.id))
        )
    return render(
        "studies.html",
        200 if reply.problem is None else reply.problem.status,
        job_id=job,
        job=row,
        listed=listed,
        shown=shown,
        state_of=_state,
        figures=figures,
        excluded=0 if figures is None else sum(rater.excluded for rater in figures.raters),
        reply=reply,
        papers=list(QUESTIONS),
        own_questions=OWN_QUESTIONS,
        defaults=StudyRequest(),
        path=f"/jobs/{job}/studies",
    )


def _chosen(listed: list[StudyView], study: str | None) -> StudyView | None:
    if study is None:
        return listed[0] if listed else None
    chosen = next((view for view in listed if view.id == study), None)
    if chosen is None:
        raise NotFound(f"the job has no study {study!r}")
    return chosen


def _state(view: StudyView) -> str:
    """Where a study is, in a word or two."""
    if view.complete == view.items:
        return "complete"
    return "under way" if view.answered else "invited" if view.invited else "new"


@router.get(RATE_PATH + "{token}")
def show_rating(token: Token, gateway: Gateway, item: Annotated[str | None, Query(max_length=64)] = None) -> Response:
    """The rater's next pair, or the named one; at the end, thanks."""
    try:
        return _rating_page(gateway, token, item)
    except NotFound as problem:
        return _refusal(problem)


@router.post(RATE_PATH + "{token}/{item}")
async def accept_rating(token: Token, item: Item, request: Request, gateway: Gateway) -> Response:
    """Store the rater's answers and show the next pair."""
    refuse_other_types(request, "application/x-www-form-urlencoded")
    async with request.form(max_fields=20) as form:
        chosen = {name: value for name, value in form.items() if isinstance(value, str)}
    return await run_in_threadpool(_record, gateway, token, item, chosen)


@router.get(RATE_PATH + "{token}/{item}/{side}.png")
def show_rated_image(token: Token, item: Item, side: Side, gateway: Gateway) -> Response:
    """An image of one of the rater's items."""
    with gateway.sessions.begin() as session:
        invited = raters.admit(session, token, gateway.settings.key_requests_per_minute)
        view = raters.own_item(session, invited, item)
    return item_image(gateway, view, side)


def _record(context: Context, token: str, item: str, chosen: Mapping[str, str]) -> Response:
    try:
        with context.sessions.begin() as session:
            invited = raters.admit(session, token, context.settings.key_requests_per_minute)
            raters.record(session, invited, item, chosen)
    except NotFound as problem:
        return _refusal(problem)
    except InvalidInput as problem:
        return _rating_page(context, token, item, problem.detail, chosen)
    return RedirectResponse(f"{RATE_PATH}{token}", 303, headers=REFERRER)


def _rating_page(
    context: Context, token: str, item: str | None, problem: str = "", chosen: Mapping[str, str] | None = None
) -> Response:
    with context.sessions.begin() as session:
        invited = raters.admit(session, token, context.settings.key_requests_per_minute)
        turn, view = raters.turn(session, invited, item)
        request = invited.study.request
        title = request.title or session.get_one(Job, invited.study.job_id).task_description
    page = render(
        "rate.html",
        422 if problem else 200,
        base=f"{RATE_PATH}{token}",
        title=title,
        questions=request.question_list,
        turn=turn,
        view=view,
        chosen=chosen if chosen is not None else view.answers if view else {},
        problem=problem,
        choices=CHOICES,
        words=WORDS,
        keys=KEYS,
        attention={ATTENTION[question.kind]: question.kind for question in request.question_list},
    )
    page.headers.update(REFERRER)
    return page


def _refusal(problem: Problem) -> Response:
    page = render("rate_refused.html", problem.status, problem=problem.detail)
    page.headers.update(REFERRER)
    return page
