"""Dependencies of routes: the gateway's context, the owner, and a check for unknown query parameters."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel

from gateway.context import Context
from shared.problems import InvalidInput
from shared.schemas.base import ProblemDocument

# Not `"model": ProblemDocument`: FastAPI would build a validator for each status of each route, 0.4 s of the start.
PROBLEM: dict[str, object] = {
    "content": {
        "application/problem+json": {},
        "application/json": {"schema": {"$ref": f"#/components/schemas/{ProblemDocument.__name__}"}},
    }
}


def problems(**statuses: str) -> dict[int | str, dict[str, object]]:
    """OpenAPI's `responses` for problem documents: `problems(s404="no such job")`."""
    return {int(status[1:]): {**PROBLEM, "description": text} for status, text in statuses.items()}


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


def _owner(request: Request) -> str:
    owner: str = request.state.owner
    return owner


def _reviewer(request: Request) -> str:
    reviewer: str = request.state.reviewer
    return reviewer


def refuse_unknown_parameters(request: Request) -> None:
    """Refuse query parameters that the route does not have, so that a misspelt filter is not ignored."""
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    allowed: list[str] = []
    for parameter in route.dependant.query_params:
        annotation = parameter.field_info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            allowed += [field.alias or name for name, field in annotation.model_fields.items()]
        else:
            allowed.append(parameter.alias)
    if unknown := sorted(set(request.query_params) - set(allowed)):
        advice = f"allowed are {', '.join(allowed)}" if allowed else "this request takes none"
        raise InvalidInput(f"unknown parameter {', '.join(unknown)[:100]}; {advice}")


Gateway = Annotated[Context, Depends(_context)]
Owner = Annotated[str, Depends(_owner)]
Reviewer = Annotated[str, Depends(_reviewer)]
JobId = Annotated[str, Path(max_length=64, description="the id that POST /jobs returned")]
Cursor = Annotated[str | None, Query(max_length=500, description="`next` of the previous page")]
Limit = Annotated[int, Query(ge=1, le=200, description="rows of a page")]
