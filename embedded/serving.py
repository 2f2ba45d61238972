"""An ASGI app served by uvicorn in a thread of this process, on a loopback port."""

from __future__ import annotations

import socket
import threading
import time

import uvicorn
from fastapi import FastAPI

START_SECONDS = 30.0
STOP_SECONDS = 5


class ServedApp:
    """A served app: it answers from construction on, at `base_url`, until `stop`.

    `port` 0 takes a free one. Raises OSError when the port is taken, RuntimeError when the app's start fails.
    """

    def __init__(self, app: FastAPI, name: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, port))
        self.base_url = f"http://{host}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=STOP_SECONDS
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name=f"serve-{name}")
        self._thread.daemon = True
        self._thread.start()
        self._wait(name)

    def stop(self) -> None:
        """End connections, run the app's shutdown, and wait for the thread."""
        self._server.should_exit = True
        self._thread.join(2 * STOP_SECONDS)
        self._socket.close()

    def _wait(self, name: str) -> None:
        give_up = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > give_up:
                raise RuntimeError(f"{name} did not start on {self.base_url}")
            time.sleep(0.01)
