"""Serve ASGI apps by uvicorn in threads of this process, on loopback ports."""

from __future__ import annotations

import socket
import threading
import time

import uvicorn
from fastapi import FastAPI

START_SECONDS = 60.0
GRACE_SECONDS = 3


class ListeningPort:
    """A port that is bound before its app exists; requests wait for `serve`.

    `port` 0 takes a free one. Raises OSError when the port is taken.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError:
            self._socket.close()
            raise
        self.base_url = f"http://{host}:{self._socket.getsockname()[1]}"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def serve(self, app: FastAPI) -> None:
        """Serve the app in a thread; returns when it answers. Raises RuntimeError when the app's start fails."""
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_SECONDS)
        )
        self._server = server
        thread = threading.Thread(target=server.run, args=([self._socket],), name=f"serve {app.title}", daemon=True)
        self._thread = thread
        thread.start()
        give_up = time.monotonic() + START_SECONDS
        while not server.started:
            if not thread.is_alive() or time.monotonic() > give_up:
                raise RuntimeError(f"{app.title} did not start on {self.base_url}")
            time.sleep(0.01)

    def close(self) -> None:
        """End connections, run the app's shutdown, and free the port."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
        self._socket.close()
