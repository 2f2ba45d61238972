"""Whether a language or vision server that a profile names answers: llama.cpp's, vLLM's and TGI's `/health`."""

from __future__ import annotations

import httpx

from shared.certificates import tls_fault, trusted
from shared.problems import NotReady
from shared.weights import Server

SECONDS = 3.0  # shorter than the timeout of the service's own probes
RETRY_AFTER = 5.0


async def refuse_unready(server: Server) -> None:
    """Ask the server's `/health`. Raises NotReady if nothing answers, or if it says that it is loading or broken (5xx).

    A server that has no such page (404) or requires a key for it (401) counts as ready.
    """
    root = server.url.rstrip("/").removesuffix("/v1")
    try:
        async with httpx.AsyncClient(timeout=SECONDS, verify=trusted(server.ca_file)) as client:
            reply = await client.get(f"{root}/health")
    except httpx.HTTPError as error:
        if fault := tls_fault(error):
            raise NotReady(f"the server at {server.url} cannot be used: {fault}", retry_after=RETRY_AFTER) from error
        raise NotReady(
            f"the server at {server.url} does not answer: start it, or correct the profile's `url` "
            f"({type(error).__name__})",
            retry_after=RETRY_AFTER,
        ) from error
    if reply.status_code >= 500:
        raise NotReady(
            f"the server at {server.url} is not ready (status {reply.status_code}): wait until it has loaded "
            f"{server.model}, or read its log",
            retry_after=RETRY_AFTER,
        )
