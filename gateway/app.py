"""The gateway's app: routers and lifespan."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import cache, partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from prometheus_client import CollectorRegistry

from gateway.api import (
    catalogue,
    comparisons,
    events,
    export,
    findings,
    images,
    jobs,
    models,
    repairs,
    results,
    reviews,
    signed_downloads,
    studies,
    suites,
)
from gateway.api.dependencies import problems as problem_responses
from gateway.api.dependencies import refuse_unknown_parameters
from gateway.api.events import EventFeed
from gateway.api.examples import EXAMPLES
from gateway.auth.keys import ensure_local_owner
from gateway.auth.middleware import Access, no_database
from gateway.comparisons.comparisons import JobComparisons
from gateway.context import Context, open_context
from gateway.database.sessions import DATABASE_AWAY
from gateway.operations.gauges import Work
from gateway.operations.startup import refuse_unready, refuse_unsafe_start, stop_on_signals
from gateway.results.facets import JobFacets
from gateway.results.image_map import JobMaps
from gateway.settings import read_settings
from gateway.web import (
    compare,
    feedback,
    gallery,
    home,
    image_map,
    image_pages,
    login,
    own_models,
    refusals,
    running,
)
from gateway.web import plan as plan_page
from gateway.web import results as results_page
from gateway.web import routes as pages
from gateway.web import studies as studies_page
from shared import __version__
from shared.schemas.base import Contract, ProblemDocument
from shared.schemas.jobs import EventView, JobRequest, JobSpec
from shared.schemas.models import ModelSpec
from shared.service import logging as json_logging
from shared.service import problem_replies
from shared.service.asgi import AccessLog
from shared.service.probes import metrics_reply, operations_port
from shared.service.problem_replies import problem_reply

logger = logging.getLogger("contrafact.gateway")

DESCRIPTION = "Counterfactual test images that show where a vision model will fail outside its test set."
PROBLEMS = problem_responses(
    s400="cannot be read",
    s401="no valid API key",
    s403="not allowed from this address, or with this key",
    s422="the request is not valid",
    s429="this key's limit is reached; Retry-After says when to retry",
)


def create_app(context: Context | None = None) -> FastAPI:
    """The public API. Without a context, opens what the environment describes and refuses unsafe settings."""
    json_logging.configure()
    if context is None:
        context = open_context(read_settings())
        refuse_unsafe_start(context.settings, context.sessions)
    if context.broker_fault:
        logger.error("not ready: %s", context.broker_fault)
    registry = CollectorRegistry()
    registry.register(Work(context.sessions))
    app = _routed_app(lifespan=partial(_lifespan, context, registry))
    app.state.context = context
    app.state.facets, app.state.maps, app.state.comparisons = JobFacets(), JobMaps(), JobComparisons()
    app.state.event_feed = EventFeed(context.sessions, context.stopping)
    app.add_api_route("/metrics", partial(metrics_reply, registry), include_in_schema=False)
    problem_replies.install(app)
    for trouble in DATABASE_AWAY:
        app.add_exception_handler(trouble, _on_database_trouble)
    refusals.install(app)
    app.add_middleware(Access, context=context, as_page=refusals.as_page)
    app.add_middleware(AccessLog, service="gateway", registry=registry)
    return app


def openapi_document() -> dict[str, Any]:
    """The OpenAPI document that every gateway serves."""
    return _routed_app().openapi()


def _routed_app(**options: Any) -> FastAPI:
    app = FastAPI(
        title="Contrafact",
        description=DESCRIPTION,
        version=__version__,
        docs_url=None,  # FastAPI's page loads scripts from a CDN
        redoc_url=None,
        **options,
    )
    app.router.routes.extend(_routes().routes)
    _complete_openapi(app)
    return app


@asynccontextmanager
async def _lifespan(context: Context, registry: CollectorRegistry, _: FastAPI) -> AsyncIterator[None]:
    with context.sessions.begin() as session:
        ensure_local_owner(session)
    with ExitStack() as stack:
        stack.callback(context.services.close)
        stack.enter_context(stop_on_signals(context.stopping))
        if port := context.settings.metrics_port:
            ready = partial(refuse_unready, context)
            stack.enter_context(operations_port(port, lambda: None, ready, registry))
        yield


@cache
def _routes() -> APIRouter:
    """All routes but `/metrics`. FastAPI prepares them once for all apps of a process, at the first request."""
    router = APIRouter(responses=PROBLEMS)
    work = (jobs, results, comparisons, reviews, findings, studies, export, suites, repairs)
    apis = (*work, events, images, models, catalogue)
    images_shown = (gallery, image_map, image_pages, feedback, studies_page)
    viewed = (home, own_models, plan_page, pages, results_page, running, compare, *images_shown)
    routed = (*apis, *viewed)
    for module in routed:
        router.include_router(module.router, dependencies=[Depends(refuse_unknown_parameters)])
    router.include_router(login.router)
    router.include_router(signed_downloads.router)
    router.include_router(catalogue.health)
    return router


async def _on_database_trouble(request: Request, error: Exception) -> Response:
    logger.warning("the database does not answer: %s", error)
    return problem_reply(no_database(), request.url.path)


def _complete_openapi(app: FastAPI) -> None:
    """Add to the OpenAPI document the examples, and the schemas of bodies that FastAPI does not parse or write."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        schemas = document["components"]["schemas"]
        unseen: list[type[Contract]] = [JobSpec, JobRequest, EventView, ModelSpec, ProblemDocument]
        for model in unseen:
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
        for model, example in EXAMPLES.items():
            schemas[model.__name__].setdefault("examples", [example])
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
