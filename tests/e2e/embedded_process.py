"""`python -m tests.e2e.embedded_process DIRECTORY [SERVICES_URL]`: an embedded system to be killed; prints its URL."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from embedded.run import run_embedded
from gateway.model_services import SERVICES

directory, *services = sys.argv[1:]
urls = dict.fromkeys(SERVICES, services[0]) if services else None
with run_embedded(Path(directory), deterministic=True, service_urls=urls) as system:
    print(system.base_url, flush=True)
    threading.Event().wait()
