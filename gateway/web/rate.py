"""`/rate/TOKEN`: the page of a rater. The token in the path is all that it needs, and all that it opens.

It shows nothing that gives an answer away: no verdict, prediction, method, file name or arm, and ids that mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from gateway.api.dependencies import Gateway
from gateway.api.forms import refuse_other_types
from gateway.api.studies import item_image
from gateway.auth.middleware import RATE_PATH
from gateway.context import Context
from gateway.database.tables import Job
from gateway.studies import answers, raters
from gateway.web.rendering import render
from shared.problems import InvalidInput, NotFound, Problem
from shared.schemas.studies import ATTENTION, CHOICES, Side

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

Token = Annotated[str, Path(max_length=100)]
Item = Annotated[str, Path(max_length=64)]
WORDS = {"yes": "Yes", "no": "No", "unsure": "Cannot tell"}
KEYS = {"yes": "y", "no": "n", "unsure": "u"}
# The address must not reach other sites; with `no-referrer` browsers would send the form without its origin.
REFERRER = {"Referrer-Policy": "same-origin", "X-Robots-Tag": "noindex"}


@router.get(RATE_PATH + "{token}")
def show_rating(token: Token, gateway: Gateway, item: Annotated[str | None, Query(max_length=64)] = None) -> Response:
    """The rater's next pair, or the named one; at the end, thanks."""
    try:
        return _page(gateway, token, item)
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
        view = answers.own_item(session, invited, item)
    return item_image(gateway, view, side)


def _record(context: Context, token: str, item: str, chosen: Mapping[str, str]) -> Response:
    try:
        with context.sessions.begin() as session:
            invited = raters.admit(session, token, context.settings.key_requests_per_minute)
            answers.record(session, invited, item, chosen)
    except NotFound as problem:
        return _refusal(problem)
    except InvalidInput as problem:
        return _page(context, token, item, problem.detail, chosen)
    return RedirectResponse(f"{RATE_PATH}{token}", 303, headers=REFERRER)


def _page(
    context: Context, token: str, item: str | None, problem: str = "", chosen: Mapping[str, str] | None = None
) -> Response:
    with context.sessions.begin() as session:
        invited = raters.admit(session, token, context.settings.key_requests_per_minute)
        turn = answers.turn(session, invited, item)
        request = invited.study.request
        title = request.title or session.get_one(Job, invited.study.job_id).task_description
    page = render(
        "rate.html",
        422 if problem else 200,
        base=f"{RATE_PATH}{token}",
        title=title,
        questions=request.question_list,
        turn=turn,
        chosen=chosen if chosen is not None else turn.item.answers if turn.item else {},
        problem=problem,
        choices=CHOICES,
        words=WORDS,
        keys=KEYS,
        attention={question.kind: ATTENTION[question.kind] for question in request.question_list},
    )
    page.headers.update(REFERRER)
    return page


def _refusal(problem: Problem) -> Response:
    page = render("rate_refused.html", problem.status, problem=problem.detail)
    page.headers.update(REFERRER)
    return page
