"""The one-shot steps of a deployment, as containers run them: concurrently and repeatedly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, inspect, make_url, text

from tests.support.s3_server import S3Server


def run_together(commands: Sequence[Sequence[str]], environment: dict[str, str]) -> None:
    def run(command: Sequence[str]) -> None:
        subprocess.run([sys.executable, "-m", *command], env=os.environ | environment, check=True, timeout=600)

    with ThreadPoolExecutor(len(commands)) as pool:
        list(pool.map(run, commands))


@pytest.mark.slow
def test_gateway_and_workers_may_migrate_at_the_same_moment(postgres_url: str) -> None:
    server = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text("CREATE DATABASE steps"))
    server.dispose()
    url = make_url(postgres_url).set(database="steps").render_as_string(hide_password=False)
    run_together([["gateway.database.migrations"]] * 4, {"CONTRAFACT_DATABASE_URL": url})
    engine = create_engine(url)
    assert "source_images" in inspect(engine).get_table_names()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM alembic_version")).scalar_one() == 1
    engine.dispose()


@pytest.mark.slow
def test_creating_the_bucket_again_is_harmless(s3_server: S3Server) -> None:
    environment = {
        "CONTRAFACT_OBJECT_STORE": "s3:made-by-the-step",
        "CONTRAFACT_S3_ENDPOINT": s3_server.endpoint,
        "CONTRAFACT_S3_ACCESS_KEY": s3_server.access_key,
        "CONTRAFACT_S3_SECRET_KEY": s3_server.secret_key,
    }
    for _ in range(2):
        run_together([["gateway.storage.object_store"]], environment)
