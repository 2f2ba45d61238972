"""`python -m tests.support.embedded_process DIRECTORY [SERVICES_URL]`: an embedded system; prints its URL.

CONTRAFACT_PROFILE names another profile than `tiny`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from embedded.run import run_embedded
from embedded.stop_signals import StopSignal
from shared.schemas.service import SERVICES

directory, *services = sys.argv[1:]
urls = dict.fromkeys(SERVICES, services[0]) if services else None
stop_signal = StopSignal()
profile = os.environ.get("CONTRAFACT_PROFILE", "tiny")
with run_embedded(Path(directory), profile, deterministic=True, service_urls=urls) as system:
    print(system.base_url, flush=True)
    stop_signal.wait()
