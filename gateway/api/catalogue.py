"""`/methods`, `/profiles`: what a job may choose from; and the gateway's own health."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.dependencies import Gateway, problems
from gateway.jobs import choices
from gateway.operations.startup import refuse_unready
from shared.schemas.jobs import MethodsReply
from shared.schemas.profiles import ProfilesReply
from shared.service.endpoints import HEALTHZ, READYZ

router = APIRouter(tags=["catalogue"])
health = APIRouter(tags=["health"])


@router.get("/methods")
def list_methods(gateway: Gateway) -> MethodsReply:
    """The methods, each with the JSON schema of its parameters and this installation's defaults."""
    return choices.methods_listing(gateway.profile)


@router.get("/profiles")
def list_profiles(gateway: Gateway) -> ProfilesReply:
    """The profiles, and which one this installation runs."""
    return choices.profiles_listing(gateway.settings.profile)


@health.get(HEALTHZ)
def healthz() -> dict[str, str]:
    """The process is alive."""
    return {"status": "alive"}


@health.get(
    READYZ,
    responses=problems(s503="the database does not answer, no broker is usable, or the gateway is stopping"),
)
def readyz(gateway: Gateway) -> dict[str, str]:
    """The database answers, the broker's client is installed, and the gateway is not stopping."""
    refuse_unready(gateway)
    return {"status": "ready"}
