"""The real gateway on a loopback port: SQLite, a directory as store, and an evaluator that lists two models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from fastapi import FastAPI

from embedded.serving import ListeningPort
from gateway.app import create_app
from gateway.auth.keys import create_key
from gateway.context import Context
from gateway.database.sessions import open_engine, open_sessions
from gateway.model_services.clients import ModelServices
from gateway.settings import Settings
from shared.media.images import encode
from shared.media.storage import DirectoryStore
from shared.profiles.profile import load_profile
from shared.schemas.service import SERVICES
from tests.support.small_services import SmallServices, serve
from tests.support.snapshots import migrated_bytes


@dataclass(frozen=True)
class Gateway:
    """A client of a served gateway, its context, its app, and how often it woke the workers."""

    client: httpx.Client
    context: Context
    app: FastAPI
    wakes: list[None]
    directory: Path


@contextmanager
def serve_gateway(directory: Path, database_url: str | None = None, **settings: object) -> Iterator[Gateway]:
    """A gateway with everything under `directory` (or in a migrated database elsewhere); no worker runs."""
    if database_url is None:
        database = directory / "contrafact.db"
        database.write_bytes(migrated_bytes())
        database_url = f"sqlite:///{database}"
    engine = open_engine(database_url)
    wakes: list[None] = []
    with serve(SmallServices()) as url:
        context = Context(
            settings=Settings.model_validate(settings),
            profile=load_profile("tiny"),
            sessions=open_sessions(engine),
            store=DirectoryStore(directory / "objects"),
            services=ModelServices(dict.fromkeys(SERVICES, url), deadline=60, wait=1),
            wake=lambda: wakes.append(None),
        )
        app = create_app(context)
        port = ListeningPort()
        try:
            port.serve(app)
            # It speaks plain HTTP, and reading the certificates of all authorities takes longer than most requests.
            with httpx.Client(base_url=port.base_url, timeout=120, verify=False) as client:
                yield Gateway(client, context, app, wakes, directory)
        finally:
            port.close()
            engine.dispose()


def key_of(gateway: Gateway, owner: str) -> dict[str, str]:
    """The headers of a new key."""
    with gateway.context.sessions.begin() as session:
        return {"Authorization": f"Bearer {create_key(session, owner)}"}


def picture(shade: int = 0, size: int = 16) -> bytes:
    """PNG bytes of one grey."""
    return encode(np.full((size, size, 3), shade, dtype=np.uint8))
