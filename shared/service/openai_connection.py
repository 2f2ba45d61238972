"""The connection to an OpenAI-compatible server through OpenAI's client: keys, repetitions, deadlines, problems.

Import this module only if the profile names such a server: the client takes half a second to import.
"""

from __future__ import annotations

import os
import time
from asyncio import timeout
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from json import JSONDecodeError

import httpx
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, BaseModel, Omit, omit

from shared.certificates import tls_fault, trusted
from shared.problems import DeadlineExceeded, DependencyFailed, InvalidInput, refuses_content
from shared.profiles.weights import Server
from shared.service.server_replies import IDENTITY, LimitedStream, refuse_compression

ATTEMPTS = 3
MOST_BYTES = 64 * 1024**2  # of a reply in text


def as_sent(reply: object) -> str:
    """A reply that the client has parsed, without the fields that the server left out."""
    return str(reply.model_dump(exclude_none=True, warnings=False) if isinstance(reply, BaseModel) else reply)


class OpenAIConnection:
    """Sends requests to `server`, at most `server.concurrency` at a time.

    A request is sent up to `ATTEMPTS` times. It is repeated after a failed connection and after 408, 409, 429 and 5xx,
    with the delay of `Retry-After`. The deadline ends every call, including its waits. A reply of more than `max_bytes`
    raises DependencyFailed.
    """

    def __init__(self, server: Server, max_bytes: int = MOST_BYTES) -> None:
        """Raises ValueError if the environment lacks the server's key, or its `ca_file` cannot be read."""
        key = os.environ.get(server.api_key_variable, "") if server.api_key_variable else ""
        if server.api_key_variable and not key:
            raise ValueError(f"set the environment variable {server.api_key_variable} to the key of {server.url}")
        self.server = server
        # Otherwise the client sends the OpenAI account of the environment to every server.
        self.headers: dict[str, str | Omit] = {"OpenAI-Organization": omit, "OpenAI-Project": omit}
        if not key:
            self.headers["Authorization"] = omit
        limits = httpx.Limits(max_connections=server.concurrency, max_keepalive_connections=0)

        async def limit(reply: httpx.Response) -> None:
            refuse_compression(reply, server.url)
            assert isinstance(reply.stream, httpx.AsyncByteStream)
            reply.stream = LimitedStream(reply.stream, max_bytes, server.url)

        http_client = httpx.AsyncClient(
            limits=limits, headers=IDENTITY, event_hooks={"response": [limit]}, verify=trusted(server.ca_file)
        )
        self.client = AsyncOpenAI(
            base_url=server.url,
            api_key=key or "none",
            max_retries=ATTEMPTS - 1,
            timeout=None,
            http_client=http_client,  # type: ignore[arg-type]  # accepted, but typed for httpx2
        )

    @asynccontextmanager
    async def problems(self, deadline: float) -> AsyncIterator[None]:
        """Translate the client's errors and an expired deadline into problems.

        Raises DeadlineExceeded, InvalidInput (the server refuses the content), DependencyFailed.
        """
        url = self.server.url
        try:
            async with timeout(deadline - time.monotonic()):
                yield
        except TimeoutError as error:
            raise DeadlineExceeded(f"no reply from {url} before the deadline") from error
        except APIStatusError as error:
            refused = f"{url} refused ({error.status_code}): {error.response.text[:500]}"
            raise (InvalidInput if refuses_content(error.status_code) else DependencyFailed)(refused) from error
        except APIConnectionError as error:
            fault = tls_fault(error) or error.__cause__ or error
            raise DependencyFailed(f"{url} failed {ATTEMPTS} times, last: {fault}") from error
        except JSONDecodeError as error:
            raise DependencyFailed(f"{url} did not return JSON: {error}") from error
