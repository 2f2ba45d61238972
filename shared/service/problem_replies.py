"""Problems as HTTP replies: every error of an app answered as `application/problem+json`."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from shared.problems import MEDIA_TYPE, InvalidInput, Malformed, Problem, validation_sentence
from shared.service.logging import request_id

logger = logging.getLogger("contrafact.problems")


def problem_reply(problem: Problem, instance: str | None = None) -> Response:
    """The HTTP response that carries a problem."""
    headers = {} if problem.retry_after is None else {"Retry-After": str(max(1, round(problem.retry_after)))}
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(json.dumps(problem.body(instance)), problem.status, headers, MEDIA_TYPE)


def _allowed_methods(request: Request) -> list[str]:
    """All methods of a path; Starlette itself reports only those of the first matching route."""
    routes = request.app.routes
    return [
        method
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]


def install(app: FastAPI) -> None:
    """Answer problems, FastAPI's validation errors, unknown paths and unexpected errors with problem documents."""
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_anything)


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return problem_reply(error, request.url.path)


async def _on_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors: list[ErrorDetails] = list(error.errors())
    unreadable = any(item["type"] == "json_invalid" for item in errors)
    problem = (Malformed if unreadable else InvalidInput)(validation_sentence(errors))
    return problem_reply(problem, request.url.path)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_allowed_methods(request))
    document = {
        "type": "about:blank",
        "title": HTTPStatus(error.status_code).phrase,
        "status": error.status_code,
        "detail": f"{request.method} {request.url.path}: {error.detail}",
        "instance": request.url.path,
    }
    return Response(json.dumps(document), error.status_code, headers, MEDIA_TYPE)


async def _on_anything(request: Request, error: Exception) -> Response:
    logger.error("unexpected error on %s %s", request.method, request.url.path, exc_info=error)
    # The reply omits the error's message, which may quote private data.
    problem = Problem(
        f"an unexpected {type(error).__name__} occurred; the service's log has the traceback",
        members={"request_id": request_id()},
    )
    return problem_reply(problem, request.url.path)
