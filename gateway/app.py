"""The gateway's app: routers and lifespan."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI

from gateway.access import Access
from gateway.api import catalogue, events, images, jobs, results
from gateway.api.examples import EXAMPLES
from gateway.api.requests import problems as problem_responses
from gateway.api.requests import refuse_unknown_parameters
from gateway.keys import ensure_local_owner
from gateway.parts import Parts, open_parts
from gateway.settings import Settings
from gateway.web import routes as pages
from shared import __version__, problems
from shared import logging as json_logging
from shared.asgi import AccessLog
from shared.schemas.base import Contract
from shared.schemas.jobs import EventView, JobRequest, JobSpec

DESCRIPTION = "Counterfactual test images that show where a vision model will fail outside its test set."


def create_app(parts: Parts | None = None) -> FastAPI:
    """The public API over the parts (default: those that the environment describes)."""
    json_logging.configure()
    parts = parts or open_parts(Settings())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with parts.sessions.begin() as session:
            ensure_local_owner(session)
        yield
        parts.services.close()

    app = FastAPI(
        title="Contrafact",
        description=DESCRIPTION,
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        responses=problem_responses(s401="no valid API key", s403="not from here", s422="not what the contract allows"),
    )
    app.state.parts = parts
    for module in (jobs, results, events, images, catalogue):
        app.include_router(module.router, dependencies=[Depends(refuse_unknown_parameters)])
    app.include_router(pages.router, dependencies=[Depends(refuse_unknown_parameters)])
    app.include_router(catalogue.health)
    problems.install(app)
    app.add_middleware(Access, parts=parts)
    app.add_middleware(AccessLog, service="gateway")
    _complete_openapi(app)
    return app


def _complete_openapi(app: FastAPI) -> None:
    """Add to the OpenAPI document the schemas of what FastAPI does not parse or write itself, and the examples."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        schemas = document["components"]["schemas"]
        unseen: list[type[Contract]] = [JobSpec, JobRequest, EventView]
        for model in unseen:
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
        for model, example in EXAMPLES.items():
            schemas[model.__name__].setdefault("examples", [example])
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
