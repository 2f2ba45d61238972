"""`python -m tests.support.start_service NAME`: serve one model service until it is ready, and print its info."""

from __future__ import annotations

import importlib
import sys
import time

import httpx

from embedded.serving import ListeningPort

SECONDS = 240.0


def main(name: str) -> None:
    """End with the service's failure where its weights do not load."""
    port = ListeningPort()
    port.serve(importlib.import_module(f"{name}.app").create_app())
    give_up = time.monotonic() + SECONDS
    with httpx.Client(base_url=port.base_url, trust_env=False) as client:
        while (reply := client.get("/readyz")).status_code != 200:
            if reply.json().get("failed") or time.monotonic() > give_up:
                sys.exit(reply.text)
            time.sleep(0.2)
        print(client.get("/v1/info").text)
    port.close()


main(sys.argv[1])
