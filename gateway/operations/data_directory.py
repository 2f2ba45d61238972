"""The data directory of an embedded system, for itself and for commands that work beside it.

It has the database, the objects, the lock of the running system, that system's profile, and the addresses of its model
services.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from pydantic import BaseModel
from sqlalchemy.engine import make_url

from gateway.settings import Settings, read_settings
from shared.schemas.service import SERVICES, ServiceName

LOCK = "lock"
_DATABASE = "contrafact.db"
_SERVICES = "services.json"


class Stored(TypedDict):
    """The settings that name a directory's database and objects."""

    database_url: str
    object_store: str


class Running(BaseModel):
    """The profile of the system that runs in a directory, and the URL of each of its model services."""

    profile: str
    services: dict[ServiceName, str]


def stored_in(directory: Path) -> Stored:
    """The settings of what an embedded system keeps in its directory."""
    return Stored(database_url=f"sqlite:///{directory / _DATABASE}", object_store=f"directory:{directory / 'objects'}")


def directory_of(settings: Settings) -> Path | None:
    """The directory with both database and objects of these settings; None if they are elsewhere."""
    url = make_url(settings.database_url)
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    directory = Path(url.database).absolute().parent
    kind, _, objects = settings.object_store.partition(":")
    fits = kind == "directory" and Path(objects).absolute() == directory / "objects"
    return directory if fits and Path(url.database).name == _DATABASE else None


@contextmanager
def listed_services(directory: Path, profile: str, urls: Mapping[ServiceName, str]) -> Iterator[None]:
    """While the block runs, the directory says which profile runs, and where its model services answer."""
    path = directory / _SERVICES
    written = path.with_suffix(".new")
    written.write_text(Running(profile=profile, services=dict(urls)).model_dump_json(), encoding="utf-8")
    written.replace(path)  # at once: a command may read it now
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def settings_of(directory: Path) -> Settings:
    """The environment's settings, with database, objects, profile and model services of an embedded system.

    Where no system runs in the directory, profile and services are those of the environment.
    Raises SystemExit, with a sentence that says what to do, without a database or without services, and for a system
    that is still starting.
    """
    directory = directory.absolute()
    if not (directory / _DATABASE).is_file():
        raise SystemExit(
            f"{directory} has no {_DATABASE}: name the directory of `contrafact serve`, of the demo or of a test"
        )
    environment = read_settings()
    running = _running(directory)
    if running is None and not environment.model_fields_set & {_setting(name) for name in SERVICES}:
        raise SystemExit(
            f"no Contrafact answers in {directory}, so there is no model service to ask: start it with "
            f"`contrafact serve --directory {directory}`, with --profile if its jobs have another profile than tiny"
        )
    if running is None:
        return environment.model_copy(update={**stored_in(directory)})
    services = {_setting(name): url for name, url in running.services.items()}
    return environment.model_copy(update={**stored_in(directory), **services, "profile": running.profile})


def _setting(service: ServiceName) -> str:
    return f"{service.removesuffix('_service')}_url"


def _running(directory: Path) -> Running | None:
    """Profile and services of the system that runs in the directory; None if none runs there.

    Raises SystemExit if it is still starting.
    """
    try:
        with (directory / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None  # nobody holds it; after a crash, the list of its services may still be there
    except FileNotFoundError:
        return None
    except BlockingIOError:
        pass
    try:
        return Running.model_validate_json((directory / _SERVICES).read_bytes())
    except FileNotFoundError:
        raise SystemExit(f"the Contrafact in {directory} is still starting, or just ends: try again") from None
