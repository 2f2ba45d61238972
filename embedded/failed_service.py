"""Replaces a model service that cannot be created, for example because a library is missing."""

from __future__ import annotations

from fastapi import FastAPI

from shared import problem_replies
from shared.problems import NotReady


def failed_service(name: str, error: Exception) -> FastAPI:
    """An app that answers every request with NotReady, as a service does whose weights failed to load."""
    reason = f"{name} cannot start: {type(error).__name__}: {error}"
    app = FastAPI(title=name)

    async def refuse(path: str) -> None:
        raise NotReady(reason, members={"failed": True})

    app.add_api_route("/{path:path}", refuse, methods=["GET", "POST"])
    problem_replies.install(app)
    return app
