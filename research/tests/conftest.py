"""The fixtures of `tests` for the tests of research."""

from __future__ import annotations

from tests.conftest import database_url as database_url
from tests.conftest import log as log
from tests.conftest import postgres_url as postgres_url
from tests.conftest import s3_server as s3_server
from tests.conftest import sessions as sessions
